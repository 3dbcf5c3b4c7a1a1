//! Windows of a measured text.

use std::ops::ControlFlow;

use ruvllm_text::TokenId;

use crate::error::{Error, Result};

/// Consecutive windows of a text, without overlap. Each starts from an empty KV cache; its first id
/// is not scored, and a partial last window is left out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Windows<'t> {
    tokens: &'t [TokenId],
    context: usize,
}

/// Ids of a window that are computed in one pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScoredPass<'t> {
    /// Position of the first input in its window; 0 asks for an empty cache.
    pub(crate) start: usize,
    /// Position of the first input in the text.
    pub(crate) position: usize,
    pub(crate) inputs: &'t [TokenId],
    /// Id that follows each input.
    pub(crate) targets: &'t [TokenId],
}

impl<'t> Windows<'t> {
    /// Windows of `context` ids over the first `limit` of `tokens`.
    ///
    /// # Errors
    /// [`Error::WindowTooShort`], [`Error::TextTooShort`].
    pub(crate) fn new(tokens: &'t [TokenId], context: usize, limit: Option<usize>) -> Result<Self> {
        Ok(Self { tokens: check_window(tokens, context, limit)?, context })
    }

    /// Ids of the text, after the limit.
    pub(crate) fn tokens(&self) -> &'t [TokenId] {
        self.tokens
    }

    /// Calls `score` with passes of at most `rows` inputs, in the order of the text, and `progress`
    /// before each with the number of processed ids and their total. Returns false if a `Break`
    /// ended the measurement.
    ///
    /// # Errors
    /// Errors of `score`.
    pub(crate) fn score(
        &self,
        rows: usize,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
        score: &mut dyn FnMut(ScoredPass<'t>) -> Result<()>,
    ) -> Result<bool> {
        let windows = self.tokens.chunks_exact(self.context);
        let total = windows.len() * self.context;
        for (index, window) in windows.enumerate() {
            // Position i predicts id i + 1, so the last id is never an input.
            let (inputs, targets) = (&window[..self.context - 1], &window[1..]);
            let mut start = 0;
            for (inputs, targets) in inputs.chunks(rows).zip(targets.chunks(rows)) {
                let position = index * self.context + start;
                if progress(position, total).is_break() {
                    return Ok(false);
                }
                score(ScoredPass { start, position, inputs, targets })?;
                start += inputs.len();
            }
        }
        // The measurement is complete: a `Break` changes nothing.
        let _ = progress(total, total);
        Ok(true)
    }
}

/// First `limit` of `tokens`; an error if they do not fill a window of `context`.
pub(crate) fn check_window(tokens: &[TokenId], context: usize, limit: Option<usize>) -> Result<&[TokenId]> {
    let tokens = &tokens[..tokens.len().min(limit.unwrap_or(usize::MAX))];
    if context < 2 {
        return Err(Error::WindowTooShort { context });
    }
    if tokens.len() < context {
        return Err(Error::TextTooShort { tokens: tokens.len(), context });
    }
    Ok(tokens)
}
