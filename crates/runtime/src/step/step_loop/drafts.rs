//! Drafts of a step: asked for before it, judged after it.

use std::collections::HashMap;
use std::time::Duration;

use ruvllm_scheduler::{RequestId, Work};

use super::{Scratch, StepLoop};
use crate::error::Result;
use crate::speculation::{Ask, Speculator};
use crate::step::executor::{Executor, PartLogits, SequenceId};
use crate::step::request::{Request, Sampled};

impl<'c, X: Executor> StepLoop<'c, X> {
    /// Drafts the next tokens of the requests that decode.
    pub(super) fn speculate(&mut self, scratch: &mut Scratch<'c>) {
        let Scratch { work, asking, asks, drafts, .. } = scratch;
        asking.clear();
        if self.speculator.is_off() {
            return;
        }
        let mut questions = recycle(std::mem::take(asks));
        for (index, &Work { id, tokens, samples }) in work.iter().enumerate() {
            let request = &self.requests[&id];
            if samples && request.decodes() {
                let room = self.executor.draft_room(request.sequence, tokens);
                asking.push(index);
                questions.push(request.ask(self.speculator.setting(), room));
            }
        }
        self.speculator.draft(&questions, questions.len(), drafts);
        *asks = recycle(questions);
        for (index, draft) in asking.iter().zip(drafts).filter(|(_, draft)| !draft.is_empty()) {
            if let Some(request) = self.requests.get_mut(&work[*index].id) {
                request.trim(draft);
            }
        }
    }

    /// Compares the drafts with what was sampled, and tells the policy how long the step took, if
    /// nothing but drafts and the tokens before them was in it.
    pub(super) fn observe_drafts(&mut self, scratch: &Scratch<'c>, time: Duration) {
        let Scratch { work, step, asking, sampled, drafted, .. } = scratch;
        let mut accepted = 0;
        for &index in asking {
            if let (Some(Ok(sampled)), Some(request)) = (&sampled[index], self.requests.get(&work[index].id))
            {
                accepted += sampled.kept;
                let (lane, tokens) = (step.parts()[index].sequence.0, request.tokens());
                self.speculator.verified(lane, tokens, tokens.len() - sampled.tokens, sampled.kept);
            }
        }
        let drafted = drafted.iter().sum();
        self.counters.count_draft(drafted, accepted);
        if asking.len() == work.len() && sampled.iter().all(Option::is_some) {
            let rows = work.iter().map(|work| work.tokens).sum();
            self.speculator.observe(work.len(), rows, [drafted, accepted], time);
        }
    }

    /// Drops the tokens of a draft that were not sampled.
    pub(super) fn drop_rejected(
        &mut self,
        sequence: SequenceId,
        drafted: usize,
        sampled: Option<&Result<Sampled>>,
        id: RequestId,
    ) -> Result<()> {
        match (sampled, self.requests.get(&id)) {
            (Some(Ok(sampled)), Some(request)) if sampled.kept < drafted => {
                self.executor.truncate(sequence, request.computed)
            }
            _ => Ok(()),
        }
    }
}

/// Gives the drafters the final hidden states of the parts, `[tokens, model_dim]`, before anything
/// is sampled from their logits.
pub(super) fn keep_states(
    speculator: &mut Speculator<'_>,
    requests: &HashMap<RequestId, Box<Request<'_>>>,
    work: &[Work],
    parts: &[PartLogits],
    mut states: &[f32],
) {
    let tokens: usize = parts.iter().map(|part| part.states).sum();
    let width = states.len() / tokens.max(1);
    for part in parts.iter().filter(|part| part.states > 0) {
        let (own, others) = states.split_at(part.states * width);
        states = others;
        if let Some(request) = requests.get(&work[part.part].id)
            && request.has_drafts(speculator.setting())
        {
            speculator.keep(request.sequence.0, request.computed + part.tokens - part.states, own);
        }
    }
}

/// Empties a list and changes the lifetime of its elements, as
/// [`segments::recycle`](crate::segments::recycle).
fn recycle<'a>(mut asks: Vec<Ask<'_>>) -> Vec<Ask<'a>> {
    asks.clear();
    asks.into_iter().map(|_| unreachable!("the list is empty")).collect()
}
