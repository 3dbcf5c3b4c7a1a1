//! One sequence of a backend.

use std::ops::ControlFlow;

use ruvllm_text::TokenId;

use crate::error::Result;

/// One sequence of a backend: appends tokens, returns logits, can be truncated.
///
/// Required methods: [`len`](Self::len), [`forward`](Self::forward), [`truncate`](Self::truncate);
/// the others have default implementations.
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
    /// No tokens, ids outside of the vocabulary, more tokens than fit, and errors of the
    /// computation. The sequence may be shorter afterwards, down to empty: see [`len`](Self::len).
    fn forward(&mut self, tokens: &[TokenId]) -> Result<&[f32]>;

    /// Appends `tokens`, at least one, and returns the logits after each of them, `[tokens,
    /// vocab_size]`, in memory of the sequence or in `rows`. By default the tokens are computed one
    /// at a time, as in decode.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    fn forward_all<'a>(&'a mut self, tokens: &[TokenId], rows: &'a mut Vec<f32>) -> Result<&'a [f32]> {
        rows.clear();
        for token in tokens {
            rows.extend_from_slice(self.forward(std::slice::from_ref(token))?);
        }
        Ok(rows)
    }

    /// Drops the tokens from position `len` on, and earlier ones that the backend cannot keep.
    /// Returns the number of tokens left.
    ///
    /// # Errors
    /// Errors of the backend.
    fn truncate(&mut self, len: usize) -> Result<usize>;

    /// Appends `tokens`, at least one, in passes of at most `chunk`, and returns the logits after
    /// the last of them. `go_on` is called before each pass; a `Break` returns `None`, and the
    /// tokens computed so far stay.
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

    /// As [`prefill`](Self::prefill), with final hidden states beside the logits, `[states,
    /// model_dim]`: those of the last tokens, `most` at most, that the last pass has at hand. By
    /// default none.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    fn prefill_with_states(
        &mut self,
        tokens: &[TokenId],
        chunk: usize,
        _most: usize,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<(&[f32], &[f32])>> {
        Ok(self.prefill(tokens, chunk, go_on)?.map(|logits| (logits, &[][..])))
    }

    /// Appends `prompt`, at least one token, then decodes up to `n` tokens greedily. Each is passed
    /// to `on_token`; `Break` ends it. The last token passed is not appended to the sequence.
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

/// Index of the largest logit; ties to the lowest index.
fn largest(logits: &[f32]) -> TokenId {
    let best = (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
    best as TokenId
}

/// Length of the common prefix of `present` and `prompt` without its last token.
pub(crate) fn common_prefix_len(present: &[TokenId], prompt: &[TokenId]) -> usize {
    let comparable = &prompt[..prompt.len().saturating_sub(1)];
    present.iter().zip(comparable).take_while(|(a, b)| a == b).count()
}
