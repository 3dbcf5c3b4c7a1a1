//! Gates of which few pass: those below a quantile of a normal distribution with the mean and
//! deviation of their row count as 0. Source: Gemma 3n.

/// Sums that a row is added up in.
const LANES: usize = 8;

/// Subtracts the mean plus `deviations` standard deviations of the row; gates below become 0.
pub(super) fn cut_gates(row: &mut [f32], deviations: f32) {
    let n = row.len() as f64;
    let mean = sum(row, |gate| gate) / n;
    let variance = sum(row, |gate| (gate - mean) * (gate - mean)) / n;
    let cutoff = (mean + variance.sqrt() * f64::from(deviations)) as f32;
    // NaN stays what it is.
    row.iter_mut().for_each(|gate| *gate = if *gate < cutoff { 0.0 } else { *gate - cutoff });
}

/// Sum of a function of the values, in an order that depends on their number alone.
fn sum(row: &[f32], of: impl Fn(f64) -> f64) -> f64 {
    let mut sums = [0.0; LANES];
    let (whole, rest) = row.as_chunks::<LANES>();
    for chunk in whole {
        sums.iter_mut().zip(chunk).for_each(|(sum, &value)| *sum += of(f64::from(value)));
    }
    sums.iter_mut().zip(rest).for_each(|(sum, &value)| *sum += of(f64::from(value)));
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_below_the_quantile_become_zero() {
        let mut row: Vec<f32> = (0..11).map(|i| i as f32).collect();
        // Mean 5, variance 10.
        cut_gates(&mut row, 1.0);
        let cutoff = 5.0 + 10f32.sqrt();
        let expected: Vec<f32> = (0..11).map(|i| (i as f32 - cutoff).max(0.0)).collect();
        assert_eq!(row, expected);
        assert_eq!(row.iter().filter(|&&gate| gate > 0.0).count(), 2);
        let mut row = [1.0, f32::NAN];
        cut_gates(&mut row, 0.0);
        assert!(row.iter().all(|gate| gate.is_nan()), "{row:?}");
    }
}
