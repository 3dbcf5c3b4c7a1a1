//! Measured rates of service, and estimates made from them.

use std::time::Duration;

/// Part of the past that each step keeps.
const MEMORY: f64 = 0.99;
/// Part of the past that each finished request keeps.
const OUTPUT_MEMORY: f64 = 0.95;
/// Part of the permitted output that requests are expected to use before one has finished.
const FIRST_OUTPUT_SHARE: f64 = 0.25;

/// Tokens per second, and the part of the permitted output that requests use.
#[derive(Debug, Clone)]
pub(crate) struct Rates {
    tokens: f64,
    seconds: f64,
    output_share: f64,
}

impl Rates {
    pub(crate) fn new() -> Self {
        Self { tokens: 0.0, seconds: 0.0, output_share: FIRST_OUTPUT_SHARE }
    }

    /// Learns from a step.
    pub(crate) fn served(&mut self, tokens: usize, duration: Duration) {
        self.tokens = self.tokens * MEMORY + tokens as f64;
        self.seconds = self.seconds * MEMORY + duration.as_secs_f64();
    }

    /// Learns from a request that ended after `generated` of `limit` tokens.
    pub(crate) fn ended(&mut self, generated: usize, limit: usize) {
        if generated > 0 && limit > 0 {
            let share = (generated as f64 / limit as f64).min(1.0);
            self.output_share = self.output_share * OUTPUT_MEMORY + share * (1.0 - OUTPUT_MEMORY);
        }
    }

    /// Memory was short: outputs are longer than expected.
    pub(crate) fn memory_was_short(&mut self) {
        self.output_share = (self.output_share * 1.1).min(1.0);
    }

    /// New tokens that a request is expected to generate of `left` that it may.
    ///
    /// The mean share of finished requests: the sum over the running ones is what has to fit, and
    /// it is close to its mean. Less leads to preemptions, more leaves memory idle.
    pub(crate) fn expected_output(&self, left: usize) -> usize {
        (left as f64 * self.output_share).ceil() as usize
    }

    /// Time to serve `tokens`; absent before anything was measured.
    pub(crate) fn time_for(&self, tokens: f64) -> Option<Duration> {
        let seconds = tokens * self.seconds / self.tokens;
        (self.tokens > 0.0).then(|| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }
}
