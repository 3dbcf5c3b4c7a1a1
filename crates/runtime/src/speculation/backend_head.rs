//! A prediction head on a backend.

use ruvllm_kernels::Kernels;

use super::head_engine::{HeadEngine, Pairs};
use super::proposal::Choice;
use crate::backend::batch::Row;
use crate::backend::head::{BackendHead, HeadPart};

/// Sequences of a prediction head on a backend.
pub(crate) struct BackendHeadDraft<'b> {
    head: Box<dyn BackendHead + 'b>,
    kernels: Kernels,
    model_dim: usize,
    vocab_size: usize,
    /// Ids that may be drafted.
    ids: usize,
    /// Probabilities of a row of logits.
    probabilities: Vec<f32>,
}

impl<'b> BackendHeadDraft<'b> {
    /// Sequences of the head of a model with states of `model_dim` values and rows of `vocab_size`
    /// logits, for drafts of ids below `ids`.
    pub(crate) fn new(
        head: Box<dyn BackendHead + 'b>,
        kernels: Kernels,
        [model_dim, vocab_size, ids]: [usize; 3],
    ) -> Self {
        Self { head, kernels, model_dim, vocab_size, ids, probabilities: Vec::new() }
    }
}

impl HeadEngine for BackendHeadDraft<'_> {
    /// Number of a sequence.
    type Cache = usize;

    fn capacity(&self) -> usize {
        self.head.capacity()
    }

    fn model_dim(&self) -> usize {
        self.model_dim
    }

    fn begin(&mut self) -> Option<usize> {
        self.head.begin().ok()
    }

    fn truncate(&mut self, number: &mut usize, len: usize) -> bool {
        self.head.truncate(*number, len).is_ok_and(|kept| kept == len)
    }

    fn clear(&mut self, number: &mut usize) {
        // A sequence that keeps pairs fails in the next pass, and ends.
        let _ = self.head.truncate(*number, 0);
    }

    fn pass<'p>(
        &mut self,
        parts: impl Iterator<Item = Pairs<'p, usize>>,
        found: &mut Vec<Option<Choice>>,
        hidden: &mut Vec<f32>,
    ) -> bool {
        let part =
            |Pairs { cache, tokens, states }: Pairs<'p, usize>| HeadPart { sequence: *cache, tokens, states };
        let parts: Vec<HeadPart<'_>> = parts.map(part).collect();
        let Self { head, kernels, model_dim, vocab_size, ids, probabilities } = self;
        found.clear();
        found.resize(parts.len(), None);
        hidden.clear();
        hidden.resize(parts.len() * *model_dim, 0.0);
        let predicted = head.predict(&parts, &mut |of, decoded, states| {
            let states = states.chunks_exact(*model_dim);
            for ((row, &part), state) in of.iter().enumerate().zip(states) {
                hidden[part * *model_dim..][..*model_dim].copy_from_slice(state);
                found[part] = match decoded.row(row, *vocab_size) {
                    Row::Logits(logits) => Choice::of_logits(kernels, &logits[..*ids], probabilities),
                    Row::Largest(largest) => Choice::of_largest(largest, *ids),
                    Row::Greedy(token) => token.map(|token| Choice { token, probability: 1.0 }),
                };
            }
        });
        predicted.is_ok()
    }

    fn end(&mut self, number: usize) {
        self.head.end(number);
    }
}
