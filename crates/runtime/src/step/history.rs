//! The last steps, for histograms of their durations and sizes.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;

/// Number of steps that are kept: several seconds of the shortest ones.
const STEPS: usize = 4096;

/// A step of the step loop: one forward pass with its drafts and its sampling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepRecord {
    /// Number of the step, from 0 on.
    pub number: u64,
    /// Duration, from its first draft to its last sampled token.
    pub duration: Duration,
    /// Sequences of the step: the batch size.
    pub sequences: usize,
    /// Tokens computed in prompt chunks.
    pub prefill_tokens: usize,
    /// Generated tokens computed, with accepted drafts.
    pub decode_tokens: usize,
}

/// The last [`STEPS`] steps.
#[derive(Debug, Default)]
pub(super) struct History(Mutex<VecDeque<StepRecord>>);

impl History {
    pub(super) fn push(&self, record: StepRecord) {
        let mut records = self.0.lock();
        match records.len() {
            // All at once, so that later steps allocate nothing.
            0 => records.reserve_exact(STEPS),
            STEPS => _ = records.pop_front(),
            _ => {}
        }
        records.push_back(record);
    }

    /// The steps with this number and later ones, oldest first.
    pub(super) fn since(&self, number: u64) -> Vec<StepRecord> {
        let records = self.0.lock();
        let first = records.partition_point(|record| record.number < number);
        records.range(first..).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_steps_are_given_once_to_a_reader_that_comes_back() {
        let history = History::default();
        let record = |number| StepRecord {
            number,
            duration: Duration::from_micros(number),
            sequences: 1,
            prefill_tokens: 0,
            decode_tokens: 1,
        };
        assert!(history.since(0).is_empty());
        (0..5).for_each(|number| history.push(record(number)));
        assert_eq!(history.since(3), [record(3), record(4)]);
        assert!(history.since(5).is_empty());
        (5..10_000).for_each(|number| history.push(record(number)));
        let kept = history.since(0);
        assert_eq!((kept.len(), kept[0], kept[STEPS - 1]), (STEPS, record(10_000 - 4096), record(9999)));
    }
}
