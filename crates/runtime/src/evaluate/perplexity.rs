//! Perplexity of a model on a text.

use std::ops::ControlFlow;

use ruvllm_models::LogitsRows;
use ruvllm_text::TokenId;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::evaluate::LossSum;
use crate::evaluate::windows::Windows;
use crate::session::Session;

/// Perplexity of a model on a text.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Perplexity {
    /// `exp(nll)`.
    pub perplexity: f64,
    /// Mean of `-ln p` over the scored tokens, in nats.
    pub nll: f64,
    /// Standard error of `nll`. Computed as `s / sqrt(n)` with the standard deviation `s` of `-ln
    /// p` over the `n` scored tokens, as if these were independent.
    pub nll_error: f64,
    /// Scored tokens.
    pub tokens: usize,
    /// KV-cache bytes per token at the end of the last window.
    pub kv_bytes_per_token: f64,
    /// False if the caller ended the measurement; the other fields cover the tokens until then.
    pub complete: bool,
}

impl Perplexity {
    /// Result from the summed losses.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if no token was scored.
    pub(crate) fn new(sum: &LossSum, kv_bytes_per_token: f64, complete: bool) -> Result<Self> {
        if sum.tokens == 0 {
            return Err(Error::Cancelled);
        }
        let (nll, nll_error) = (sum.mean(), sum.standard_error());
        Ok(Self { perplexity: nll.exp(), nll, nll_error, tokens: sum.tokens, kv_bytes_per_token, complete })
    }

    /// Standard error of the perplexity, to first order: `perplexity * nll_error`.
    pub fn perplexity_error(&self) -> f64 {
        self.perplexity * self.nll_error
    }
}

impl Engine {
    /// Perplexity of a text given as token ids; only the first `limit` are used.
    ///
    /// The ids are cut into consecutive windows of `context` ids without overlap. Each window
    /// starts at position 0 with an empty KV cache, and every id but its first is scored. A partial
    /// last window is left out.
    ///
    /// `progress` gets the number of processed ids and their total; `Break` ends the measurement
    /// with the result so far.
    ///
    /// # Numerics
    /// Log-probabilities are f64 from f32 logits, summed in f64.
    ///
    /// # Errors
    /// [`Error::WindowTooShort`], [`Error::TextTooShort`], [`Error::ContextTooLong`],
    /// [`Error::TokenOutOfRange`], [`Error::Cancelled`] after a `Break` before the first result;
    /// [`Error::Cache`] and [`Error::Forward`] from the run.
    pub fn perplexity(
        &self,
        tokens: &[TokenId],
        context: usize,
        limit: Option<usize>,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Perplexity> {
        let windows = Windows::new(tokens, context, limit)?;
        self.check_context("a perplexity window", context)?;
        self.check_tokens(windows.tokens())?;

        let mut session = Session::new(self, context)?;
        let (mut sum, mut kv_bytes_per_token) = (LossSum::default(), 0.0);
        let complete = windows.score(self.scored_at_once(), progress, &mut |pass| {
            if pass.start == 0 {
                session.truncate(0)?;
            }
            let logits = session.forward(pass.inputs, LogitsRows::All)?;
            self.add_losses(&mut sum, logits, pass.targets);
            kv_bytes_per_token = session.kv_bytes() as f64 / session.len() as f64;
            Ok(())
        })?;
        Perplexity::new(&sum, kv_bytes_per_token, complete)
    }
}
