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
    /// Waiting time that raises a request's priority by one level; the patience of every rule that
    /// lets others pass a request. At most a year.
    pub ageing: Duration,
    /// Largest priority, and with a minus sign the lowest; others count as these.
    pub max_priority: i32,
    /// Tokens of a block of the KV cache: the least that is kept free for a request's new tokens.
    pub block_tokens: usize,
    /// Prefill tokens in each step while a prompt is unfinished, also where the latency target
    /// leaves no room.
    pub min_prefill_tokens: usize,
    /// Shares per tenant; without them the order is that of priority and age alone.
    pub fair_shares: bool,
    /// Tokens of a tenant of weight 1 in a round of deficit round robin.
    pub quantum_tokens: usize,
    /// Unused share that a tenant of weight 1 keeps for later, in tokens. A prompt of this length
    /// is prefilled at full speed beside a tenant that has used its share.
    pub burst_tokens: usize,
    /// Share of places and of KV cache that is kept free for tenants below their share while
    /// several tenants are known, 0 to 1.
    pub headroom: f64,
    /// Time without requests after which a tenant is forgotten.
    pub tenant_memory: Duration,
    /// Order by common prefixes: a request waits for the prefill that it can share, and requests
    /// that share a prefix with running ones go together.
    pub prefix_ordering: bool,
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
            max_priority: 8,
            block_tokens: 32,
            min_prefill_tokens: 32,
            fair_shares: true,
            quantum_tokens: 256,
            burst_tokens: 16_384,
            headroom: 0.125,
            tenant_memory: Duration::from_secs(60),
            prefix_ordering: true,
        }
    }
}

impl Config {
    /// These settings with every value in its range.
    pub(crate) fn bounded(mut self) -> Self {
        self.max_running = self.max_running.max(1);
        self.step_tokens = self.step_tokens.max(1);
        self.ageing = self.ageing.min(Duration::from_secs(365 * 24 * 3600));
        self.max_priority = self.max_priority.clamp(0, 100);
        self.block_tokens = self.block_tokens.max(1);
        self.min_prefill_tokens = self.min_prefill_tokens.clamp(1, self.step_tokens);
        self.quantum_tokens = self.quantum_tokens.max(1);
        self.headroom = if self.headroom.is_finite() { self.headroom.clamp(0.0, 1.0) } else { 0.0 };
        self
    }
}
