//! The sequence that a conversation keeps between its requests.

use ruvllm_text::TokenId;

/// A sequence and its tokens; none before the first request and after one that failed.
pub(crate) struct Kept<S> {
    sequence: Option<S>,
    tokens: Vec<TokenId>,
}

impl<S> Kept<S> {
    pub(crate) fn none() -> Self {
        Self { sequence: None, tokens: Vec::new() }
    }

    /// The sequence and its tokens, which nothing keeps until [`put`](Self::put).
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

    /// Number of tokens whose keys and values are there.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }
}
