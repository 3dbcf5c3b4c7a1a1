//! Waiting for a condition: a short spin, then sleep until somebody rings.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How many looks at the condition are made between two looks at the clock.
const LOOKS: usize = 32;

/// A place to wait for a condition that other threads make true with atomic stores followed by [`ring`](Self::ring).
#[derive(Default)]
pub(super) struct Bell {
    /// Number of threads in, or on their way to, sleep.
    asleep: AtomicUsize,
    lock: Mutex<()>,
    rung: Condvar,
}

impl Bell {
    /// Returns once `ready` is true: spins for `spin`, then sleeps.
    pub(super) fn wait_until(&self, spin: Duration, ready: impl Fn() -> bool) {
        if spin_until(spin, &ready) {
            return;
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.asleep.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `ring`: either this thread sees the condition, or the ringer sees this sleeper. In the
        // second case the ringer gets the lock only once this thread waits, so the notification cannot be missed.
        fence(Ordering::SeqCst);
        while !ready() {
            guard = self.rung.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.asleep.fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes the sleepers, after the stores that make their condition true. Costs one fence when nobody sleeps.
    pub(super) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.rung.notify_all();
        }
    }
}

fn spin_until(limit: Duration, ready: &impl Fn() -> bool) -> bool {
    let look = || {
        (0..LOOKS).any(|_| {
            let seen = ready();
            if !seen {
                spin_loop();
            }
            seen
        })
    };
    if look() {
        return true;
    }
    let start = Instant::now();
    loop {
        if look() {
            return true;
        }
        if start.elapsed() >= limit {
            return false;
        }
    }
}
