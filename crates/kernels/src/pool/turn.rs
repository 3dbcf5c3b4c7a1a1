//! Mutual exclusion of the calling threads: one job of a pool at a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use super::ledger::Ledger;

/// Interval between attempts to get the lock, with debug assertions.
const NAP: Duration = Duration::from_micros(100);

/// Attempts during one job of another caller after which a deadlock is reported: 20 s or more.
///
/// Counted in attempts, because clocks advance while a process is stopped.
const PATIENCE: usize = 200_000;

/// Lock held by a caller while its job runs.
pub(super) struct Turn {
    ledger: Mutex<Ledger>,
    /// Number of jobs begun; counted with debug assertions only.
    jobs: AtomicUsize,
    /// Attempts during one job of another caller after which a deadlock is reported.
    pub(super) patience: usize,
}

impl Turn {
    pub(super) fn new() -> Self {
        Self { ledger: Mutex::default(), jobs: AtomicUsize::new(0), patience: PATIENCE }
    }

    /// Waits until no job of another caller runs.
    ///
    /// # Panics
    /// With debug assertions, if one job blocks the caller for 20 s or longer.
    pub(super) fn take(&self) -> MutexGuard<'_, Ledger> {
        // Poison is ignored: the data behind the lock is valid at every point.
        if cfg!(debug_assertions) {
            self.take_watched()
        } else {
            self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// [`take`](Self::take) that reports a job that does not end, most likely because it waits for
    /// the calling thread.
    fn take_watched(&self) -> MutexGuard<'_, Ledger> {
        let (mut job, mut naps) = (self.jobs.load(Ordering::Relaxed), 0);
        loop {
            let ledger = match self.ledger.try_lock() {
                Ok(ledger) => Some(ledger),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            if let Some(ledger) = ledger {
                self.jobs.fetch_add(1, Ordering::Relaxed);
                return ledger;
            }
            let current = self.jobs.load(Ordering::Relaxed);
            if current != job {
                (job, naps) = (current, 0);
            }
            assert!(
                naps < self.patience,
                "thread pool: one job of another thread does not end; a job must not wait for a thread that uses the \
                 same pool"
            );
            naps += 1;
            std::thread::sleep(NAP);
        }
    }
}
