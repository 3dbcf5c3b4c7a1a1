//! The seam between the drafter of a prediction head and what computes that head.

use ruvllm_text::TokenId;

use super::proposal::Choice;

/// Pairs to append to a sequence of a head: tokens, each with the final hidden state of the one
/// before it.
pub(super) struct Pairs<'p, C> {
    pub(super) cache: &'p mut C,
    /// At least one.
    pub(super) tokens: &'p [TokenId],
    /// `[tokens, model_dim]`.
    pub(super) states: &'p [f32],
}

/// Passes of a prediction head, with its keys and values.
///
/// [`HeadDrafter`](super::head_drafter::HeadDrafter) holds the states of each sequence and decides
/// on drafts; an engine appends pairs, drops them, and names the likeliest token.
pub(super) trait HeadEngine {
    /// Keys and values of a sequence.
    type Cache;

    /// Largest number of pairs of a sequence.
    fn capacity(&self) -> usize;

    /// Values of a state.
    fn model_dim(&self) -> usize;

    /// An empty sequence; `None` without memory for it.
    fn begin(&mut self) -> Option<Self::Cache>;

    /// Drops the pairs of a sequence from `len` on. False if those before are gone too, or cannot
    /// be told apart: the sequence has to be cleared.
    fn truncate(&mut self, cache: &mut Self::Cache, len: usize) -> bool;

    /// Drops all pairs of a sequence.
    fn clear(&mut self, cache: &mut Self::Cache);

    /// Appends pairs; writes the likeliest token behind each part to `found`, and the head's own
    /// final hidden state of its last pair to `hidden`, `[parts, model_dim]`. False if it failed:
    /// the sequences are of no use any more.
    fn pass<'p>(
        &mut self,
        parts: impl Iterator<Item = Pairs<'p, Self::Cache>>,
        found: &mut Vec<Option<Choice>>,
        hidden: &mut Vec<f32>,
    ) -> bool
    where
        Self::Cache: 'p;

    /// Releases a sequence.
    fn end(&mut self, cache: Self::Cache);
}
