//! Measured durations of passes by their number of rows.

use std::time::Duration;

/// Part of the past that each pass keeps: the mean age of the samples is 33 passes.
const MEMORY: f64 = 0.97;

/// Passes before outliers are cut, and the multiple of the most that is expected where they are.
const TRUSTED: u32 = 4;
pub(super) const OUTLIER: f64 = 1.5;

/// Variance of the rows below which passes tell nothing about the duration of a further row.
const LEAST_VARIANCE: f64 = 0.05;

/// Duration of a further row that is assumed then, as a part of the mean duration per row: passes
/// of few rows read the same weights.
const ASSUMED: f64 = 0.25;

/// `seconds = pass + row * rows`: least squares over passes that lose weight with age.
///
/// A line, not a mean per number of rows: a sample that was disturbed is corrected by passes of
/// other sizes, also where it keeps passes of its own from being chosen again.
#[derive(Debug, Clone, Default)]
pub(super) struct Times {
    weight: f64,
    rows: f64,
    squares: f64,
    seconds: f64,
    products: f64,
    passes: u32,
}

impl Times {
    /// Records one pass.
    pub(super) fn observe(&mut self, rows: usize, time: Duration) {
        let (rows, mut seconds) = (rows.max(1), time.as_secs_f64());
        if self.passes >= TRUSTED
            && let Some(bound) = self.bound(rows)
        {
            seconds = seconds.min(OUTLIER * bound);
        }
        let x = rows as f64;
        for (sum, value) in [
            (&mut self.weight, 1.0),
            (&mut self.rows, x),
            (&mut self.squares, x * x),
            (&mut self.seconds, seconds),
            (&mut self.products, x * seconds),
        ] {
            *sum = *sum * MEMORY + value;
        }
        self.passes = self.passes.saturating_add(1);
    }

    /// Expected duration of a pass in seconds; `None` before any.
    pub(super) fn expected(&self, rows: usize) -> Option<f64> {
        self.estimate(rows, ASSUMED)
    }

    /// As [`expected`](Self::expected), but as if each row took as long where passes of different
    /// sizes are missing: the most that a pass can be expected to take.
    pub(super) fn bound(&self, rows: usize) -> Option<f64> {
        self.estimate(rows, 1.0)
    }

    /// `assumed`: duration of a further row as a part of the mean per row, if it is unknown.
    fn estimate(&self, rows: usize, assumed: f64) -> Option<f64> {
        if self.passes == 0 {
            return None;
        }
        let (mean_rows, mean) = (self.rows / self.weight, self.seconds / self.weight);
        let variance = self.squares / self.weight - mean_rows * mean_rows;
        let per_row = mean / mean_rows;
        let slope = if variance < LEAST_VARIANCE {
            assumed * per_row
        } else {
            // Neither are rows free of charge, nor passes without rows.
            ((self.products / self.weight - mean_rows * mean) / variance).clamp(0.0, per_row)
        };
        Some((mean + slope * (rows.max(1) as f64 - mean_rows)).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: f64) -> Duration {
        Duration::from_secs_f64(ms / 1e3)
    }

    #[test]
    fn a_line_through_the_measurements_follows_the_machine() {
        let mut times = Times::default();
        assert_eq!((times.expected(3), times.bound(3)), (None, None));
        times.observe(1, ms(10.0));
        assert!((times.expected(2).unwrap() - 0.0125).abs() < 1e-9, "a guess");
        assert!((times.bound(3).unwrap() - 0.03).abs() < 1e-9, "the most");
        times.observe(5, ms(18.0));
        assert!((times.expected(3).unwrap() - 0.014).abs() < 1e-9, "between two measurements");
        assert!((times.bound(9).unwrap() - 0.026).abs() < 1e-9, "beyond them");
        for _ in 0..200 {
            times.observe(1, ms(20.0));
            times.observe(3, ms(22.0));
        }
        assert!((times.expected(5).unwrap() - 0.024).abs() < 2e-4);
        times.observe(9, ms(5000.0));
        assert!(times.expected(9).unwrap() < 0.05, "one interruption counts little");
        for _ in 0..20 {
            times.observe(1, ms(20.0));
            times.observe(3, ms(22.0));
        }
        assert!(times.expected(9).unwrap() < 0.035, "and is corrected by passes of other sizes");
    }
}
