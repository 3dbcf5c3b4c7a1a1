//! A request as the scheduler sees it.

use std::time::Duration;

/// Number of a request, chosen by the caller; unique among those that have not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Number of a tenant, chosen by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct TenantId(pub u32);

/// A request: sizes and wishes, no tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Its number.
    pub id: RequestId,
    /// Tenant whose share its tokens are charged to.
    pub tenant: TenantId,
    /// Priority; higher goes first.
    pub priority: i32,
    /// Time at which it is worthless.
    pub deadline: Option<Duration>,
    /// Tokens to compute before the first new one, without a prefix cache.
    pub prompt_tokens: usize,
    /// Largest number of new tokens.
    pub max_new_tokens: usize,
    /// Hash of the prompt's first block of tokens; equal for prompts that may share a prefix.
    pub prefix: Option<u64>,
}

/// A request that is not taken.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// All places in the queue are taken.
    #[error("{waiting} requests wait, which is the limit{}", retry(*retry_after))]
    QueueFull {
        /// Waiting requests.
        waiting: usize,
        /// Time until a place is free at the measured rate; absent before anything was measured.
        retry_after: Option<Duration>,
    },
    /// All places of the tenant in the queue are taken.
    #[error("{waiting} requests of this tenant wait, which is the limit{}", retry(*retry_after))]
    TenantQueueFull {
        /// Waiting requests of the tenant.
        waiting: usize,
        /// As in [`QueueFull`](Self::QueueFull).
        retry_after: Option<Duration>,
    },
    /// The deadline has passed.
    #[error("the deadline passed {late:?} ago")]
    Late {
        /// Time since the deadline.
        late: Duration,
    },
    /// The prompt has no tokens, so that no step would compute logits for it.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// The number belongs to a request that has not finished.
    #[error("request {} has not finished; choose another number", id.0)]
    NumberInUse {
        /// The number.
        id: RequestId,
    },
}

impl Refusal {
    /// Time after which to try again, if that may help and a rate was measured.
    pub fn retry_after(&self) -> Option<Duration> {
        match *self {
            Self::QueueFull { retry_after, .. } | Self::TenantQueueFull { retry_after, .. } => retry_after,
            Self::Late { .. } | Self::EmptyPrompt | Self::NumberInUse { .. } => None,
        }
    }
}

fn retry(after: Option<Duration>) -> String {
    after.map(|after| format!("; try again in {:.1} s", after.as_secs_f64())).unwrap_or_default()
}
