//! When memory is short: a switch with hysteresis, so that a use that moves around one mark does not flip it.

use std::sync::atomic::{AtomicBool, Ordering};

/// Use of the pool at which older tokens go to the lowest tier at once. A little below the mark at which the pool asks
/// its owners for pages (0.85): numbers lose bits before whole prefixes are lost.
const HIGH: f64 = 0.80;

/// Use at which age alone decides again.
const LOW: f64 = 0.70;

/// Whether memory is short.
#[derive(Debug, Default)]
pub(crate) struct Pressure(AtomicBool);

impl Pressure {
    /// The state after a look at the pool: it changes above the high mark and below the low one only.
    pub(crate) fn update(&self, used_pages: usize, capacity_pages: usize) -> bool {
        let used = used_pages as f64 / capacity_pages.max(1) as f64;
        let short = used >= HIGH || (used > LOW && self.0.load(Ordering::Relaxed));
        self.0.store(short, Ordering::Relaxed);
        short
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_the_marks_nothing_changes() {
        let pressure = Pressure::default();
        let course = [
            (10, false),
            (79, false),
            (80, true),
            (75, true),
            (71, true),
            (70, false),
            (79, false),
            (95, true),
        ];
        for (used, short) in course {
            assert_eq!(pressure.update(used, 100), short, "{used} %");
        }
    }
}
