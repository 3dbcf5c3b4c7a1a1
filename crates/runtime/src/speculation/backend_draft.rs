//! A draft model on a backend.

use std::ops::ControlFlow;

use ruvllm_kernels::Kernels;
use ruvllm_text::TokenId;

use super::draft_engine::DraftEngine;
use super::proposal::Choice;
use crate::backend::batch::{BackendBatch, NextToken, Row, Wanted};

/// Largest logits that a probability is made of, where a backend finds them: few enough for a
/// device, and all that matters of a token that is likely enough to be verified.
const LARGEST: usize = 64;

/// Sequences of a draft model on a backend, which computes the next tokens of all in one pass.
pub(crate) struct BackendDraft<'b> {
    batch: Box<dyn BackendBatch + 'b>,
    kernels: Kernels,
    /// Largest number of tokens of a sequence.
    capacity: usize,
    vocab_size: usize,
    /// Ids that may be drafted.
    ids: usize,
    /// Tokens of a pass, and the part of each if it is the last one of it.
    tokens: Vec<NextToken>,
    ends: Vec<Option<usize>>,
    /// Probabilities of a row of logits.
    probabilities: Vec<f32>,
}

impl<'b> BackendDraft<'b> {
    /// Sequences of at most `capacity` tokens of a model with rows of `vocab_size` logits, for
    /// drafts of ids below `ids`.
    pub(crate) fn new(
        batch: Box<dyn BackendBatch + 'b>,
        kernels: Kernels,
        capacity: usize,
        [vocab_size, ids]: [usize; 2],
    ) -> Self {
        let (tokens, ends, probabilities) = (Vec::new(), Vec::new(), Vec::new());
        Self { batch, kernels, capacity, vocab_size, ids, tokens, ends, probabilities }
    }

    /// Computes tokens of a sequence as a prompt; `None` if that failed.
    fn prefill(&mut self, number: usize, tokens: &[TokenId]) -> Option<Option<Choice>> {
        let session = self.batch.sequence(number)?;
        let logits = session.prefill(tokens, tokens.len(), &mut || ControlFlow::Continue(())).ok()??;
        Some(Choice::of_logits(&self.kernels, &logits[..self.ids], &mut self.probabilities))
    }
}

impl DraftEngine for BackendDraft<'_> {
    /// Number of a sequence.
    type Cache = usize;

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn begin(&mut self) -> Option<usize> {
        self.batch.begin(self.capacity).ok()
    }

    fn truncate(&mut self, number: &mut usize, len: usize) -> bool {
        let session = self.batch.sequence(*number);
        session.is_some_and(|session| session.truncate(len).is_ok_and(|kept| kept == len))
    }

    fn clear(&mut self, number: &mut usize) {
        // A sequence that keeps tokens fails in the next pass, and ends.
        let _ = self.batch.sequence(*number).map(|session| session.truncate(0));
    }

    /// One pass for the sequences that lack few tokens; the others, which begin or have fallen
    /// behind, are computed as prompts before.
    fn pass<'p>(
        &mut self,
        parts: impl Iterator<Item = (&'p mut usize, &'p [TokenId])>,
        found: &mut Vec<Option<Choice>>,
    ) -> bool {
        self.tokens.clear();
        self.ends.clear();
        found.clear();
        for (part, (&mut sequence, tokens)) in parts.enumerate() {
            found.push(None);
            if tokens.len() > 1 + self.batch.draft_room(sequence) {
                let Some(choice) = self.prefill(sequence, tokens) else { return false };
                found[part] = choice;
                continue;
            }
            let wanted = Wanted::Largest(LARGEST);
            self.tokens.extend(tokens.iter().map(|&token| NextToken { sequence, token, wanted }));
            self.ends.resize(self.tokens.len() - 1, None);
            self.ends.push(Some(part));
        }
        if self.tokens.is_empty() {
            return true;
        }
        let Self { batch, kernels, vocab_size, ids, tokens, ends, probabilities, .. } = self;
        let decoded = batch.decode(tokens, &mut |rows, decoded| {
            for (row, &token) in rows.iter().enumerate() {
                let Some(part) = ends[token] else { continue };
                found[part] = match decoded.row(row, *vocab_size) {
                    Row::Logits(logits) => Choice::of_logits(kernels, &logits[..*ids], probabilities),
                    Row::Largest(largest) => Choice::of_largest(largest, *ids),
                    Row::Greedy(token) => token.map(|token| Choice { token, probability: 1.0 }),
                };
            }
        });
        decoded.is_ok()
    }

    fn end(&mut self, number: usize) {
        self.batch.end(number);
    }
}
