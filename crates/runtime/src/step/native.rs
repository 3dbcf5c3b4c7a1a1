//! The engine's own executor.

use std::collections::HashMap;
use std::time::Instant;

use ruvllm_kv_cache::prefix::PrefixKey;
use ruvllm_models::{LogitsRows, Segment, Workspace};
use ruvllm_text::TokenId;

use super::executor::{Executor, Logits, Outcome, Part, PartLogits, SequenceId, SequenceReport, Step};
use crate::backend::batch::Decoded;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::request::SequenceSize;
use crate::segments::{Batch, recycle};
use crate::sequence::{NativeSequence, SequenceSpec};

/// Sequences of the engine's model.
pub(super) struct NativeExecutor<'c> {
    core: &'c Core,
    sequences: HashMap<SequenceId, Box<NativeSequence>>,
    workspace: Workspace,
    /// Tokens for which the whole budget has room, all in the hot tier.
    capacity_tokens: usize,
    scratch: Scratch,
}

/// Lists of a step, kept for their memory.
#[derive(Default)]
struct Scratch {
    /// Sequences of the parts, in order.
    #[expect(clippy::vec_box, reason = "a sequence is large and moves between list and map in each step")]
    sequences: Vec<Box<NativeSequence>>,
    segments: Vec<Segment<'static>>,
    /// Parts whose logits are there.
    with_logits: Vec<PartLogits>,
}

impl<'c> NativeExecutor<'c> {
    pub(super) fn new(core: &'c Core) -> Self {
        let (pool, block_tokens) = (core.kv.pool(), core.kv.block_tokens());
        let budget = pool.capacity_pages() * pool.page_bytes();
        let capacity_tokens = budget / core.kv.sequence_bytes(block_tokens).max(1) * block_tokens;
        Self {
            core,
            sequences: HashMap::new(),
            workspace: Workspace::new(),
            capacity_tokens,
            scratch: Scratch::default(),
        }
    }

    /// Computes the parts of a range; false if the pass failed as a whole, which leaves every
    /// sequence as it was.
    fn pass(
        &mut self,
        step: &Step,
        first: usize,
        sequences: &mut [Box<NativeSequence>],
        outcomes: &mut Vec<Outcome>,
        logits: &mut Logits<'_>,
    ) -> Result<(), ruvllm_models::Error> {
        let core = self.core;
        let parts = &step.parts()[first..first + sequences.len()];
        outcomes.truncate(first);
        self.scratch.with_logits.clear();
        let mut segments = recycle(std::mem::take(&mut self.scratch.segments));
        for ((index, part), sequence) in parts.iter().enumerate().zip(sequences.iter_mut()) {
            outcomes.push(match segment(core, step, part, sequence) {
                Ok(segment) => {
                    let tokens = segment.n_tokens();
                    segments.push(segment);
                    let (rows, states) = (part.rows_of(tokens), part.states_of(tokens));
                    if rows > 0 {
                        let part = PartLogits { part: first + index, tokens, rows, states };
                        self.scratch.with_logits.push(part);
                    }
                    Outcome::Computed { tokens }
                }
                Err(error) => Outcome::Failed(error),
            });
        }
        let passed = match segments.is_empty() {
            true => Ok(()),
            false => {
                let batch = Batch(&mut segments);
                core.model.forward(&core.compute, &mut self.workspace, batch).map(|_| ())
            }
        };
        self.scratch.segments = recycle(segments);
        passed?;
        // A pass that keeps states keeps those of all tokens with logits.
        let with_logits = &mut self.scratch.with_logits;
        if with_logits.iter().any(|part| part.states > 0) {
            with_logits.iter_mut().for_each(|part| part.states = part.states.max(part.rows));
        }
        let mut index = 0;
        for ((part, sequence), outcome) in parts.iter().zip(sequences).zip(&outcomes[first..]) {
            if let Outcome::Computed { tokens } = *outcome {
                sequence.passed(&core.model, &self.workspace, index, &step.tokens(part)[..tokens]);
                if part.is_prompt {
                    sequence.keep_planned(core.prefixes.as_deref());
                }
                index += 1;
            }
        }
        if !self.scratch.with_logits.is_empty() {
            let workspace = &self.workspace;
            logits(&self.scratch.with_logits, Decoded::Logits(workspace.logits()), workspace.hidden());
        }
        Ok(())
    }

    /// Tells the prefix cache how long a prompt chunk took, if nothing else was in the step.
    fn observe_prefill(&self, step: &Step, outcomes: &[Outcome], started: Instant) {
        if let ([part], [Outcome::Computed { tokens }]) = (step.parts(), outcomes)
            && part.is_prompt
            // More are for log-probabilities of the prompt, whose time is not that of a prefill.
            && part.rows <= 1
            && let Some(prefixes) = &self.core.prefixes
        {
            prefixes.observe_prefill(*tokens, started.elapsed());
        }
    }
}

