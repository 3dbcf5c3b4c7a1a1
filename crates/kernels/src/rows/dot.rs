//! Dot product and addition of rows.

use crate::Kernels;
use crate::lanes::{LANES, Lanes};

impl Kernels {
    /// Computes the dot product of two rows.
    ///
    /// # Shapes
    /// `x`, `y`: `[n]`; the result of two empty rows is 0.
    ///
    /// # Numerics
    /// Eight lanes of fused multiply-adds in ascending order, reduced by a fixed tree:
    /// bit-identical on every instruction set. Error at most `γ_n Σ|x_i y_i|`, `γ_n = n u / (1 - n
    /// u)`, `u = 2^-24`. NaN and infinities propagate as in the sum.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn dot(&self, x: &[f32], y: &[f32]) -> f32 {
        assert_eq!(x.len(), y.len(), "dot: the rows differ in length");
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.dot)(x, y) }
    }

    /// Computes `x += y`, element by element.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn add_assign(&self, x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len(), "add_assign: the rows differ in length");
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.add_assign)(x, y) }
    }
}

/// One chain of fused multiply-adds per lane.
///
/// Two or more chains would be faster on long rows, but in another order; long dot products are
/// matrix products, which run several rows at a time.
#[inline(always)]
pub(crate) fn dot<L: Lanes>(l: L, x: &[f32], y: &[f32]) -> f32 {
    let (x_chunks, x_tail) = x.as_chunks::<LANES>();
    let (y_chunks, y_tail) = y.as_chunks::<LANES>();
    let mut acc = l.zero();
    for (x, y) in x_chunks.iter().zip(y_chunks) {
        acc = l.fma(l.load(x), l.load(y), acc);
    }
    if !x_tail.is_empty() {
        acc = l.fma(l.load_partial(x_tail), l.load_partial(y_tail), acc);
    }
    l.sum(acc)
}

#[inline(always)]
pub(crate) fn add_assign<L: Lanes>(l: L, x: &mut [f32], y: &[f32]) {
    let (x_chunks, x_tail) = x.as_chunks_mut::<LANES>();
    let (y_chunks, y_tail) = y.as_chunks::<LANES>();
    for (x, y) in x_chunks.iter_mut().zip(y_chunks) {
        l.store(l.add(l.load(x), l.load(y)), x);
    }
    for (x, y) in x_tail.iter_mut().zip(y_tail) {
        *x += y;
    }
}
