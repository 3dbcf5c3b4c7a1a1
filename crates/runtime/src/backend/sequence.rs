//! One sequence of a backend.

use std::ops::ControlFlow;

use ruvllm_text::TokenId;

use crate::error::Result;

/// One sequence: tokens go in, logits come out. What was put in stays until it is cut off.
///
/// Three methods make one; the others are made of them.
pub trait BackendSession: Send {
    /// Tokens in the sequence.
    fn len(&self) -> usize;

    /// True if the sequence has no tokens.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `tokens`, at least one, and returns the logits after the last of them,
    /// `[vocab_size]`.
    ///
    /// # Errors
    /// No tokens, ids that the model does not know, more tokens than fit, and whatever the
    /// computation reports. The sequence may be shorter then, down to empty: [`len`](Self::len)
    /// says it.
    fn forward(&mut self, tokens: &[TokenId]) -> Result<&[f32]>;

    /// Drops the tokens from position `len` on, and as many before it as the backend cannot keep.
    /// Returns the number of tokens left.
    ///
    /// # Errors
    /// Whatever the backend reports.
    fn truncate(&mut self, len: usize) -> Result<usize>;

    /// Appends `tokens`, at least one, in passes of at most `chunk`, and returns the logits after
    /// the last of them. `go_on` is asked before each pass; a `Break` gives `None` and leaves the
    /// sequence where it is.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    fn prefill(
        &mut self,
        tokens: &[TokenId],
        chunk: usize,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<&[f32]>> {
        let mut rest = tokens;
        loop {
            if go_on().is_break() {
                return Ok(None);
            }
            let (pass, later) = rest.split_at(rest.len().min(chunk.max(1)));
            if later.is_empty() {
                return self.forward(pass).map(Some);
            }
            self.forward(pass)?;
            rest = later;
        }
    }

    /// Appends `prompt`, at least one token, then decodes greedily up to `n` tokens, which are
    /// passed to `on_token` in their order; `Break` ends it. The sequence then ends before the last
    /// token that was passed.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    fn greedy(
        &mut self,
        prompt: &[TokenId],
        n: usize,
        on_token: &mut dyn FnMut(TokenId) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut token = largest(self.forward(prompt)?);
        for step in 1..=n {
            if on_token(token).is_break() || step == n {
                break;
            }
            token = largest(self.forward(&[token])?);
        }
        Ok(())
    }
}

/// Index of the largest logit, the first among equals.
fn largest(logits: &[f32]) -> TokenId {
    let best = (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
    best as TokenId
}

/// Length of the common prefix of `present` and `prompt`, whose last token is left out.
pub(crate) fn common_prefix_len(present: &[TokenId], prompt: &[TokenId]) -> usize {
    let comparable = &prompt[..prompt.len().saturating_sub(1)];
    present.iter().zip(comparable).take_while(|(a, b)| a == b).count()
}
