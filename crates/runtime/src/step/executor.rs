//! The seam between the step loop and the code that computes: a step is plain data.

use std::ops::Range;

use ruvllm_kv_cache::prefix::PrefixKey;
use ruvllm_text::TokenId;

use crate::backend::batch::{Decoded, Wanted};
use crate::cancel::CancelToken;
use crate::error::{Error, Result};
use crate::request::{KvQuality, SequenceSize};
use crate::sequence::SequenceSpec;

/// Number of a sequence of an executor, chosen by the step loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SequenceId(pub(crate) u64);

/// Tokens of several sequences to compute in one forward pass.
#[derive(Debug, Default)]
pub(crate) struct Step {
    /// Token ids of all parts, in their order.
    tokens: Vec<TokenId>,
    parts: Vec<Part>,
}

/// Tokens of one sequence in a step; they follow those that the sequence has.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) sequence: SequenceId,
    tokens: Range<usize>,
    /// Chunk of a prompt: fewer tokens may be computed where memory is short. Otherwise generated
    /// tokens, and drafts of the next ones.
    pub(crate) is_prompt: bool,
    /// Number of its last tokens whose logits are wanted; at most all of them.
    pub(crate) rows: usize,
    /// Number of its last tokens whose final hidden states are wanted, if there are rows.
    pub(crate) states: usize,
    /// True if its last tokens are a draft, some of which may be dropped after the step.
    pub(crate) has_draft: bool,
    /// Result that is wanted of each row.
    pub(crate) wanted: Wanted,
    /// Ends a part that takes long.
    pub(crate) cancel: CancelToken,
}

impl Step {
    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.parts.clear();
    }

    /// Adds the part of a sequence: `tokens` has at least one. The logits of the last `rows` of
    /// them are wanted.
    pub(crate) fn push(
        &mut self,
        sequence: SequenceId,
        tokens: &[TokenId],
        is_prompt: bool,
        rows: usize,
        cancel: &CancelToken,
    ) {
        debug_assert!(rows <= tokens.len(), "rows of logits belong to tokens of the part");
        let start = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        let tokens = start..self.tokens.len();
        let (wanted, cancel) = (Wanted::Logits, cancel.clone());
        let part = Part { sequence, tokens, is_prompt, rows, states: 0, has_draft: false, wanted, cancel };
        self.parts.push(part);
    }

    /// Asks for this in place of the logits of the last part.
    pub(crate) fn want(&mut self, wanted: Wanted) {
        if let Some(part) = self.parts.last_mut() {
            part.wanted = wanted;
        }
    }

    /// Adds a draft of the next tokens to the last part, with a row of logits for each.
    pub(crate) fn push_draft(&mut self, draft: &[TokenId]) {
        if let Some(part) = self.parts.last_mut() {
            self.tokens.extend_from_slice(draft);
            part.tokens.end += draft.len();
            part.rows += draft.len();
            part.has_draft |= !draft.is_empty();
        }
    }

    /// Asks for the final hidden states of the last tokens of the last part, `most` at most.
    pub(crate) fn want_states(&mut self, most: usize) {
        if let Some(part) = self.parts.last_mut() {
            part.states = part.tokens.len().min(most);
        }
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Token ids of a part.
    pub(crate) fn tokens(&self, part: &Part) -> &[TokenId] {
        &self.tokens[part.tokens.clone()]
    }
}

/// Outcome of a part of a step.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The first `tokens` of the part were computed: all of a generated one, at least one of a
    /// prompt's unless the part was cancelled.
    Computed {
        /// Their number.
        tokens: usize,
    },
    /// None was computed; the sequence is as it was.
    Failed(Error),
}

/// Properties of a sequence whose request has ended.
#[derive(Debug, Default)]
pub(crate) struct SequenceReport {
    pub(crate) size: SequenceSize,
    /// True if the sequence is stored as a prefix from its beginning to its end.
    pub(crate) is_kept: bool,
    /// Outcome of the quality target.
    pub(crate) kv_quality: Option<KvQuality>,
    /// Tokens that were dropped for lack of memory.
    pub(crate) dropped_tokens: usize,
}

