//! Sums over slices in a fixed order, written so that the compiler vectorizes them.

/// Dot product of the common length of two slices.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0.0_f32; LANES];
    let (a, b) = (&a[..a.len().min(b.len())], &b[..a.len().min(b.len())]);
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(x, y)| x * y).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// Dot product in double precision.
pub(crate) fn dot_f64(a: &[f64], b: &[f64]) -> f64 {
    const LANES: usize = 8;
    let mut sums = [0.0_f64; LANES];
    let (a, b) = (&a[..a.len().min(b.len())], &b[..a.len().min(b.len())]);
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f64 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(x, y)| x * y).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f64>() + rest
}

/// `y += factor * x`.
pub(crate) fn add_scaled(y: &mut [f32], factor: f32, x: &[f32]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += factor * x);
}

/// `values` with Euclidean norm 1; all zeros stay.
pub(crate) fn normalized(values: &[f32]) -> Vec<f32> {
    // Divided by the largest first: squares of large finite values overflow.
    let largest = values.iter().fold(0.0_f32, |most, v| most.max(v.abs()));
    if largest == 0.0 {
        return values.to_vec();
    }
    let mut scaled: Vec<f32> = values.iter().map(|v| v / largest).collect();
    let norm = dot(&scaled, &scaled).sqrt();
    scaled.iter_mut().for_each(|v| *v /= norm);
    scaled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dot_products_cover_every_length() {
        for n in 0..70 {
            let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let b: Vec<f64> = a.iter().map(|&v| f64::from(v)).collect();
            let expected = (0..n).map(|i| i * i).sum::<i32>();
            assert_eq!(dot(&a, &a), expected as f32);
            assert_eq!(dot_f64(&b, &b), f64::from(expected));
        }
    }

    #[test]
    fn norms_of_extreme_values_are_one() {
        for scale in [1e-38_f32, 1.0, 1e38] {
            let unit = normalized(&[3.0 * scale, -2.0 * scale, 0.0]);
            assert!((dot(&unit, &unit) - 1.0).abs() < 1e-5, "{unit:?}");
        }
        assert_eq!(normalized(&[0.0; 3]), [0.0; 3]);
    }
}
