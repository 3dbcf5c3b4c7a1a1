//! Measurements of an engine's step.

use std::time::Duration;

use crate::error::{Error, Result};

/// State before a step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepStart {
    /// Running sequences.
    pub running: usize,
    /// Waiting requests.
    pub waiting: usize,
}

/// Measurements after a step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepEnd {
    /// Duration of the step.
    pub duration: Duration,
    /// Prefill tokens computed, those computed again after preemptions excluded.
    pub prefill_tokens: usize,
    /// Sequences that decoded.
    pub decode_rows: usize,
    /// Tokens emitted by them.
    pub emitted_tokens: usize,
    /// Tokens drafted for them.
    pub drafted_tokens: usize,
    /// Drafted tokens that were accepted.
    pub accepted_tokens: usize,
    /// Used share of the KV cache, 0 to 1.
    pub kv_pressure: f64,
    /// Tokens of all sequences in the hot, warm and cold tier.
    pub tier_tokens: [usize; 3],
    /// Mean quality, 0 to 1, of the answers that ended with this step, where it is known.
    pub quality: Option<f64>,
}

impl StepEnd {
    pub(super) fn check(&self) -> Result<()> {
        let numbers = [("KV pressure", Some(self.kv_pressure)), ("quality of a step", self.quality)];
        for (what, value) in numbers {
            if let Some(value) = value.filter(|value| !(0.0..=1.0).contains(value)) {
                return Err(Error::Input { what, value, range: "0 to 1" });
            }
        }
        if self.accepted_tokens > self.drafted_tokens {
            let value = self.accepted_tokens as f64;
            return Err(Error::Input { what: "accepted_tokens", value, range: "at most drafted_tokens" });
        }
        Ok(())
    }

    /// Mean time between the tokens of a sequence, in seconds; absent without decodes.
    pub(super) fn token_latency(&self) -> Option<f64> {
        let tokens = self.emitted_tokens as f64 / self.decode_rows.max(1) as f64;
        (self.emitted_tokens > 0).then(|| self.duration.as_secs_f64() / tokens.max(1.0))
    }
}
