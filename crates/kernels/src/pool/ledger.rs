//! Decides whether jobs are shared with the workers, from measured gains and losses.
//!
//! A worker that is preempted inside a chunk makes the caller wait for a whole scheduler time
//! slice, a thousand times the length of a short job. On a loaded machine such waits cost more than
//! the workers save. The pool accounts for both and runs jobs on the calling thread for a while
//! after a net loss: several threads are then not slower than one.

use std::time::{Duration, Instant};

use super::crew::Outcome;

/// Upper bound of accumulated savings: a loss of this size is tolerated after enough gains.
const MOST_SAVED: Duration = Duration::from_millis(8);

/// Upper bound of the gain of one job: more may only mean that the caller was preempted.
const MOST_GAIN: Duration = Duration::from_micros(100);

/// Shorter waits are chunk granularity, not preemption.
const LEAST_LOSS: Duration = Duration::from_micros(50);

/// Time without workers after a loss, as a multiple of the wait.
///
/// Waits then cost at most 1/33 of all time. Doubles with each consecutive loss.
const ALONE_FACTOR: u32 = 32;

/// Largest number of doublings.
const MOST_DOUBLINGS: u32 = 3;

/// Longest time without workers, after which sharing is retried.
const MOST_ALONE: Duration = Duration::from_secs(1);

/// Accumulated savings, and the end of a period without workers.
#[derive(Default)]
pub(super) struct Ledger {
    saved: Duration,
    /// Losses since `saved` was last at its maximum.
    losses: u32,
    alone_until: Option<Instant>,
}

impl Ledger {
    /// True if the next job is to be shared.
    pub(super) fn shares(&mut self) -> bool {
        if self.alone_until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        self.alone_until = None;
        true
    }

    /// Records a shared job.
    pub(super) fn record(&mut self, outcome: &Outcome) {
        if outcome.helped == 0 {
            return;
        }
        // The workers' part would have taken the caller about as long as its own part.
        let Some(loss) = outcome.waited.checked_sub(outcome.busy) else {
            let gain = (outcome.busy - outcome.waited).min(MOST_GAIN);
            self.saved = (self.saved + gain).min(MOST_SAVED);
            if self.saved == MOST_SAVED {
                self.losses = 0;
            }
            return;
        };
        if loss < LEAST_LOSS {
            return;
        }
        let balance = self.saved.checked_sub(loss);
        self.saved = balance.unwrap_or_default();
        if balance.is_none() {
            let alone = outcome.waited.saturating_mul(ALONE_FACTOR << self.losses.min(MOST_DOUBLINGS));
            self.alone_until = Some(Instant::now() + alone.min(MOST_ALONE));
            self.losses += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(helped: usize, busy_us: u64, waited_us: u64) -> Outcome {
        let [busy, waited] = [busy_us, waited_us].map(Duration::from_micros);
        Outcome { panic: None, helped, busy, waited }
    }

    #[test]
    fn help_that_pays_is_kept() {
        let mut ledger = Ledger::default();
        for _ in 0..200 {
            ledger.record(&outcome(1, 100, 60));
            assert!(ledger.shares());
        }
        ledger.record(&outcome(1, 10, 7000));
        assert!(ledger.shares(), "one wait after much good help");
    }

    #[test]
    fn help_that_costs_more_than_it_saves_is_done_without_for_a_while() {
        let mut ledger = Ledger::default();
        ledger.record(&outcome(1, 20, 3_600_000));
        assert!(!ledger.shares());
        assert!(ledger.alone_until.is_some_and(|until| until <= Instant::now() + MOST_ALONE));
        ledger.alone_until = Some(Instant::now());
        assert!(ledger.shares(), "the time is over");
        ledger.record(&outcome(1, 20, 1000));
        assert_eq!(ledger.losses, 2);
        (0..80).for_each(|_| ledger.record(&outcome(1, 100, 0)));
        assert_eq!((ledger.losses, ledger.saved), (0, MOST_SAVED));
    }

    #[test]
    fn jobs_without_help_and_short_waits_do_not_count() {
        let mut ledger = Ledger::default();
        ledger.record(&outcome(0, 1000, 0));
        ledger.record(&outcome(1, 1, 30));
        assert_eq!(ledger.saved, Duration::ZERO);
        assert!(ledger.shares());
    }
}
