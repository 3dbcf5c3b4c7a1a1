//! Softmax and log-sum-exp of a row.

use crate::Kernels;
use crate::lanes::math::exp_nonpositive;
use crate::lanes::{LANES, Lanes};

impl Kernels {
    /// Computes the softmax of a row in place: `e^(x_i - m) / Σ e^(x_j - m)`, `m` the largest
    /// value.
    ///
    /// # Shapes
    /// `x`: `[n]`, any `n`.
    ///
    /// # Numerics
    /// Relative error of the exponential at most 2e-7; of a probability about 5e-7, plus `|x_i -
    /// m|` times 2^-24 from the rounding of the difference, plus `γ_n` of the sum. Probabilities
    /// below `e^-87.3` of the largest are 0. A (masked) value of `-inf` gets 0; a row of only
    /// `-inf` becomes all 0. A NaN or `+inf` anywhere makes the whole row NaN.
    pub fn softmax(&self, x: &mut [f32]) {
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.softmax)(x) }
    }

    /// Computes `ln Σ e^x_i` without overflow.
    ///
    /// # Shapes
    /// `x`: `[n]`; an empty row gives `-inf`.
    ///
    /// # Numerics
    /// Absolute error about 1e-6 plus the rounding of the result. A row of only `-inf` gives
    /// `-inf`, a NaN gives NaN, `+inf` (without a NaN) gives `+inf`.
    pub fn log_sum_exp(&self, x: &[f32]) -> f32 {
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.log_sum_exp)(x) }
    }
}

/// Largest non-NaN value; `-inf` if there is none.
#[inline(always)]
pub(crate) fn largest<L: Lanes>(l: L, x: &[f32]) -> f32 {
    let (chunks, tail) = x.as_chunks::<LANES>();
    let mut largest = l.splat(f32::NEG_INFINITY);
    for x in chunks {
        largest = l.max(l.load(x), largest);
    }
    tail.iter().fold(l.max_lane(largest), |largest, &x| if x > largest { x } else { largest })
}

/// Value subtracted before the exponential: the largest value, or 0 if that is `-inf`, because
/// `-inf - -inf` is NaN.
#[inline(always)]
pub(crate) fn shift_for(largest: f32) -> f32 {
    if largest == f32::NEG_INFINITY { 0.0 } else { largest }
}

/// Loads a partial vector padded with `-inf`, which adds 0 to a sum of exponentials.
#[inline(always)]
fn load_masked<L: Lanes>(l: L, tail: &[f32]) -> L::V {
    let mut full = [f32::NEG_INFINITY; LANES];
    full[..tail.len()].copy_from_slice(tail);
    l.load(&full)
}

#[inline(always)]
pub(crate) fn softmax<L: Lanes>(l: L, x: &mut [f32]) {
    let shift = l.splat(shift_for(largest(l, x)));
    let (chunks, tail) = x.as_chunks_mut::<LANES>();
    let mut sum = l.zero();
    for x in chunks.iter_mut() {
        let e = exp_nonpositive(l, l.sub(l.load(x), shift));
        sum = l.add(sum, e);
        l.store(e, x);
    }
    if !tail.is_empty() {
        let e = exp_nonpositive(l, l.sub(load_masked(l, tail), shift));
        sum = l.add(sum, e);
        l.store_partial(e, tail);
    }
    let sum = l.sum(sum);
    if sum == 0.0 {
        return; // every value was -inf and is now 0
    }
    for x in chunks {
        l.store(l.div(l.load(x), l.splat(sum)), x);
    }
    for x in tail {
        *x /= sum;
    }
}

#[inline(always)]
pub(crate) fn log_sum_exp<L: Lanes>(l: L, x: &[f32]) -> f32 {
    let largest = largest(l, x);
    if largest == f32::INFINITY {
        return if x.iter().any(|x| x.is_nan()) { f32::NAN } else { f32::INFINITY };
    }
    let shift = shift_for(largest);
    let (chunks, tail) = x.as_chunks::<LANES>();
    let mut sum = l.zero();
    for x in chunks {
        sum = l.add(sum, exp_nonpositive(l, l.sub(l.load(x), l.splat(shift))));
    }
    if !tail.is_empty() {
        sum = l.add(sum, exp_nonpositive(l, l.sub(load_masked(l, tail), l.splat(shift))));
    }
    // f64, because the result rounded to f32 does not depend on the platform's math library.
    (f64::from(shift) + f64::from(l.sum(sum)).ln()) as f32
}
