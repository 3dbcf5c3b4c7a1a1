//! Results of a simulation.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::request::TenantId;
use crate::statistics::Statistics;

/// Durations, of which percentiles are asked.
///
/// A histogram with buckets of 1 % of their value: a simulation measures millions.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Latencies {
    counts: Vec<u64>,
    total: u64,
    sum: Duration,
}

/// Shortest duration that is told from zero, in seconds.
const SHORTEST: f64 = 1e-6;
/// Logarithm of the ratio of neighbouring buckets.
const STEP: f64 = 0.01;

impl Latencies {
    pub(super) fn add(&mut self, duration: Duration) {
        let bucket = (duration.as_secs_f64() / SHORTEST).max(1.0).ln() / STEP;
        let bucket = bucket.round() as usize;
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.total += 1;
        self.sum += duration;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.total += other.total;
        self.sum += other.sum;
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.total
    }

    /// Mean; 0 if there are none.
    pub fn mean(&self) -> Duration {
        self.sum.div_f64(self.total.max(1) as f64)
    }

    /// Duration that a `share` (0 to 1) of all does not exceed, to 0.5 %; 0 if there are none.
    pub fn percentile(&self, share: f64) -> Duration {
        let rank = (share * self.total as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        let seconds = bucket.map_or(0.0, |bucket| SHORTEST * (STEP * bucket as f64).exp());
        Duration::from_secs_f64(seconds)
    }
}

/// Requests of one tenant.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TenantReport {
    /// Time from submission to the first token.
    pub time_to_first_token: Latencies,
    /// Times between the tokens of a request.
    pub inter_token: Latencies,
    /// Requests that generated all their tokens.
    pub completed: u64,
    /// Requests that were cancelled or expired.
    pub abandoned: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Tokens computed for it.
    pub tokens: u64,
}

/// Results of a simulation.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Report {
    /// Tenant by tenant.
    pub tenants: BTreeMap<TenantId, TenantReport>,
    /// Simulated time from the first arrival to the last token.
    pub duration: Duration,
    /// Steps.
    pub steps: u64,
    /// Sum of the durations of steps.
    pub busy: Duration,
    /// Steps with decodes that took longer than the latency target, and those with decodes.
    pub late_steps: (u64, u64),
    /// Counters of the scheduler.
    pub statistics: Statistics,
    /// Tokens of all prompts that were started.
    pub prompt_tokens: u64,
}

impl Report {
    /// All tenants together.
    pub fn total(&self) -> TenantReport {
        let mut total = TenantReport::default();
        for tenant in self.tenants.values() {
            total.time_to_first_token.merge(&tenant.time_to_first_token);
            total.inter_token.merge(&tenant.inter_token);
            total.completed += tenant.completed;
            total.abandoned += tenant.abandoned;
            total.refused += tenant.refused;
            total.tokens += tenant.tokens;
        }
        total
    }

    /// Completed requests per second.
    pub fn throughput(&self) -> f64 {
        self.total().completed as f64 / self.duration.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Share of prompt tokens that came from the prefix cache, those after preemptions included.
    pub fn hit_rate(&self) -> f64 {
        self.statistics.cached as f64 / self.prompt_tokens.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_bucket() {
        let mut latencies = Latencies::default();
        (1..=1000).for_each(|ms| latencies.add(Duration::from_millis(ms)));
        for share in [0.01, 0.5, 0.95, 0.99, 1.0] {
            let found = latencies.percentile(share).as_secs_f64();
            assert!((found / share - 1.0).abs() < 0.011, "{share}: {found}");
        }
        let mut twice = latencies.clone();
        twice.merge(&latencies);
        assert_eq!((twice.count(), twice.percentile(0.5)), (2000, latencies.percentile(0.5)));
        assert_eq!(Latencies::default().percentile(0.5), Duration::ZERO);
        assert_eq!(
            (twice.mean(), Latencies::default().mean()),
            (Duration::from_micros(500_500), Duration::ZERO)
        );
    }
}
