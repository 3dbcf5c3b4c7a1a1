//! Binary vectors: one sign bit per value, compared by Hamming distance.

use crate::Kernels;
use crate::lanes::Lanes;

impl Kernels {
    /// Computes the Hamming distance: the number of differing bits of two rows of words.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn hamming(&self, x: &[u64], y: &[u64]) -> u32 {
        assert_eq!(x.len(), y.len(), "hamming: the rows differ in length");
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.hamming)(x, y) }
    }

    /// Computes the Hamming distances of `query` to each of `rows`.
    ///
    /// # Shapes
    /// `query`: `[words]`; `rows`: `[out.len(), words]`.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn hammings(&self, query: &[u64], rows: &[u64], out: &mut [u32]) {
        assert_eq!(Some(rows.len()), query.len().checked_mul(out.len()), "hammings: length of the rows");
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.hammings)(query, rows, out) }
    }

    /// Quantizes to one bit per value, set if the value is positive: bit `i % 64` of word `i / 64`.
    ///
    /// NaN gives 0; padding bits are 0.
    ///
    /// # Shapes
    /// `x`: `[dim]`; `out`: `[dim.div_ceil(64)]`.
    ///
    /// # Panics
    /// If `out` has another length.
    pub fn quantize_bits(&self, x: &[f32], out: &mut [u64]) {
        assert_eq!(out.len(), x.len().div_ceil(64), "quantize_bits: length of the words");
        for (x, out) in x.chunks(64).zip(out) {
            *out = x.iter().enumerate().fold(0, |word, (i, &x)| word | (u64::from(x > 0.0) << i));
        }
    }
}

#[inline(always)]
pub(crate) fn hamming<L: Lanes>(_: L, x: &[u64], y: &[u64]) -> u32 {
    x.iter().zip(y).map(|(x, y)| (x ^ y).count_ones()).sum()
}

#[inline(always)]
pub(crate) fn hammings<L: Lanes>(l: L, query: &[u64], rows: &[u64], out: &mut [u32]) {
    if query.is_empty() {
        return out.fill(0);
    }
    for (row, out) in rows.chunks_exact(query.len()).zip(out) {
        *out = hamming(l, query, row);
    }
}
