//! `ALiBi`, attention with linear biases: score penalties proportional to the key's distance.
//!
//! Source: Press, Smith and Lewis, "Train short, test long: attention with linear biases enables
//! input length extrapolation", arXiv 2108.12409.

/// `ALiBi` slope of query head `head` of `n_heads`.
///
/// A score gets `slope * (key position - query position)`, which is 0 or negative, added after the
/// soft cap.
///
/// For a power of two `n` of heads the slopes are `2^(-max_bias * (head + 1) / n)`; `max_bias` is 8
/// in the paper. For other head counts, as in the paper, the heads beyond the largest power of two
/// `n` below take every other slope of `2 n` heads.
///
/// # Examples
/// ```
/// use ruvllm_kernels::attention::alibi_slope;
///
/// assert_eq!((0..4).map(|head| alibi_slope(head, 4, 8.0)).collect::<Vec<_>>(), [0.25, 0.0625, 0.015625, 0.00390625]);
/// assert_eq!(alibi_slope(4, 6, 8.0), 0.5, "the first slope of 8 heads");
/// ```
pub fn alibi_slope(head: usize, n_heads: usize, max_bias: f32) -> f32 {
    let power = if n_heads.is_power_of_two() { n_heads } else { n_heads.next_power_of_two() / 2 };
    let (numerator, denominator) =
        if head < power { (head + 1, power) } else { (2 * (head - power) + 1, 2 * power) };
    // f64, because the result rounded to f32 does not depend on the platform's math library.
    (-f64::from(max_bias) * numerator as f64 / denominator as f64).exp2() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_of_the_paper() {
        let eight: Vec<f32> = (0..8).map(|head| alibi_slope(head, 8, 8.0)).collect();
        assert_eq!(eight, (1..=8).map(|i| 0.5f32.powi(i)).collect::<Vec<_>>());
        let twelve: Vec<f32> = (0..12).map(|head| alibi_slope(head, 12, 8.0)).collect();
        assert_eq!(twelve[..8], eight);
        for (i, slope) in twelve[8..].iter().enumerate() {
            assert_eq!(*slope, alibi_slope(2 * i, 16, 8.0));
        }
        assert_eq!(alibi_slope(0, 1, 8.0), 0.5f32.powi(8));
    }
}
