//! Settings that a tuner moves, and those of the tuner.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Settings of the step loop that a [`Tuner`](super::Tuner) moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepSettings {
    /// Newest tokens of a sequence in the hot tier of the KV cache.
    pub hot_tokens: usize,
    /// Tokens behind them in the warm tier; older ones are cold.
    pub warm_tokens: usize,
    /// Largest number of running sequences.
    pub max_batch: usize,
    /// Largest number of prefill tokens in a step.
    pub prefill_chunk: usize,
    /// Drafted tokens per step and sequence; 0 turns speculation off.
    pub draft_tokens: usize,
}

impl StepSettings {
    fn values(&self) -> [(&'static str, usize); 5] {
        [
            ("hot_tokens", self.hot_tokens),
            ("warm_tokens", self.warm_tokens),
            ("max_batch", self.max_batch),
            ("prefill_chunk", self.prefill_chunk),
            ("draft_tokens", self.draft_tokens),
        ]
    }
}

/// Smallest and largest values of [`StepSettings`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Smallest values.
    pub low: StepSettings,
    /// Largest values. Equal ones keep a setting fixed.
    pub high: StepSettings,
}

/// Settings of a [`Tuner`](super::Tuner).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TunerSettings {
    /// Values within which settings move.
    pub bounds: Bounds,
    /// Quality, 0 to 1, below which more tokens become hot.
    pub quality_target: f64,
    /// Quality above the target from which fewer tokens may be hot.
    pub quality_margin: f64,
    /// Loss of value per relative shortfall of quality: a quality 10 % below the target with a
    /// penalty of 4 costs 40 % of the value.
    pub quality_penalty: f64,
    /// KV pressure, 0 to 1, above which memory is released at once.
    pub pressure_high: f64,
    /// KV pressure below which settings that need more memory may be tried.
    pub pressure_low: f64,
    /// Inter-token latency up to which tokens have their full value; it falls with its inverse.
    pub token_latency: Duration,
    /// Value of a prefill token relative to that of an emitted one until both were measured.
    pub prefill_value: f64,
    /// Steps of a window; a block of an alternating trial has a quarter of them.
    pub window: usize,
    /// Pairs of blocks in an alternating trial.
    pub pairs: usize,
    /// Relative gain of the objective for which a change is kept.
    pub min_gain: f64,
    /// Windows without a trial after a change was kept, and the rest of a move after its first
    /// failure; each further failure doubles it.
    pub cool_down: u32,
}

impl TunerSettings {
    /// Default settings within `bounds`.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            quality_target: 0.7,
            quality_margin: 0.05,
            quality_penalty: 4.0,
            pressure_high: 0.9,
            pressure_low: 0.8,
            token_latency: Duration::from_millis(200),
            prefill_value: 0.25,
            window: 48,
            pairs: 4,
            min_gain: 0.02,
            cool_down: 1,
        }
    }

    pub(super) fn check(&self, start: &StepSettings) -> Result<()> {
        let (low, high) = (self.bounds.low.values(), self.bounds.high.values());
        for (((name, value), (_, low)), (_, high)) in start.values().into_iter().zip(low).zip(high) {
            if !(low..=high).contains(&value) {
                return Err(Error::Setting { name, value: value.to_string(), range: "within `bounds`" });
            }
        }
        if self.bounds.low.max_batch == 0 || self.bounds.low.prefill_chunk == 0 {
            let name = "lower bound of max_batch and prefill_chunk";
            return Err(Error::Setting { name, value: "0".into(), range: "above 0" });
        }
        for (name, value, low, high, range) in [
            ("quality_target", self.quality_target, 0.0, 1.0, "0 to 1"),
            ("quality_margin", self.quality_margin, 0.0, 1.0, "0 to 1"),
            ("quality_penalty", self.quality_penalty, 0.0, 1e3, "0 to 1000"),
            ("pressure_high", self.pressure_high, 0.0, 1.0, "0 to 1"),
            ("pressure_low", self.pressure_low, 0.0, self.pressure_high, "0 to pressure_high"),
            ("token_latency", self.token_latency.as_secs_f64(), 1e-6, 1e6, "a microsecond to days"),
            ("prefill_value", self.prefill_value, 0.0, 1.0, "0 to 1"),
            ("window", self.window as f64, 8.0, 1e5, "8 to 100000"),
            ("pairs", self.pairs as f64, 2.0, 100.0, "2 to 100"),
            ("min_gain", self.min_gain, 0.0, 1.0, "0 to 1"),
        ] {
            if !(low..=high).contains(&value) {
                return Err(Error::Setting { name, value: value.to_string(), range });
            }
        }
        Ok(())
    }
}
