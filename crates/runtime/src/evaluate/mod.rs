//! Measuring what a model predicts: perplexity of a text, logits of given tokens.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use ruvllm_models::{LogitsRows, TokenId};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::session::Session;

/// Bytes of logits that a perplexity pass may hold: with a vocabulary of 128 k ids, all rows of a 512-token chunk
/// would be a quarter of a gigabyte.
const LOGITS_BYTES: usize = 64 << 20;

/// Rows of logits that a thread takes at a time; a row of 32 k values is about 0.1 ms of work.
const ROWS_PER_TASK: usize = 4;

/// How well a model predicts a text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Perplexity {
    /// `exp(nll)`.
    pub perplexity: f64,
    /// Mean of `-ln p` over the scored tokens, in nats.
    pub nll: f64,
    /// Tokens that were scored.
    pub tokens: usize,
    /// Bytes of keys and values at the end of the last window, everything counted, per token of it.
    pub kv_bytes_per_token: f64,
}

impl Engine {
    /// Perplexity of a text given as token ids, of which the first `limit` are used.
    ///
    /// The ids are cut into consecutive windows of `context` ids without overlap. Each window starts at position 0
    /// with an empty cache, and every id but its first is scored. Ids that do not fill a last window are left out.
    ///
    /// `progress` gets the ids that are done and the ids in all; `Break` ends the measurement.
    ///
    /// # Numerics
    /// Log-probabilities are f64 from f32 logits, summed in f64.
    ///
    /// # Errors
    /// [`Error::WindowTooShort`], [`Error::TextTooShort`], [`Error::ContextTooLong`], [`Error::TokenOutOfRange`],
    /// [`Error::Cancelled`] after a `Break`; [`Error::Cache`] and [`Error::Forward`] from the run.
    pub fn perplexity(
        &self,
        tokens: &[TokenId],
        context: usize,
        limit: Option<usize>,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Perplexity> {
        let tokens = &tokens[..tokens.len().min(limit.unwrap_or(usize::MAX))];
        if context < 2 {
            return Err(Error::WindowTooShort { context });
        }
        if tokens.len() < context {
            return Err(Error::TextTooShort { tokens: tokens.len(), context });
        }
        self.check_context("a perplexity window", context)?;
        self.check_tokens(tokens)?;

        let windows = tokens.chunks_exact(context);
        let (n_windows, total) = (windows.len(), windows.len() * context);
        let rows = self.scored_at_once();
        let mut session = Session::new(self, context)?;
        let mut sum = 0.0;
        for (index, window) in windows.enumerate() {
            session.truncate(0)?;
            // Position i predicts id i + 1, so the last id is never an input.
            let (inputs, targets) = (&window[..context - 1], &window[1..]);
            for (inputs, targets) in inputs.chunks(rows).zip(targets.chunks(rows)) {
                if progress(index * context + session.len(), total).is_break() {
                    return Err(Error::Cancelled);
                }
                let logits = session.forward(inputs, LogitsRows::All)?;
                sum = self.add_losses(sum, logits, targets);
            }
        }
        // The measurement is complete: there is nothing left to break off.
        let _ = progress(total, total);
        let scored = n_windows * (context - 1);
        let nll = sum / scored as f64;
        let kv_bytes_per_token = session.kv_bytes() as f64 / session.len() as f64;
        Ok(Perplexity { perplexity: nll.exp(), nll, tokens: scored, kv_bytes_per_token })
    }

    /// Ids in one pass of a perplexity measurement. With tiers only a block: what a pass appends is hot until it ends, and
    /// the measurement should see what generating would.
    fn scored_at_once(&self) -> usize {
        if self.kv.policy().warm.is_some() {
            return self.kv.block_tokens();
        }
        (LOGITS_BYTES / (4 * self.config().vocab_size)).clamp(16, self.options.prefill_chunk.max(16))
    }

    /// Logits at `positions` (in any order, repeats allowed) of a sequence of tokens: `[positions, vocab_size]`.
    ///
    /// # Errors
    /// [`Error::ContextTooLong`], [`Error::TokenOutOfRange`], [`Error::PositionOutOfRange`]; [`Error::Cache`] and
    /// [`Error::Forward`] from the run.
    pub fn logits(&self, tokens: &[TokenId], positions: &[usize]) -> Result<Vec<f32>> {
        self.check_context("the sequence", tokens.len())?;
        self.check_tokens(tokens)?;
        if let Some(&position) = positions.iter().find(|&&position| position >= tokens.len()) {
            return Err(Error::PositionOutOfRange { position, tokens: tokens.len() });
        }
        let Some(&last) = positions.iter().max() else { return Ok(Vec::new()) };

        let vocab_size = self.config().vocab_size;
        let mut wanted = positions.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        let mut out = vec![0.0; positions.len() * vocab_size];
        let mut session = Session::new(self, last + 1)?;
        for inputs in tokens[..=last].chunks(self.options.prefill_chunk) {
            let start = session.len();
            let first = wanted.partition_point(|&position| position < start);
            let end = wanted.partition_point(|&position| position < start + inputs.len());
            let rows: Vec<usize> = wanted[first..end].iter().map(|position| position - start).collect();
            let logits = session.forward(inputs, LogitsRows::At(&rows))?;
            for (slot, position) in out.chunks_exact_mut(vocab_size).zip(positions) {
                if let Ok(row) = wanted[first..end].binary_search(position) {
                    slot.copy_from_slice(&logits[row * vocab_size..][..vocab_size]);
                }
            }
        }
        Ok(out)
    }

    /// `sum` plus `-ln p` of each of `targets` under its row of logits, `[targets, vocab_size]`.
    fn add_losses(&self, sum: f64, logits: &[f32], targets: &[TokenId]) -> f64 {
        let vocab_size = self.config().vocab_size;
        // The threads share the rows. The sum is taken one by one in the order of the text, so that neither they nor
        // the size of the passes change it.
        let losses: Vec<AtomicU64> = targets.iter().map(|_| AtomicU64::default()).collect();
        self.compute.pool.for_each_chunk(targets.len(), ROWS_PER_TASK, &|rows| {
            for row in rows {
                let logits = &logits[row * vocab_size..][..vocab_size];
                let loss = log_sum_exp(logits) - f64::from(logits[targets[row] as usize]);
                losses[row].store(loss.to_bits(), Ordering::Relaxed);
            }
        });
        losses.into_iter().fold(sum, |sum, loss| sum + f64::from_bits(loss.into_inner()))
    }

    pub(crate) fn check_context(&self, what: &str, tokens: usize) -> Result<()> {
        let model_context = self.config().context_length;
        if tokens > model_context {
            return Err(Error::ContextTooLong { what: what.to_owned(), tokens, model_context });
        }
        Ok(())
    }
}

/// `ln(sum(exp(x)))` in f64, without overflow.
fn log_sum_exp(row: &[f32]) -> f64 {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if !max.is_finite() {
        return f64::from(max);
    }
    let sum: f64 = row.iter().map(|&x| f64::from(x - max).exp()).sum();
    f64::from(max) + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_sum_exp_is_exact_for_known_values_and_does_not_overflow() {
        assert!((log_sum_exp(&[0.0, 0.0]) - 2f64.ln()).abs() < 1e-15);
        assert!((log_sum_exp(&[3e38, 3e38]) - (f64::from(3e38f32) + 2f64.ln())).abs() < 1e22);
        assert_eq!(log_sum_exp(&[f32::NEG_INFINITY, 1.5]), 1.5);
    }
}
