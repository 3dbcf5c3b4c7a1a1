//! Several simulated engines behind a router.
//!
//! [`simulate_fleet`] sends each request of a trace to one of [`Fleet::workers`] engines, each with
//! a scheduler, a KV cache and a prefix cache of its own, as [`simulate`](super::simulate) runs
//! one. A router takes time for each selection, and learns of stored and evicted blocks after a
//! delay.
//!
//! The KV-aware policy is that of NVIDIA Dynamo 1.6 with its default settings: see
//! [`Policy::KvAware`].
//!
//! # Simplifications
//! Messages between router and engines take no time; the router learns of first tokens and ends of
//! requests at once, as they pass it. Requests share nothing but one of the trace's prefixes. The
//! duration of a step does not depend on the length of the contexts.

mod bound;
mod report;
mod router;
mod run;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use bound::hit_bound;
pub use report::FleetReport;
pub use run::simulate_fleet;

use super::Setup;

/// Choice of a worker for a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Policy {
    /// The workers in turn.
    RoundRobin,
    /// The worker of the lowest cost in blocks, ties at random:
    ///
    /// `prefill_load_scale * max(0, (active_prefill + prompt) / block - overlap_credit * overlap) +
    /// active_blocks + additional_blocks`
    ///
    /// `active_prefill`: uncached prompt tokens of requests without a first token that this router
    /// sent there; `prompt`: tokens of this prompt; `overlap`: leading blocks that the worker has;
    /// `active_blocks`: different blocks of the prompts of unfinished requests that this router
    /// sent there; `additional_blocks`: blocks of this prompt that are not among them.
    ///
    /// # Source
    /// `DefaultWorkerScorer::worker_logit` and `DefaultWorkerPicker` at temperature 0 in the crate
    /// `dynamo-kv-router` 1.6.1, without lower tiers, shared caches, taints and the decay of the
    /// credit, which are off by default.
    KvAware {
        /// `overlap_score_credit`; 1 by default.
        overlap_credit: f64,
        /// `prefill_load_scale`; 1 by default.
        prefill_load_scale: f64,
    },
}

impl Policy {
    /// The KV-aware policy with the default settings of its source.
    pub const KV_AWARE: Self = Self::KvAware { overlap_credit: 1.0, prefill_load_scale: 1.0 };
}

/// Arrivals of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loop {
    /// At the times of the trace.
    Open,
    /// A fixed number at a time; the next one follows when one ends.
    Closed {
        /// Unfinished requests at a time.
        concurrency: usize,
    },
}

/// Engines behind routers.
#[derive(Debug, Clone, PartialEq)]
pub struct Fleet {
    /// Machine and KV cache of each engine; the traffic of all together.
    pub setup: Setup,
    /// Number of engines, at least 1.
    pub workers: usize,
    /// Choice of a worker.
    pub policy: Policy,
    /// Number of routers, at least 1. Requests go to them in turn; each knows its own requests
    /// alone, and the blocks of all workers.
    pub routers: usize,
    /// Time of a router per request, in which it does nothing else.
    pub selection: Duration,
    /// Time between the end of a step and the arrival of its events at the routers.
    pub event_delay: Duration,
    /// Time of a router's index per block that is stored or evicted. Events wait for each other.
    pub event: Duration,
    /// Arrivals of requests.
    pub arrivals: Loop,
    /// First requests, which fill the caches and are not measured.
    pub warm_up: usize,
}
