//! Priority and age as one order.

use std::time::Duration;

use crate::config::Config;

/// Place of a request among those of its tenant; the smallest goes first.
///
/// A priority that rises by one level for each `ageing` waited orders requests by `priority +
/// (now - submitted) / ageing`. The order is that of `submitted - priority * ageing`, which no
/// clock changes: it can be the key of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// Time of submission, earlier by `ageing` for each level of priority, in nanoseconds.
    arrival: i64,
    /// Order of submission.
    order: u64,
}

impl Rank {
    /// Rank of a request submitted now as number `order`, with a priority in its range.
    pub(crate) fn new(config: &Config, now: Duration, priority: i32, order: u64) -> Self {
        let lead = nanos(config.ageing).saturating_mul(i64::from(priority));
        Self { arrival: nanos(now).saturating_sub(lead), order }
    }

    /// True if less than `patience` of waiting lies between this request and `earlier`.
    pub(crate) fn within(self, earlier: Self, patience: Duration) -> bool {
        self.arrival.saturating_sub(earlier.arrival) < nanos(patience)
    }

    /// Before every rank.
    pub(crate) const FIRST: Self = Self { arrival: i64::MIN, order: 0 };
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}
