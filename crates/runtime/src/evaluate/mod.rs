//! Evaluation of a model: perplexity, divergence between two runs, logits of given tokens, passkey
//! retrieval.

mod compare;
mod divergence;
mod logits;
mod passkey;
mod perplexity;
mod windows;

use std::sync::atomic::{AtomicU64, Ordering};

use ruvllm_kv_cache::KvPolicy;
use ruvllm_models::ModelConfig;
use ruvllm_text::TokenId;

use crate::engine::Engine;
use crate::error::{Error, Result};

pub use divergence::{KlDivergence, MeanNll};
pub use passkey::{PasskeyOptions, PasskeyResult};
pub use perplexity::Perplexity;
pub(crate) use windows::{Windows, check_window};

/// Maximum bytes of logits of a measurement. With 128 k ids, all rows of a 512-token chunk would
/// take a quarter of a gigabyte.
const LOGITS_BYTES: usize = 64 << 20;

/// Rows of logits per task of a thread; a row of 32 k values takes about 0.1 ms.
const ROWS_PER_TASK: usize = 4;

/// Tokens per pass of a measurement, of a backend with passes of `chunk`. With tiers one block:
/// tokens of a pass stay hot until it ends, and the measurement should read the same tiers as
/// decode.
fn scored_at_once(policy: &KvPolicy, block_tokens: usize, config: &ModelConfig, chunk: usize) -> usize {
    if policy.warm.is_some() {
        return block_tokens;
    }
    (LOGITS_BYTES / (4 * config.vocab_size)).clamp(16, chunk.max(16))
}

/// Rejects a measurement (`what`) that takes more tokens than the model's context.
fn check_model_context(config: &ModelConfig, what: &str, tokens: usize) -> Result<()> {
    let model_context = config.context_length;
    if tokens > model_context {
        return Err(Error::ContextTooLong { what: what.to_owned(), tokens, model_context });
    }
    Ok(())
}

impl Engine {
    /// Tokens per pass of a measurement.
    pub(crate) fn scored_at_once(&self) -> usize {
        let core = self.core();
        scored_at_once(core.kv.policy(), core.kv.block_tokens(), self.config(), core.prefill_chunk)
    }

    /// Adds `-ln p` of each of `targets` under its row of logits, `[targets, vocab_size]`.
    fn add_losses(&self, sum: &mut LossSum, logits: &[f32], targets: &[TokenId]) {
        let vocab_size = self.config().vocab_size;
        // Rows are computed in parallel, but summed in the order of the text, so that the result
        // depends neither on threads nor on the size of passes.
        let losses: Vec<AtomicU64> = targets.iter().map(|_| AtomicU64::default()).collect();
        self.core().compute.pool.for_each_chunk(targets.len(), ROWS_PER_TASK, &|rows| {
            for row in rows {
                let logits = &logits[row * vocab_size..][..vocab_size];
                let loss = log_sum_exp(logits) - f64::from(logits[targets[row] as usize]);
                losses[row].store(loss.to_bits(), Ordering::Relaxed);
            }
        });
        for loss in losses {
            sum.add(f64::from_bits(loss.into_inner()));
        }
    }

    pub(crate) fn check_context(&self, what: &str, tokens: usize) -> Result<()> {
        check_model_context(self.config(), what, tokens)
    }
}

/// Sum of token losses (`-ln p`, in nats) and of their squares.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LossSum {
    pub(crate) tokens: usize,
    sum: f64,
    squares: f64,
}

impl LossSum {
    pub(crate) fn add(&mut self, loss: f64) {
        self.tokens += 1;
        self.sum += loss;
        self.squares += loss * loss;
    }

    /// Mean loss; NaN without losses.
    pub(crate) fn mean(&self) -> f64 {
        self.sum / self.tokens as f64
    }

    /// Standard error of the mean: `s / sqrt(n)` with the sample standard deviation `s`; 0 for
    /// fewer than two losses.
    pub(crate) fn standard_error(&self) -> f64 {
        if self.tokens < 2 {
            return 0.0;
        }
        let n = self.tokens as f64;
        // Rounding may make a variance of 0 slightly negative.
        let variance = ((self.squares - self.sum * self.sum / n) / (n - 1.0)).max(0.0);
        (variance / n).sqrt()
    }
}

/// `ln(sum(exp(x)))` in f64, without overflow.
pub(crate) fn log_sum_exp(row: &[f32]) -> f64 {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if !max.is_finite() {
        return f64::from(max);
    }
    // Differences in f64: rounded to f32, those of two rows would hide a divergence below 1e-6.
    let max = f64::from(max);
    let sum: f64 = row.iter().map(|&x| (f64::from(x) - max).exp()).sum();
    max + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_error_is_that_of_the_mean() {
        let of = |losses: &[f64]| {
            let mut sum = LossSum::default();
            losses.iter().for_each(|&loss| sum.add(loss));
            (sum.mean(), sum.standard_error())
        };
        // The deviations are -1.5, -0.5, 0.5, 1.5: s^2 = 5 / 3.
        let (mean, error) = of(&[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(mean, 2.5);
        assert!((error - (5.0f64 / 3.0 / 4.0).sqrt()).abs() < 1e-15);
        assert_eq!(of(&[3.0]).1, 0.0);
        assert!(of(&[0.1; 7]).1 < 1e-8);
    }

    #[test]
    fn log_sum_exp_is_exact_for_known_values_and_does_not_overflow() {
        assert!((log_sum_exp(&[0.0, 0.0]) - 2f64.ln()).abs() < 1e-15);
        assert!((log_sum_exp(&[3e38, 3e38]) - (f64::from(3e38f32) + 2f64.ln())).abs() < 1e22);
        assert_eq!(log_sum_exp(&[f32::NEG_INFINITY, 1.5]), 1.5);
    }
}
