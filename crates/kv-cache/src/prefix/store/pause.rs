//! Pause of a remote storage that fails: requests compute, instead of waiting for it in turn.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// First length of a pause; it doubles with each retry that fails.
const FIRST: Duration = Duration::from_secs(5);

/// Longest time between two retries.
const LONGEST: Duration = Duration::from_secs(60);

/// State of a storage: in use, or left alone until a time.
#[derive(Debug, Default)]
pub(super) struct Pause(Mutex<Option<Paused>>);

#[derive(Debug)]
struct Paused {
    until: Instant,
    n_retries: u32,
}

impl Pause {
    /// True if the storage may be used. At the end of a pause one caller tries; the others go on
    /// without the storage until it has succeeded.
    pub(super) fn allows(&self, now: Instant) -> bool {
        let mut state = self.0.lock();
        match &mut *state {
            None => true,
            Some(paused) if now >= paused.until => {
                paused.n_retries += 1;
                paused.until = now + length(paused.n_retries);
                true
            }
            Some(_) => false,
        }
    }

    /// True from a failure to the next success.
    pub(super) fn is_paused(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Ends the pause.
    pub(super) fn succeeded(&self) {
        *self.0.lock() = None;
    }

    /// Begins a pause, or lets it go on. True if one begins.
    pub(super) fn failed(&self, now: Instant) -> bool {
        let mut state = self.0.lock();
        let begins = state.is_none();
        state.get_or_insert(Paused { until: now + length(0), n_retries: 0 });
        begins
    }
}

/// Length of a pause after so many retries.
fn length(n_retries: u32) -> Duration {
    FIRST.saturating_mul(1 << n_retries.min(8)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_tries_again_and_a_success_ends_the_pause() {
        let (pause, now) = (Pause::default(), Instant::now());
        assert!(pause.allows(now));
        assert!(pause.failed(now), "it begins");
        assert!(!pause.failed(now), "requests of the same time begin no other");
        assert!(!pause.allows(now + FIRST / 2));
        assert!(pause.allows(now + FIRST), "one retry");
        assert!(!pause.allows(now + FIRST), "one alone");
        assert!(!pause.failed(now + FIRST));
        assert!(!pause.allows(now + FIRST * 2), "twice as long");
        assert!(pause.allows(now + FIRST * 3));
        pause.succeeded();
        assert!(pause.allows(now) && pause.allows(now));
    }

    #[test]
    fn pauses_become_longer_up_to_a_minute() {
        let lengths: Vec<u64> = (0..6).map(|n_retries| length(n_retries).as_secs()).collect();
        assert_eq!(lengths, [5, 10, 20, 40, 60, 60]);
        assert_eq!(length(u32::MAX), LONGEST);
    }
}
