//! Prediction head of a backend's model.

use ruvllm_text::TokenId;

use super::batch::OnStates;
use crate::error::Result;

/// Pairs of a token and the final hidden state of the one before it, to append to a sequence of a
/// [`BackendHead`].
#[derive(Debug, Clone, Copy)]
pub struct HeadPart<'p> {
    /// Number of the sequence, once in a pass.
    pub sequence: usize,
    /// At least one token.
    pub tokens: &'p [TokenId],
    /// `[tokens, model_dim]`.
    pub states: &'p [f32],
}

/// Sequences of the head of a model that predicts the token after the next (multi-token
/// prediction): drafts from the model's own final hidden states.
///
/// [`InferenceBackend::prediction_head`](crate::InferenceBackend::prediction_head) makes one. A
/// sequence begins at any token of a text.
pub trait BackendHead {
    /// Largest number of pairs of a sequence.
    fn capacity(&self) -> usize;

    /// Begins an empty sequence; returns its number.
    ///
    /// # Errors
    /// Too little memory.
    fn begin(&mut self) -> Result<usize>;

    /// Drops the pairs of a sequence from `len` on, and earlier ones that the backend cannot keep.
    /// Returns the number of pairs left.
    ///
    /// # Errors
    /// Errors of the backend.
    fn truncate(&mut self, number: usize, len: usize) -> Result<usize>;

    /// Releases a sequence, if there is one. Its number may be given to another.
    fn end(&mut self, number: usize);

    /// Appends pairs to sequences. `on_predicted` gets indexes of `parts`, each once, with the
    /// result behind the last pair of each: the logits of the token that follows, or as many of the
    /// largest as a probability takes, and the head's own final hidden state, which goes with that
    /// token.
    ///
    /// # Errors
    /// A sequence that is not there or has no room, states of another size, and errors of the
    /// backend. The sequences may have any part of the pairs then.
    fn predict(&mut self, parts: &[HeadPart<'_>], on_predicted: &mut OnStates<'_>) -> Result<()>;
}
