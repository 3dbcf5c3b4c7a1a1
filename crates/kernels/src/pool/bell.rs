//! Waiting for a condition: a short spin, then sleep until a ring.

use std::hint::spin_loop;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::sync::{AtomicUsize, Condvar, Mutex, fence, lock};

/// Tests of the condition per clock read.
const TESTS_PER_READ: usize = 32;

/// Wait object for a condition set by atomic stores followed by [`ring`](Self::ring).
pub(super) struct Bell {
    /// Number of sleeping threads, including those about to sleep.
    asleep: AtomicUsize,
    lock: Mutex<()>,
    rung: Condvar,
}

impl Bell {
    pub(super) fn new() -> Self {
        Self { asleep: AtomicUsize::new(0), lock: Mutex::new(()), rung: Condvar::new() }
    }

    /// Returns once `ready` is true: spins for `spin`, then sleeps. Calls `woken` after each
    /// wake-up.
    pub(super) fn wait_until(&self, spin: Duration, ready: impl Fn() -> bool, woken: impl Fn()) {
        if spin_until(spin, &ready) {
            return;
        }
        let mut guard = lock(&self.lock);
        self.asleep.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `ring`: either this thread sees the condition, or the ringing
        // thread sees this sleeper. In the second case the ringing thread gets the lock only once
        // this thread waits, so the notification cannot be missed.
        fence(Ordering::SeqCst);
        while !ready() {
            guard = self.rung.wait(guard).unwrap_or_else(PoisonError::into_inner);
            woken();
        }
        self.asleep.fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes the sleepers, after the stores that make their condition true. Costs one fence if no
    /// thread sleeps.
    pub(super) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) > 0 {
            drop(lock(&self.lock));
            self.rung.notify_all();
        }
    }
}

/// Tests the condition for about `limit` (once if zero); returns its last value.
fn spin_until(limit: Duration, ready: &impl Fn() -> bool) -> bool {
    if limit.is_zero() {
        return ready();
    }
    let test = || {
        (0..TESTS_PER_READ).any(|_| {
            let seen = ready();
            if !seen {
                spin_loop();
            }
            seen
        })
    };
    if test() {
        return true;
    }
    let start = Instant::now();
    loop {
        if test() {
            return true;
        }
        if start.elapsed() >= limit {
            return false;
        }
    }
}
