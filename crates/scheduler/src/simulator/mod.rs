//! A simulated machine that runs the step loop over a trace of requests.
//!
//! [`simulate`] drives a [`Scheduler`](crate::Scheduler) as an engine does: it submits the requests
//! of a trace, keeps a KV cache of blocks with a prefix cache, preempts when blocks are short, and
//! takes the duration of each step from a [`Machine`]. The result depends on settings and seed
//! alone.
//!
//! # Invariants
//! A run ends with a [`Violation`] if one of these does not hold:
//! - a step has at most [`Config::step_tokens`](crate::Config::step_tokens), and each request at
//!   most once; without decodes it is full while a prompt has tokens left
//! - no step is empty while requests wait or run
//! - after preemptions no more blocks are in use than there are
//! - each request that was started completes, is cancelled or expires
//! - each completed request had each of its tokens but the last computed or found in the cache;
//!   what was computed more than once is counted
//! - a request is started before its tenant's share of all computed tokens reaches the tokens of
//!   its tenant that were ahead of it, plus a constant ([`Violation::Starved`])

pub mod fleet;
mod instance;
mod memory;
mod random;
mod report;
mod run;
mod traffic;

use std::time::Duration;

pub use report::{Latencies, Report, TenantReport};
pub use run::simulate;
pub use traffic::{Arrival, Arrivals, Lengths, Prefixes, TenantTraffic, trace};

use crate::request::RequestId;

/// Duration of steps: `step + prefill * tokens + decode * rows`, times noise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    /// Time of a step without tokens.
    pub step: Duration,
    /// Time per prefill token.
    pub prefill: Duration,
    /// Time per decoding request.
    pub decode: Duration,
    /// Standard deviation of the duration's logarithm.
    pub noise: f64,
    /// Share of steps that take ten times as long.
    pub outliers: f64,
}

impl Default for Machine {
    /// A CPU server and a model of about one billion weights: 12 ms per step, 0.5 ms per prefill
    /// token, 0.8 ms per decode.
    fn default() -> Self {
        Self {
            step: Duration::from_millis(12),
            prefill: Duration::from_micros(500),
            decode: Duration::from_micros(800),
            noise: 0.03,
            outliers: 0.0005,
        }
    }
}

/// A simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// Duration of steps.
    pub machine: Machine,
    /// Requests over time.
    pub traffic: Vec<TenantTraffic>,
    /// Number of requests, of all tenants together.
    pub requests: usize,
    /// Tokens of KV cache.
    pub cache_tokens: usize,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A step has more tokens than it may.
    #[error("a step has {tokens} tokens of {budget}")]
    Budget {
        /// Its tokens.
        tokens: usize,
        /// Largest number.
        budget: usize,
    },
    /// A step names a request twice, one that does not run, or more tokens than it has.
    #[error("a step has no such work for request {}", id.0)]
    Work {
        /// The request.
        id: RequestId,
    },
    /// A step is shorter than it could be.
    #[error("{waiting} requests wait, {running} run, and a step has {tokens} tokens")]
    Idle {
        /// Waiting requests.
        waiting: usize,
        /// Running requests.
        running: usize,
        /// Tokens of the step.
        tokens: usize,
    },
    /// More blocks are in use than there are.
    #[error("more blocks of KV cache are in use than there are")]
    Capacity,
    /// A request needs more than the whole cache.
    #[error("request {} does not fit into the KV cache alone", id.0)]
    TooLarge {
        /// The request.
        id: RequestId,
    },
    /// A request waited for more tokens of others than the bound.
    #[error("request {} waited for {tokens} tokens, of at most {bound}", id.0)]
    Starved {
        /// The request.
        id: RequestId,
        /// Tokens computed between its submission and its start.
        tokens: usize,
        /// Largest number. With `w` the share of its tenant's weight in all weights, it is
        /// `(ahead + one KV cache + the longest outputs of a full step + the bursts of all tenants)
        /// / w` plus what the machine computes in the time of `2 + 2 * max_priority` levels of
        /// ageing.
        bound: usize,
    },
    /// Tokens computed differ from tokens needed.
    #[error("{counted} tokens are counted, {computed} were computed")]
    Tokens {
        /// Tokens that the counters have.
        counted: usize,
        /// Tokens that were computed.
        computed: usize,
    },
    /// A request of a fleet did not end exactly once.
    #[error("{requests} requests were sent to a fleet, {ended} have ended")]
    Lost {
        /// Requests of the trace.
        requests: usize,
        /// Requests that ended.
        ended: usize,
    },
}
