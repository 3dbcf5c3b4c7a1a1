//! Walsh-Hadamard transform of rows, which spreads quantization error over all dimensions.
//!
//! Source: Ashkboos et al., "`QuaRot`: outlier-free 4-bit inference in rotated LLMs", arXiv
//! 2404.00456.

use crate::Kernels;
use crate::lanes::{LANES, Lanes};

impl Kernels {
    /// Multiplies each row by the normalized Walsh-Hadamard matrix `H` of its length, in place.
    ///
    /// `H[i][j] = (-1)^popcount(i & j) / sqrt(dim)`.
    ///
    /// `H` is symmetric and orthogonal: if queries and keys are both transformed (after RoPE),
    /// scores are unchanged, but low-bit formats with a scale per position preserve them better,
    /// because outlier dimensions disappear. Values may be transformed as well; the output of
    /// attention must then be transformed again. Keys with a scale per dimension
    /// ([`KvFormat::Kivi`](crate::attention::KvFormat::Kivi)) become less accurate.
    ///
    /// # Shapes
    /// `rows`: `[n, dim]`.
    ///
    /// # Numerics
    /// `log2(dim)` rounds of sums and differences, then one multiplication by `1 / sqrt(dim)`;
    /// bit-identical on every instruction set. Error at most `(log2(dim) + 2) u` of the row's norm
    /// per value, `u = 2^-24`. One non-finite value makes the whole row non-finite.
    ///
    /// # Panics
    /// If `dim` is not a power of two from 16 to 256 or does not divide `rows`.
    ///
    /// # Examples
    /// ```
    /// use ruvllm_kernels::Kernels;
    ///
    /// let mut row = [0.0; 64];
    /// row[5] = 8.0;
    /// let kernels = Kernels::detect()?;
    /// kernels.hadamard(&mut row, 64);
    /// assert!(row.iter().all(|x| x.abs() == 1.0), "spread evenly");
    /// kernels.hadamard(&mut row, 64);
    /// assert_eq!(row[5], 8.0);
    /// # Ok::<(), ruvllm_kernels::Error>(())
    /// ```
    pub fn hadamard(&self, rows: &mut [f32], dim: usize) {
        assert!(dim.is_power_of_two() && (16..=256).contains(&dim), "hadamard: rows of {dim} values");
        assert!(rows.len().is_multiple_of(dim), "hadamard: {} values in rows of {dim}", rows.len());
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.hadamard)(rows, dim) }
    }
}

/// Butterflies at the distances 1, 2, 4 (within a vector), then 8, 16, ... (between vectors).
#[inline(always)]
pub(crate) fn hadamard<L: Lanes>(l: L, rows: &mut [f32], dim: usize) {
    let scale = l.splat(1.0 / (dim as f32).sqrt());
    let plus_minus = [
        l.load(&[1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0]),
        l.load(&[1.0, 1.0, -1.0, -1.0, 1.0, 1.0, -1.0, -1.0]),
        l.load(&[1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0]),
    ];
    for row in rows.chunks_exact_mut(dim) {
        let row = row.as_chunks_mut::<LANES>().0;
        for x in &mut *row {
            // Partner plus or minus the value; the product with 1 or -1 is exact.
            let v = l.load(x);
            let v = l.fma(v, plus_minus[0], l.swap_pairs(v));
            let v = l.fma(v, plus_minus[1], l.swap_twos(v));
            l.store(l.fma(v, plus_minus[2], l.swap_fours(v)), x);
        }
        let mut distance = 1;
        while 2 * distance < row.len() {
            butterflies(l, row, distance, None);
            distance *= 2;
        }
        butterflies(l, row, distance, Some(scale));
    }
}

/// Sums and differences of vectors `distance` apart, times `scale`.
#[inline(always)]
fn butterflies<L: Lanes>(l: L, row: &mut [[f32; LANES]], distance: usize, scale: Option<L::V>) {
    for pair in row.chunks_exact_mut(2 * distance) {
        let (a, b) = pair.split_at_mut(distance);
        for (a, b) in a.iter_mut().zip(b) {
            let (x, y) = (l.load(a), l.load(b));
            let (mut sum, mut difference) = (l.add(x, y), l.sub(x, y));
            if let Some(scale) = scale {
                (sum, difference) = (l.mul(sum, scale), l.mul(difference, scale));
            }
            l.store(sum, a);
            l.store(difference, b);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Isa;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100 * ProptestConfig::default().cases / 256, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn rows_are_multiplied_with_the_matrix_and_twice_with_one(
            log_dim in 4u32..9,
            x in prop::collection::vec(-100f32..100.0, 512),
        ) {
            let dim = 1 << log_dim;
            let u = 2f64.powi(-24);
            let bound = f64::from(log_dim + 2) * u;
            let mut rows = x.clone();
            Kernels::for_isa(Isa::Scalar).unwrap().hadamard(&mut rows, dim);
            for kernels in Kernels::available() {
                let mut other = x.clone();
                kernels.hadamard(&mut other, dim);
                prop_assert!(other.iter().zip(&rows).all(|(a, b)| a.to_bits() == b.to_bits()), "{}", kernels.isa());
            }
            for (x, y) in x.chunks(dim).zip(rows.chunks(dim)) {
                let norm = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
                for (i, y) in y.iter().enumerate() {
                    let sign = |j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
                    let sum: f64 = x.iter().enumerate().map(|(j, &x)| sign(j) * f64::from(x)).sum();
                    let expected = sum / (dim as f64).sqrt();
                    prop_assert!((f64::from(*y) - expected).abs() <= bound * norm, "{y}, not {expected}");
                }
            }
            Kernels::detect().unwrap().hadamard(&mut rows, dim);
            for (x, y) in x.chunks(dim).zip(rows.chunks(dim)) {
                let norm = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
                for (x, y) in x.iter().zip(y) {
                    // The second transform may accumulate the errors of all values of the first.
                    let bound = bound * norm * (1.0 + (dim as f64).sqrt());
                    prop_assert!((f64::from(*x) - f64::from(*y)).abs() <= bound, "{y}, not {x}");
                }
            }
        }
    }

    #[test]
    fn a_value_that_is_not_finite_reaches_its_row_alone() {
        for kernels in Kernels::available() {
            let mut rows = [1.0; 3 * 32];
            rows[40] = f32::INFINITY;
            kernels.hadamard(&mut rows, 32);
            assert!(rows[32..64].iter().all(|x| !x.is_finite()));
            assert!(rows[..32].iter().chain(&rows[64..]).all(|x| x.is_finite()));
        }
    }

    #[test]
    #[should_panic(expected = "rows of 96 values")]
    fn other_lengths_are_refused() {
        Kernels::detect().unwrap().hadamard(&mut [0.0; 96], 96);
    }
}
