//! Results of a fleet.

use std::time::Duration;

use crate::simulator::report::Latencies;

/// Results of a fleet, of the requests behind the warm-up.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct FleetReport {
    /// Time from arrival at the router to the first token.
    pub time_to_first_token: Latencies,
    /// Time from arrival at the router to the end of the selection.
    pub routing: Latencies,
    /// Time from the end of a step to its blocks in the router's index.
    pub event_lag: Latencies,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Prompt tokens served from a prefix cache.
    pub cached_tokens: u64,
    /// Requests that ended between the first and the last arrival.
    pub ended: u64,
    /// Time between the first and the last arrival.
    pub window: Duration,
    /// Time in steps that ended between the first and the last arrival, worker by worker.
    pub busy: Vec<Duration>,
    /// Requests, worker by worker.
    pub requests: Vec<u64>,
    /// Blocks that entered a prefix cache, and those that left one, between these arrivals.
    pub block_events: (u64, u64),
}

impl FleetReport {
    /// Share of prompt tokens that came from a prefix cache.
    pub fn hit_rate(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64
    }

    /// Requests that ended per second.
    pub fn throughput(&self) -> f64 {
        self.ended as f64 / self.window.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Share of the time in steps, mean of all workers.
    pub fn utilization(&self) -> f64 {
        self.mean_busy() / self.window.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Time in steps of the busiest worker over the mean.
    pub fn imbalance(&self) -> f64 {
        let most = self.busy.iter().max().copied().unwrap_or_default().as_secs_f64();
        most / self.mean_busy().max(f64::MIN_POSITIVE)
    }

    /// Blocks per second that the workers report.
    pub fn event_rate(&self) -> f64 {
        let (stored, evicted) = self.block_events;
        (stored + evicted) as f64 / self.window.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    fn mean_busy(&self) -> f64 {
        let sum: f64 = self.busy.iter().map(Duration::as_secs_f64).sum();
        sum / self.busy.len().max(1) as f64
    }
}