/// Room for a part and its segment: a prompt chunk is shortened where memory is short, and ends at
/// a block border whose state is to be stored.
fn segment<'s>(
    core: &Core,
    step: &'s Step,
    part: &Part,
    sequence: &'s mut NativeSequence,
) -> Result<Segment<'s>> {
    let mut tokens = step.tokens(part);
    if part.is_prompt {
        tokens = &tokens[..tokens.len().min(sequence.tokens_to_border())];
    }
    let least = if part.is_prompt { core.kv.block_tokens().min(tokens.len()) } else { tokens.len() };
    let room = sequence.prepare(&core.model, &core.compute, least..=tokens.len())?;
    let (start, rows) = (sequence.len(), LogitsRows::Tail(part.rows_of(room)));
    let segment = sequence.segment(&core.compute, &tokens[..room], rows)?;
    let segment = segment.with_hidden(part.states_of(room));
    if !part.has_draft {
        return Ok(segment);
    }
    segment.rewindable(core.model.config()).map_err(|source| Error::Forward { start, tokens: room, source })
}

impl Executor for NativeExecutor<'_> {
    fn begin(&mut self, id: SequenceId, spec: &SequenceSpec, prompt: &[TokenId]) -> Result<usize> {
        let core = self.core;
        let mut sequence = NativeSequence::new(core, spec, Some(&core.quality))?;
        let cached = sequence.begin(&core.compute, core.prefixes.as_deref(), prompt)?;
        self.sequences.insert(id, Box::new(sequence));
        Ok(cached)
    }

    fn resume(&mut self, id: SequenceId, spec: &SequenceSpec, prompt: &[TokenId]) -> Result<Option<usize>> {
        let Some(mut sequence) = self.sequences.remove(&id) else { return Ok(None) };
        let reusable = if sequence.is_for(spec) { sequence.reusable(prompt) } else { 0 };
        if reusable == 0 || reusable < spec.min_cache_tokens {
            return Ok(None);
        }
        sequence.truncate(reusable)?;
        sequence.adopt(spec);
        sequence.plan_borders(prompt.len(), 0);
        self.sequences.insert(id, sequence);
        Ok(Some(reusable))
    }

    fn fork(&mut self, id: SequenceId, new_id: SequenceId) -> bool {
        let Some(sequence) = self.sequences.get_mut(&id) else { return false };
        let fork = sequence.fork(&self.core.quality);
        self.sequences.insert(new_id, Box::new(fork));
        true
    }

    /// One pass for all parts. When it fails as a whole, such as for an adapter of another model,
    /// each part has a pass of its own, so that a faulty one does not harm the others.
    fn step(&mut self, step: &Step, outcomes: &mut Vec<Outcome>, logits: &mut Logits<'_>) {
        let started = Instant::now();
        outcomes.clear();
        let mut sequences = std::mem::take(&mut self.scratch.sequences);
        let ids = step.parts().iter().map(|part| part.sequence);
        sequences.extend(ids.clone().filter_map(|id| self.sequences.remove(&id)));
        assert_eq!(sequences.len(), step.parts().len(), "every part names a sequence of its own");
        if self.pass(step, 0, &mut sequences, outcomes, logits).is_err() {
            for (index, sequence) in sequences.iter_mut().enumerate() {
                let (start, part) = (sequence.len(), &step.parts()[index]);
                let alone = std::slice::from_mut(sequence);
                if let Err(source) = self.pass(step, index, alone, outcomes, logits) {
                    outcomes.truncate(index);
                    let tokens = step.tokens(part).len();
                    outcomes.push(Outcome::Failed(Error::Forward { start, tokens, source }));
                }
            }
        }
        self.sequences.extend(ids.zip(sequences.drain(..)));
        self.scratch.sequences = sequences;
        self.observe_prefill(step, outcomes, started);
    }

    fn truncate(&mut self, id: SequenceId, len: usize) -> Result<()> {
        let Self { core, sequences, workspace, .. } = self;
        let Some(sequence) = sequences.get_mut(&id) else { return Ok(()) };
        sequence.rewind(&core.model, &core.compute, workspace, len)
    }

    fn draft_room(&self, id: SequenceId, tokens: usize) -> usize {
        self.sequences.get(&id).map_or(0, |sequence| sequence.draft_room(tokens))
    }

    fn prefilled(&mut self, id: SequenceId) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.keep_whole_blocks(self.core.prefixes.as_deref());
        }
    }

    fn park(&mut self, id: SequenceId) {
        if let Some(mut sequence) = self.sequences.remove(&id) {
            sequence.keep(self.core.prefixes.as_deref());
        }
    }

    fn finish(&mut self, id: SequenceId) -> SequenceReport {
        let Some(sequence) = self.sequences.get_mut(&id) else { return SequenceReport::default() };
        let is_kept = sequence.keep(self.core.prefixes.as_deref());
        sequence.remember_quality(&self.core.quality);
        sequence.release_adapters();
        SequenceReport {
            size: SequenceSize { tokens: sequence.len(), bytes: sequence.cache().bytes() },
            is_kept,
            kv_quality: sequence.kv_quality(),
            dropped_tokens: sequence.dropped_tokens(),
        }
    }

    fn prefix_key(&self, id: SequenceId) -> Option<PrefixKey> {
        self.sequences.get(&id)?.prefix_key(self.core.prefixes.as_deref())
    }

    fn release(&mut self, id: SequenceId) {
        self.sequences.remove(&id);
    }

    fn free_tokens(&self) -> usize {
        let block_tokens = self.core.kv.block_tokens();
        let used = self
            .sequences
            .values()
            .map(|sequence| sequence.len().next_multiple_of(block_tokens) - sequence.shared_tokens());
        self.capacity_tokens.saturating_sub(used.sum())
    }
}
