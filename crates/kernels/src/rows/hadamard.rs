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
