//! The sequence that a conversation keeps between its requests.

use ruvllm_text::TokenId;

/// A sequence and its tokens; none before the first request and after a failed one.
pub(crate) struct Kept<S> {
    sequence: Option<S>,
    tokens: Vec<TokenId>,
}

impl<S> Kept<S> {
    pub(crate) fn none() -> Self {
        Self { sequence: None, tokens: Vec::new() }
    }

    /// Takes the sequence and its tokens out, until [`put`](Self::put).
    pub(crate) fn take(&mut self) -> Option<(S, Vec<TokenId>)> {
        let tokens = std::mem::take(&mut self.tokens);
        self.sequence.take().map(|sequence| (sequence, tokens))
    }

    pub(crate) fn put(&mut self, sequence: S, tokens: Vec<TokenId>) {
        (self.sequence, self.tokens) = (Some(sequence), tokens);
    }

    pub(crate) fn sequence(&self) -> Option<&S> {
        self.sequence.as_ref()
    }

    /// Tokens in the sequence.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }
}
