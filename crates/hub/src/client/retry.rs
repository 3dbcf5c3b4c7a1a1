//! Retries with growing waits after transient failures.

use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::settings::{HubSettings, Retry};

/// A failed request.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The error.
    pub(crate) error: Error,
    /// `true` for a transient failure.
    pub(crate) may_pass: bool,
    /// The time that the server asks to wait.
    pub(crate) wait: Option<Duration>,
}

impl Failure {
    /// A transient failure.
    pub(crate) fn passing(error: Error) -> Self {
        Self { error, may_pass: true, wait: None }
    }

    /// A permanent failure.
    pub(crate) fn lasting(error: Error) -> Self {
        Self { error, may_pass: false, wait: None }
    }
}

/// Counts failures in a row and waits longer after each.
#[derive(Debug)]
pub(crate) struct Retries<'a> {
    settings: &'a HubSettings,
    /// Failures in a row before giving up.
    attempts: u32,
    failures: u32,
}

impl<'a> Retries<'a> {
    pub(crate) fn new(settings: &'a HubSettings) -> Self {
        Self { settings, attempts: settings.attempts, failures: 0 }
    }

    /// Few attempts, for the first request: a missing connection is reported soon.
    pub(crate) fn brief(settings: &'a HubSettings) -> Self {
        Self { attempts: settings.attempts.min(3), ..Self::new(settings) }
    }

    /// Forgets earlier failures: there was progress.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Waits before the next attempt, unless `is_stopped`.
    ///
    /// # Errors
    /// The failure itself when it will not pass, [`Error::GaveUp`] when there were too many,
    /// [`Error::Cancelled`].
    pub(crate) fn wait(&mut self, failure: Failure, is_stopped: &dyn Fn() -> bool) -> Result<()> {
        if !failure.may_pass {
            return Err(failure.error);
        }
        self.failures += 1;
        if self.failures >= self.attempts {
            return Err(Error::GaveUp { attempts: self.failures, source: Box::new(failure.error) });
        }
        let doubled = self.settings.first_wait.saturating_mul(1 << (self.failures - 1).min(16));
        let wait = failure.wait.unwrap_or(doubled).min(self.settings.longest_wait);
        let (error, attempt, attempts) = (&failure.error, self.failures + 1, self.attempts);
        self.settings.on_retry.call(&Retry { error, wait, attempt, attempts });
        let end = Instant::now() + wait;
        loop {
            if is_stopped() {
                return Err(Error::Cancelled);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(Duration::from_millis(50)));
        }
    }

    /// Repeats `attempt` until it succeeds or fails for good.
    pub(crate) fn run<T>(mut self, mut attempt: impl FnMut() -> Result<T, Failure>) -> Result<T> {
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(failure) => self.wait(failure, &|| false)?,
            }
        }
    }
}
