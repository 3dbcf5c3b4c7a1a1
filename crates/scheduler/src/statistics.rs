//! Counters of a scheduler.

use std::time::Duration;

/// Events and tokens since the scheduler was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Requests taken into the queue.
    pub submitted: u64,
    /// Requests refused because the queue was full.
    pub refused_queue_full: u64,
    /// Requests refused because their tenant's part of the queue was full.
    pub refused_tenant_queue_full: u64,
    /// Requests refused because their deadline had passed.
    pub refused_late: u64,
    /// Requests refused because they were malformed: no token, or a number in use.
    pub refused_malformed: u64,
    /// Requests started; one that is started again after a preemption counts again.
    pub admitted: u64,
    /// Running requests put back into the queue.
    pub preempted: u64,
    /// Requests removed at their deadline.
    pub expired: u64,
    /// Requests removed otherwise: finished or cancelled.
    pub finished: u64,
    /// Requests that waited for the prefill of a prefix of theirs.
    pub held: u64,
    /// Prompt tokens computed for the first time.
    pub prefilled: u64,
    /// Tokens computed after the prompt.
    pub decoded: u64,
    /// Tokens computed again after a preemption.
    pub recomputed: u64,
    /// Tokens found in the prefix cache.
    pub cached: u64,
    /// Waiting time of all requests that were started.
    pub waited: Duration,
    /// Longest wait of a request that was started.
    pub longest_wait: Duration,
}
