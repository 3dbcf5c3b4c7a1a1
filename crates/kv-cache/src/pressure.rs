//! When memory is short: a switch with hysteresis, so that a use that moves around one mark does not flip it.

use std::sync::atomic::{AtomicBool, Ordering};

/// Use of the pool at which older tokens go to the lowest tier at once. A little below the mark at which the pool asks
/// its owners for pages (0.85): numbers lose bits before whole prefixes are lost.
const HIGH: f64 = 0.80;

/// Use at which age alone decides again, and from which on tenants beyond their soft quota count as short.
const LOW: f64 = 0.70;

/// Whether memory is short.
#[derive(Debug, Default)]
pub(crate) struct Pressure(AtomicBool);

impl Pressure {
    /// The state when `used` of the room is taken, as a fraction: it changes above the high mark and below the low one only.
    /// Who has more than a soft quota gives way at the low mark already.
    pub(crate) fn update(&self, used: f64, is_over_soft_quota: bool) -> bool {
        let short = used >= HIGH || (used > LOW && (is_over_soft_quota || self.0.load(Ordering::Relaxed)));
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
            assert_eq!(pressure.update(f64::from(used) / 100.0, false), short, "{used} %");
        }
    }

    #[test]
    fn beyond_a_soft_quota_it_is_short_from_the_low_mark_on() {
        let pressure = Pressure::default();
        for (used, short) in [(10, false), (70, false), (71, true), (79, true), (70, false)] {
            assert_eq!(pressure.update(f64::from(used) / 100.0, true), short, "{used} %");
        }
    }
}
