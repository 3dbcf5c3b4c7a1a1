//! Settings of a manager.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{Host, Result, Store, TrustedKeys};

/// Settings of a manager.
#[derive(Debug, Clone)]
pub struct ManagerOptions {
    /// Time after a swap during which the previous pack stays loaded, for a rollback without
    /// compilation.
    pub grace: Duration,
    /// Time after a swap in which the quarantine of a kernel leads to a rollback; it ends with the
    /// grace period at the latest. 0 for never.
    pub probation: Duration,
    /// Ready instances that each kernel gets when it is loaded.
    pub ready_instances: usize,
    /// Clock of both times.
    pub clock: Clock,
}

/// 300 s of grace and of probation, one ready instance, the clock of the system.
impl Default for ManagerOptions {
    fn default() -> Self {
        let period = Duration::from_secs(300);
        Self { grace: period, probation: period, ready_instances: 1, clock: Clock::default() }
    }
}

/// Monotonic clock.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Instant + Send + Sync>);

impl Clock {
    /// A clock that reads another time, for tests. It must not go back.
    pub fn new(now: impl Fn() -> Instant + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Current time.
    pub(super) fn now(&self) -> Instant {
        (self.0)()
    }
}

/// Clock of the system.
impl Default for Clock {
    fn default() -> Self {
        Self::new(Instant::now)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// Store from which a manager loads its pack, and the trust in packs of it.
#[derive(Clone)]
pub struct Origin {
    pub(super) store: Store,
    pub(super) host: Host,
    trust: Arc<dyn Fn() -> Result<TrustedKeys> + Send + Sync>,
}

impl Origin {
    /// A store whose packs are verified for a host. `trust` reads the trusted keys: it is called
    /// each time, so that a revocation needs no restart.
    pub fn new(
        store: Store,
        host: Host,
        trust: impl Fn() -> Result<TrustedKeys> + Send + Sync + 'static,
    ) -> Self {
        Self { store, host, trust: Arc::new(trust) }
    }

    /// Trusted keys of now.
    ///
    /// # Errors
    /// The errors of the function.
    pub(super) fn keys(&self) -> Result<TrustedKeys> {
        (self.trust)()
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Origin").field("store", &self.store).field("host", &self.host).finish_non_exhaustive()
    }
}
