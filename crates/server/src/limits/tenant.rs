//! Limits of one tenant, and permits of admitted requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thiserror::Error;

use super::bucket::{Bucket, BucketState};
use super::duration::short;
use super::load::{Load, Place};
use crate::config::{MEMORY_SIMILARITY, Tenant};

/// Time after which a request that found no free place may be sent again.
const RETRY: Duration = Duration::from_secs(1);

/// Limits of a tenant.
#[derive(Debug)]
pub(crate) struct TenantLimits {
    load: Arc<Load>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
    lessons: Option<Bucket>,
    concurrent: Option<u32>,
    kv_share: Option<f64>,
    learns: bool,
    /// Smallest similarity of lessons in prompts; `None` without memory.
    memory: Option<f32>,
    running: u32,
}

/// Reason why a request is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum Limited {
    /// The tenant's requests per minute are used up.
    #[error("rate limit of {limit} requests per minute reached; send the request again in {}", short(*retry_after))]
    Requests {
        /// Requests per minute.
        limit: u64,
        /// Time until the next one is admitted.
        retry_after: Duration,
    },
    /// The tenant's tokens per minute are used up.
    #[error("rate limit of {limit} tokens per minute reached; send the request again in {}", short(*retry_after))]
    Tokens {
        /// Tokens per minute.
        limit: u64,
        /// Time until the next request is admitted.
        retry_after: Duration,
    },
    /// The tenant's lessons per minute are used up.
    #[error("rate limit of {limit} lessons per minute reached; send the feedback again in {}", short(*retry_after))]
    Lessons {
        /// Lessons per minute.
        limit: u64,
        /// Time until the next one is admitted.
        retry_after: Duration,
    },
    /// The tenant has as many requests as it may have at once.
    #[error("{limit} requests of this tenant are running, which is its limit; send the request again later")]
    Concurrency {
        /// Requests at once.
        limit: u32,
    },
    /// The server has as many requests as it takes.
    #[error("the server is busy with {limit} requests; send the request again later")]
    Overloaded {
        /// Requests at once.
        limit: usize,
    },
}

impl Limited {
    /// Time after which the request may be sent again.
    pub(crate) fn retry_after(&self) -> Duration {
        match *self {
            Self::Requests { retry_after, .. }
            | Self::Tokens { retry_after, .. }
            | Self::Lessons { retry_after, .. } => retry_after,
            Self::Concurrency { .. } | Self::Overloaded { .. } => RETRY,
        }
    }
}

/// State of a tenant's buckets; `None` for what is not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LimitState {
    /// Requests per minute.
    pub(crate) requests: Option<BucketState>,
    /// Tokens per minute.
    pub(crate) tokens: Option<BucketState>,
}

impl TenantLimits {
    pub(super) fn new(settings: &Tenant, load: Arc<Load>, now: Instant) -> Self {
        let limits = Self { load, state: Mutex::default() };
        limits.set(settings, now);
        limits
    }

    /// Replaces the settings; what has been used of the minute stays used.
    pub(super) fn set(&self, settings: &Tenant, now: Instant) {
        let state = &mut *self.state.lock();
        state.requests = resized(state.requests.take(), settings.requests_per_minute, now);
        state.tokens = resized(state.tokens.take(), settings.tokens_per_minute, now);
        state.lessons = resized(state.lessons.take(), settings.lessons_per_minute, now);
        state.concurrent = settings.concurrent_requests;
        (state.kv_share, state.learns) = (settings.kv_share, settings.learning);
        state.memory = settings.memory.then(|| settings.memory_similarity.unwrap_or(MEMORY_SIMILARITY));
    }

    /// Share of each model's KV-cache budget.
    pub(crate) fn kv_share(&self) -> Option<f64> {
        self.state.lock().kv_share
    }

    /// True if requests are recorded for feedback, and feedback teaches.
    pub(crate) fn learns(&self) -> bool {
        self.state.lock().learns
    }

    /// Smallest similarity of lessons in prompts; `None` for a tenant without memory.
    pub(crate) fn memory(&self) -> Option<f32> {
        self.state.lock().memory
    }

    /// Admits a lesson.
    ///
    /// # Errors
    /// [`Limited::Lessons`].
    pub(crate) fn admit_lesson(&self, now: Instant) -> Result<(), Limited> {
        let Some(lessons) = &mut self.state.lock().lessons else { return Ok(()) };
        let retry_after = lessons.wait(1.0, now);
        if !retry_after.is_zero() {
            return Err(Limited::Lessons { limit: lessons.state(now).limit, retry_after });
        }
        lessons.take(1.0, now);
        Ok(())
    }

    /// Admits a request: one of the requests per minute, a place among those at once, and a place
    /// in the server. Refused requests use nothing up.
    ///
    /// # Errors
    /// [`Limited`].
    pub(crate) fn admit(self: &Arc<Self>, now: Instant) -> Result<Permit, Limited> {
        let state = &mut *self.state.lock();
        if let Some(requests) = &mut state.requests {
            let retry_after = requests.wait(1.0, now);
            if !retry_after.is_zero() {
                return Err(Limited::Requests { limit: requests.state(now).limit, retry_after });
            }
        }
        if let Some(tokens) = &mut state.tokens {
            let retry_after = tokens.wait(1.0, now);
            if !retry_after.is_zero() {
                return Err(Limited::Tokens { limit: tokens.state(now).limit, retry_after });
            }
        }
        if let Some(limit) = state.concurrent.filter(|limit| state.running >= *limit) {
            return Err(Limited::Concurrency { limit });
        }
        let place = self.load.enter().ok_or(Limited::Overloaded { limit: self.load.limit() })?;
        if let Some(requests) = &mut state.requests {
            requests.take(1.0, now);
        }
        state.running += 1;
        Ok(Permit { limits: Arc::clone(self), _place: place })
    }

    /// Charges tokens that a request has used, prompt and output.
    pub(crate) fn charge_tokens(&self, tokens: u64, now: Instant) {
        if let Some(bucket) = &mut self.state.lock().tokens {
            bucket.take(tokens as f64, now);
        }
    }

    /// State for the headers of a response.
    pub(crate) fn state(&self, now: Instant) -> LimitState {
        let state = &mut *self.state.lock();
        LimitState {
            requests: state.requests.as_mut().map(|bucket| bucket.state(now)),
            tokens: state.tokens.as_mut().map(|bucket| bucket.state(now)),
        }
    }

    /// Requests that are admitted and not over.
    #[cfg(test)]
    pub(crate) fn running(&self) -> u32 {
        self.state.lock().running
    }
}

fn resized(bucket: Option<Bucket>, per_minute: Option<u32>, now: Instant) -> Option<Bucket> {
    let per_minute = per_minute?;
    let mut bucket = bucket.unwrap_or_else(|| Bucket::new(per_minute, now));
    bucket.resize(per_minute, now);
    Some(bucket)
}

/// An admitted request; dropping it frees its place.
#[derive(Debug)]
pub(crate) struct Permit {
    limits: Arc<TenantLimits>,
    _place: Place,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limits.state.lock().running -= 1;
    }
}
