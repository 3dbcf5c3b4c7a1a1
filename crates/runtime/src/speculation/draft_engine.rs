//! The seam between the drafter of a draft model and what computes that model.

use ruvllm_text::TokenId;

use super::proposal::Choice;

/// Passes of a draft model, with its keys and values.
///
/// [`ModelDrafter`](super::model_drafter::ModelDrafter) knows the tokens of each sequence and
/// decides on drafts; an engine appends tokens, drops them, and names the likeliest one.
pub(super) trait DraftEngine {
    /// Keys and values of a sequence.
    type Cache;

    /// Largest number of tokens of a sequence.
    fn capacity(&self) -> usize;

    /// Number of ids that a pass takes.
    fn vocab_size(&self) -> usize;

    /// An empty sequence; `None` without memory for it.
    fn begin(&mut self) -> Option<Self::Cache>;

    /// Drops the tokens of a sequence from position `len` on. False if those before are gone too,
    /// or cannot be told apart: the sequence has to be cleared.
    fn truncate(&mut self, cache: &mut Self::Cache, len: usize) -> bool;

    /// Drops all tokens of a sequence.
    fn clear(&mut self, cache: &mut Self::Cache);

    /// Appends tokens, at least one of each sequence, and writes the likeliest token behind each
    /// sequence to `found`. False if it failed: the sequences are of no use any more.
    fn pass<'p>(
        &mut self,
        parts: impl Iterator<Item = (&'p mut Self::Cache, &'p [TokenId])>,
        found: &mut Vec<Option<Choice>>,
    ) -> bool
    where
        Self::Cache: 'p;

    /// Releases a sequence.
    fn end(&mut self, cache: Self::Cache);
}
