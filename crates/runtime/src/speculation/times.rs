//! Measured durations of passes by their number of rows.

use std::time::Duration;

/// Passes with more rows are not recorded.
const MOST_ROWS: usize = 136;

/// Weight of a new measurement in the running mean, once there are several.
const RATE: f64 = 0.2;

/// Part of a pass's duration that a doubling of its rows is assumed to add, until a larger pass has
/// been measured: careful, since passes of few rows read the same weights.
const DOUBLING: f64 = 0.35;

/// Running means of the durations of passes with 1 to 136 rows.
#[derive(Debug, Clone)]
pub(super) struct Times {
    /// Mean in seconds and number of measurements, by rows.
    means: [(f64, u32); MOST_ROWS + 1],
}

impl Default for Times {
    fn default() -> Self {
        Self { means: [(0.0, 0); MOST_ROWS + 1] }
    }
}

impl Times {
    /// Records one pass.
    pub(super) fn observe(&mut self, rows: usize, time: Duration) {
        let Some((mean, count)) = self.means.get_mut(rows) else { return };
        let seconds = time.as_secs_f64();
        // A pass that was interrupted says nothing about the next one.
        let seconds = if *count > 2 { seconds.min(3.0 * *mean) } else { seconds };
        *count = count.saturating_add(1);
        *mean += (seconds - *mean) * RATE.max(1.0 / f64::from(*count));
    }

    /// Expected duration of a pass in seconds: the mean of such passes, interpolated between those
    /// that were measured; `None` before any. Beyond the largest one it is a guess.
    pub(super) fn expected(&self, rows: usize) -> Option<f64> {
        self.estimate(rows, |ratio| 1.0 + DOUBLING * ratio.log2())
    }

    /// As [`expected`](Self::expected), but beyond the largest pass that was measured as if each row
    /// took as long: the most that a pass can be expected to take.
    pub(super) fn bound(&self, rows: usize) -> Option<f64> {
        self.estimate(rows, |ratio| ratio)
    }

    /// `growth`: duration of a pass with so many times the rows of another one, as a multiple.
    fn estimate(&self, rows: usize, growth: impl Fn(f64) -> f64) -> Option<f64> {
        let rows = rows.clamp(1, MOST_ROWS);
        let known = |rows: &usize| self.means[*rows].1 > 0;
        let below = (1..=rows).rev().find(known);
        let above = (rows..=MOST_ROWS).find(known);
        Some(match (below, above) {
            (Some(below), Some(above)) if below < above => {
                let (low, high) = (self.means[below].0, self.means[above].0);
                low + (high - low) * (rows - below) as f64 / (above - below) as f64
            }
            (Some(below), None) => self.means[below].0 * growth(rows as f64 / below as f64),
            (None, Some(above)) => self.means[above].0 / growth(above as f64 / rows as f64),
            (Some(at), Some(_)) => self.means[at].0,
            (None, None) => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: f64) -> Duration {
        Duration::from_secs_f64(ms / 1e3)
    }

    #[test]
    fn means_are_interpolated_and_follow_the_machine() {
        let mut times = Times::default();
        assert_eq!(times.expected(3), None);
        times.observe(1, ms(10.0));
        assert!((times.expected(2).unwrap() - 0.0135).abs() < 1e-9, "a guess");
        assert!((times.bound(3).unwrap() - 0.03).abs() < 1e-9, "the most");
        times.observe(5, ms(18.0));
        assert!((times.expected(3).unwrap() - 0.014).abs() < 1e-9, "between two measurements");
        for _ in 0..40 {
            times.observe(1, ms(20.0));
        }
        assert!((times.expected(1).unwrap() - 0.02).abs() < 2e-4);
        times.observe(1, ms(5000.0));
        assert!(times.expected(1).unwrap() < 0.03, "one interruption counts little");
        times.observe(MOST_ROWS + 1, ms(1.0));
    }
}