/// A part of a step with results: logits, or what it wants in their place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PartLogits {
    /// Index of the part in the step.
    pub(crate) part: usize,
    /// Number of its tokens that were computed: of a prompt chunk maybe fewer than it has.
    pub(crate) tokens: usize,
    /// Rows, of the last of these tokens that are among the part's [`Part::rows`].
    pub(crate) rows: usize,
    /// Final hidden states, of as many of the last of these tokens; 0 from executors that keep
    /// none.
    pub(crate) states: usize,
}

impl Part {
    /// Rows of logits if the first `computed` of the part's tokens are computed.
    pub(crate) fn rows_of(&self, computed: usize) -> usize {
        computed.saturating_sub(self.tokens.len() - self.rows)
    }

    /// States that are wanted if the first `computed` of the part's tokens are computed.
    pub(crate) fn states_of(&self, computed: usize) -> usize {
        if self.rows_of(computed) == 0 { 0 } else { self.states.min(computed) }
    }
}

/// Takes the logits of the parts that have some, for each its rows of `vocab_size`, in order; or
/// in their place what parts want. Then their final hidden states, `[tokens, model_dim]`.
pub(crate) type Logits<'l> = dyn FnMut(&[PartLogits], Decoded<'_>, &[f32]) + 'l;

/// Owns weights and sequences and computes steps. Nothing outside of it reads keys and values, so
/// they may be on another device.
pub(crate) trait Executor {
    /// Begins a sequence with the part of `prompt` that earlier sequences have computed; returns
    /// its number of tokens. At least the last one is left.
    ///
    /// # Errors
    /// A sequence that cannot be made; none exists then.
    fn begin(&mut self, id: SequenceId, spec: &SequenceSpec, prompt: &[TokenId]) -> Result<usize>;

    /// Cuts an idle sequence back to what it has in common with `prompt`; returns the number of
    /// tokens. `None` if it has nothing in common or is not for such requests; it is released then.
    ///
    /// # Errors
    /// Errors of the backend; the sequence is released then.
    fn resume(&mut self, id: SequenceId, spec: &SequenceSpec, prompt: &[TokenId]) -> Result<Option<usize>>;

    /// Makes the idle sequence `new_id` of the tokens of `id`, whose blocks both share until one
    /// writes to them. False if there is no sequence `id` or the executor cannot do it.
    fn fork(&mut self, id: SequenceId, new_id: SequenceId) -> bool;

    /// Computes a step. Fills `outcomes` with one for each part, and passes the logits of those
    /// tokens that were computed and whose logits are wanted, or in their place what a part wants.
    fn step(&mut self, step: &Step, outcomes: &mut Vec<Outcome>, logits: &mut Logits<'_>);

    /// Drops the tokens of a sequence from position `len` on: drafts that were rejected.
    ///
    /// # Errors
    /// Errors of the backend, also if it cannot keep the tokens before `len`; the sequence cannot
    /// go on then.
    fn truncate(&mut self, id: SequenceId, len: usize) -> Result<()>;

    /// Largest number of tokens behind the next `tokens` that can be computed with these and
    /// dropped again without a trace: 0 without support for drafts.
    fn draft_room(&self, id: SequenceId, tokens: usize) -> usize;

    /// Stores the prompt of a running sequence, which has been computed, as a prefix of others.
    fn prefilled(&mut self, id: SequenceId);

    /// Stores a sequence as a prefix of later ones and releases it.
    fn park(&mut self, id: SequenceId);

    /// Stores a sequence whose request has ended as a prefix of later ones. It stays, without its
    /// adapters.
    fn finish(&mut self, id: SequenceId) -> SequenceReport;

    /// Key of the prefix that a sequence leaves; `None` without a prefix cache.
    fn prefix_key(&self, id: SequenceId) -> Option<PrefixKey>;

    /// Releases a sequence, if there is one.
    fn release(&mut self, id: SequenceId);

    /// Tokens for which there is memory when everything that can be evicted is evicted.
    fn free_tokens(&self) -> usize;
}
