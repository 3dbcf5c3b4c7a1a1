//! Decides if jobs are shared with the workers, by the time that sharing saved or cost.
//!
//! A worker that loses its core in the middle of a chunk keeps the caller waiting for a whole time
//! slice of somebody else, a thousand times the length of a short job. On a machine with enough
//! other work, such waits cost more than the worker saves. The pool keeps account of both and works
//! alone for a while when it loses: with several threads it is then not slower than with one.

use std::time::{Duration, Instant};

use super::crew::Outcome;

/// Savings count up to here: a loss of this size is forgiven to a pool that has been doing well.
const MOST_SAVED: Duration = Duration::from_millis(8);

/// A job counts as a gain up to here: more may only mean that the caller lost its core.
const MOST_GAIN: Duration = Duration::from_micros(100);

/// Shorter waits are the length of a chunk: no core was lost.
const LEAST_LOSS: Duration = Duration::from_micros(50);

/// Time alone after a loss, as a multiple of the wait that made it; so waits cost at most a
/// thirty-third of all time. It doubles with each loss in a row.
const ALONE_FACTOR: u32 = 32;

/// Number of doublings at most.
const MOST_DOUBLINGS: u32 = 3;

/// Longest time alone: when the machine becomes free, help is back after this.
const MOST_ALONE: Duration = Duration::from_secs(1);

/// Time that help has saved, and until when to do without.
#[derive(Default)]
pub(super) struct Ledger {
    saved: Duration,
    /// Losses since `saved` was at its most.
    losses: u32,
    alone_until: Option<Instant>,
}

impl Ledger {
    /// True if the next job should be shared.
    pub(super) fn shares(&mut self) -> bool {
        if self.alone_until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        self.alone_until = None;
        true
    }

    /// Counts a shared job.
    pub(super) fn record(&mut self, outcome: &Outcome) {
        if outcome.helped == 0 {
            return;
        }
        // The part of the workers would have taken the caller about as long as its own part did.
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
