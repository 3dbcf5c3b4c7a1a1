//! Measuring what a model predicts: perplexity of a text, logits of given tokens, retrieval of a
//! key from a long text.

mod logits;
mod passkey;
mod perplexity;

use std::sync::atomic::{AtomicU64, Ordering};

use ruvllm_text::TokenId;

use crate::engine::Engine;
use crate::error::{Error, Result};

pub use passkey::{PasskeyOptions, PasskeyResult};
pub use perplexity::Perplexity;
pub(crate) use perplexity::check_window;

/// Bytes of logits that a measurement may hold: with a vocabulary of 128 k ids, all rows of a
/// 512-token chunk would be a quarter of a gigabyte.
const LOGITS_BYTES: usize = 64 << 20;

/// Rows of logits that a thread takes at a time; a row of 32 k values is about 0.1 ms of work.
const ROWS_PER_TASK: usize = 4;

impl Engine {
    /// Ids in one pass of a measurement. With tiers only a block: what a pass appends is hot until
    /// it ends, and the measurement should see what generating would.
    fn scored_at_once(&self) -> usize {
        if self.kv.policy().warm.is_some() {
            return self.kv.block_tokens();
        }
        (LOGITS_BYTES / (4 * self.config().vocab_size)).clamp(16, self.prefill_chunk.max(16))
    }

    /// `sum` plus `-ln p` of each of `targets` under its row of logits, `[targets, vocab_size]`.
    fn add_losses(&self, sum: f64, logits: &[f32], targets: &[TokenId]) -> f64 {
        let vocab_size = self.config().vocab_size;
        // The threads share the rows. The sum is taken one by one in the order of the text, so that
        // neither they nor the size of the passes change it.
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
pub(crate) fn log_sum_exp(row: &[f32]) -> f64 {
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
