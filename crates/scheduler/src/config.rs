//! Settings of a scheduler.

use std::time::Duration;

/// Settings of a [`Scheduler`](crate::Scheduler).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Largest number of sequences in a step.
    pub max_running: usize,
    /// Largest number of tokens in a step, prefill and decode together.
    pub step_tokens: usize,
    /// Target of the inter-token latency: prefill chunks beside decoding sequences are as short as
    /// measured step times ask for.
    pub token_latency: Duration,
    /// Largest number of waiting requests.
    pub max_waiting: usize,
    /// Largest number of waiting requests of one tenant.
    pub max_waiting_per_tenant: usize,
    /// Waiting time that raises a request's priority by one level.
    pub ageing: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_running: 64,
            step_tokens: 512,
            token_latency: Duration::from_millis(200),
            max_waiting: 4096,
            max_waiting_per_tenant: 4096,
            ageing: Duration::from_secs(2),
        }
    }
}
