//! Vectors of bits: one per sign, compared by the number that differ.

use crate::Kernels;
use crate::lanes::Lanes;

impl Kernels {
    /// The Hamming distance: the number of bits in which two rows of words differ.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn hamming(&self, x: &[u64], y: &[u64]) -> u32 {
        assert_eq!(x.len(), y.len(), "hamming: the rows differ in length");
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.hamming)(x, y) }
    }

    /// The Hamming distances of `query` from each of `rows`.
    ///
    /// # Shapes
    /// `query`: `[words]`; `rows`: `[out.len(), words]`.
    ///
    /// # Panics
    /// If the lengths do not fit each other.
    pub fn hammings(&self, query: &[u64], rows: &[u64], out: &mut [u32]) {
        assert_eq!(Some(rows.len()), query.len().checked_mul(out.len()), "hammings: length of the rows");
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.hammings)(query, rows, out) }
    }

    /// One bit per value, set where the value is above zero: bit `i % 64` of word `i / 64`. The
    /// bits beyond the last value are 0, as are those of NaN.
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
