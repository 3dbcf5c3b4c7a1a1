//! Statistics that follow the present.

/// Exponentially weighted mean whose first values count fully.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MovingAverage {
    mean: f64,
    weight: f64,
    count: u64,
}

impl MovingAverage {
    /// Adds a value; `rate` (0 to 1) is its weight in the long run. Values that are not finite are
    /// ignored.
    pub fn add(&mut self, value: f64, rate: f64) {
        if value.is_finite() {
            self.weight = self.weight * (1.0 - rate) + rate;
            self.mean += rate / self.weight.max(f64::MIN_POSITIVE) * (value - self.mean);
            self.count += 1;
        }
    }

    /// The mean; absent before a value.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then_some(self.mean)
    }

    /// Values added.
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// Ratio of neighbouring bucket borders.
const RATIO: f64 = 1.05;
/// Number of buckets: nine decades.
const BUCKETS: usize = 426;

/// Histogram of positive values over nine decades, in buckets of 5 %, whose old values fade.
///
/// Its memory is constant. Counts are halved every `half_life` values.
#[derive(Debug, Clone, PartialEq)]
pub struct LogHistogram {
    smallest: f64,
    half_life: u32,
    since: u32,
    counts: Vec<u32>,
}

impl LogHistogram {
    /// Makes an empty histogram of values from `smallest` (above 0) on; smaller ones count as it,
    /// those beyond nine decades as the largest.
    pub fn new(smallest: f64, half_life: u32) -> Self {
        let smallest = if smallest.is_normal() { smallest.abs() } else { 1e-6 };
        Self { smallest, half_life: half_life.max(1), since: 0, counts: vec![0; BUCKETS] }
    }

    /// Adds a value; NaN is ignored.
    pub fn add(&mut self, value: f64) {
        if value.is_nan() {
            return;
        }
        let bucket = (value / self.smallest).max(1.0).ln() / RATIO.ln();
        self.counts[(bucket.round() as usize).min(BUCKETS - 1)] += 1;
        self.since += 1;
        if self.since >= self.half_life {
            // Rounded up: a value fades but is not lost while it is the only one.
            self.counts.iter_mut().for_each(|count| *count = count.div_ceil(2));
            self.counts.iter_mut().filter(|count| **count == 1).for_each(|count| *count = 0);
            self.since = 0;
        }
    }

    /// Value that a `share` (0 to 1) of all does not exceed, to 2.5 %; absent if there are none.
    pub fn percentile(&self, share: f64) -> Option<f64> {
        let total: u64 = self.counts.iter().map(|&count| u64::from(count)).sum();
        let rank = (share * total as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let bucket = self.counts.iter().position(|&count| {
            seen += u64::from(count);
            seen >= rank
        });
        bucket.map(|bucket| self.smallest * RATIO.powi(bucket as i32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_begin_at_the_first_value_and_follow() {
        let mut average = MovingAverage::default();
        assert_eq!(average.mean(), None);
        average.add(4.0, 0.1);
        average.add(f64::NAN, 0.1);
        assert_eq!((average.mean(), average.count()), (Some(4.0), 1));
        (0..100).for_each(|_| average.add(1.0, 0.1));
        assert!((average.mean().unwrap() - 1.0).abs() < 1e-3);
    }

    #[test]
    fn percentiles_are_within_half_a_bucket_and_follow() {
        let mut histogram = LogHistogram::new(1e-6, 1_000_000);
        assert_eq!(histogram.percentile(0.5), None);
        (1..=1000).for_each(|ms| histogram.add(f64::from(ms) / 1e3));
        for share in [0.05, 0.5, 0.99, 1.0] {
            let found = histogram.percentile(share).unwrap();
            assert!((found / share - 1.0).abs() < 0.03, "{share}: {found}");
        }
        let mut fading = LogHistogram::new(1e-6, 100);
        (0..1000).for_each(|_| fading.add(1.0));
        (0..1000).for_each(|_| fading.add(0.01));
        assert!(fading.percentile(0.99).unwrap() < 0.011);
        for value in [0.0, -1.0, f64::INFINITY, 1e300, f64::NAN] {
            fading.add(value);
        }
        assert!(fading.percentile(1.0).unwrap() > 1e2);
    }
}
