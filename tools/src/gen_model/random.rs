//! Normally distributed weights, a function of the seed for any number of threads.

/// Models of more values repeat rows, for speed: quantizers of few bits take hours for them.
const REPEATED_FROM: u64 = 2_000_000_000;
const DISTINCT_ROWS: usize = 256;

/// Source of a model's values. Each row has its own stream, so rows can be generated in any order.
pub(super) struct Source {
    seed: u64,
    repeats_rows: bool,
}

impl Source {
    /// A source for a model of `total` values.
    pub(super) fn new(seed: u64, total: u64) -> Self {
        Self { seed, repeats_rows: total >= REPEATED_FROM }
    }

    /// Number of different rows in a tensor of `rows`.
    pub(super) fn distinct_rows(&self, rows: usize) -> usize {
        if self.repeats_rows { rows.min(DISTINCT_ROWS) } else { rows }
    }

    /// The row among `distinct` different ones that stands at `row`.
    pub(super) fn pick(&self, tensor: u64, row: u64, distinct: usize) -> usize {
        (self.stream(tensor, row).next() % distinct as u64) as usize
    }

    /// Fills a row with normally distributed values of mean 0.
    pub(super) fn fill(&self, tensor: u64, row: u64, deviation: f32, values: &mut [f32]) {
        self.stream(tensor, row).fill_normal(deviation, values);
    }

    fn stream(&self, tensor: u64, row: u64) -> SplitMix {
        SplitMix(mix(self.seed ^ mix(tensor ^ mix(row))))
    }
}

/// Steele, Lea and Flood's SplitMix64: small, fast, and enough for weights.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// Box and Muller's transform: two normal values from two uniform ones.
    fn fill_normal(&mut self, deviation: f32, values: &mut [f32]) {
        for pair in values.chunks_mut(2) {
            let bits = self.next();
            // 2^-24 steps; the first is never 0, so that its logarithm is finite.
            let u = ((bits >> 40) + 1) as f32 / 16_777_216.0;
            let v = ((bits >> 8) & 0xFF_FFFF) as f32 / 16_777_216.0;
            let radius = deviation * (-2.0 * u.ln()).sqrt();
            let (sin, cos) = (std::f32::consts::TAU * v).sin_cos();
            pair[0] = radius * cos;
            if let Some(second) = pair.get_mut(1) {
                *second = radius * sin;
            }
        }
    }
}

/// SplitMix64's output function: every bit of the input changes half of the bits of the output.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean and standard deviation.
    fn moments(values: &[f32]) -> (f64, f64) {
        let n = values.len() as f64;
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        let variance = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
        (mean, variance.sqrt())
    }

    #[test]
    fn values_have_the_wanted_deviation() {
        let mut values = vec![0.0; 100_001];
        Source::new(7, 0).fill(3, 5, 0.02, &mut values);
        let (mean, deviation) = moments(&values);
        // Four standard errors of the mean and of the deviation.
        assert!(mean.abs() < 4.0 * 0.02 / 316.0, "mean {mean}");
        assert!((deviation / 0.02 - 1.0).abs() < 4.0 / 447.0, "deviation {deviation}");
        assert!(values.iter().all(|value| value.is_finite()));
    }

    #[test]
    fn rows_of_large_models_repeat_evenly() {
        assert_eq!(Source::new(7, REPEATED_FROM - 1).distinct_rows(10_000), 10_000);
        let source = Source::new(7, REPEATED_FROM);
        assert_eq!(source.distinct_rows(100), 100);
        let distinct = source.distinct_rows(10_000);
        let mut picked = vec![0; distinct];
        (0..10_000).for_each(|row| picked[source.pick(3, row, distinct)] += 1);
        // Mean 39 each.
        assert!(picked.iter().all(|times| (10..90).contains(times)), "{picked:?}");
    }

    #[test]
    fn rows_differ_and_repeat_with_the_seed() {
        let row = |seed, tensor, row| {
            let mut values = [0.0; 8];
            Source::new(seed, 0).fill(tensor, row, 1.0, &mut values);
            values
        };
        assert_eq!(row(1, 2, 3), row(1, 2, 3));
        assert_ne!(row(1, 2, 3), row(2, 2, 3));
        assert_ne!(row(1, 2, 3), row(1, 3, 2));
    }
}
