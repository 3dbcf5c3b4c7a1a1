//! Activation functions: SiLU and its gated form.

use crate::Kernels;
use crate::lanes::{LANES, Lanes};
use crate::op::math::exp;

impl Kernels {
    /// `x = x / (1 + e^-x)`, value by value (also called swish).
    ///
    /// # Numerics
    /// Relative error at most 6e-7 for `x >= -87`; below that the true value is smaller than 1.5e-36 and the result may
    /// be `-0`. `-inf` gives `-0`, `+inf` gives `+inf`, NaN stays NaN.
    ///
    /// # Source
    /// Elfwing et al., arXiv 1702.03118; Ramachandran et al., arXiv 1710.05941.
    pub fn silu(&self, x: &mut [f32]) {
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.silu)(x) }
    }

    /// `gate = silu(gate) * up`, value by value: the middle of a SwiGLU feed-forward network.
    ///
    /// # Numerics
    /// As [`silu`](Self::silu), with one more rounding.
    ///
    /// # Panics
    /// If the lengths differ.
    ///
    /// # Source
    /// Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202.
    pub fn silu_mul(&self, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "silu_mul: the rows differ in length");
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.silu_mul)(gate, up) }
    }
}

/// SiLU of eight values. The clamp turns `-inf / inf` into `-MAX / inf`.
#[inline(always)]
fn silu_lanes<L: Lanes>(l: L, x: L::V) -> L::V {
    let x = l.max(l.splat(f32::MIN), x);
    l.div(x, l.add(l.splat(1.0), exp(l, l.sub(l.zero(), x))))
}

#[inline(always)]
pub(crate) fn silu<L: Lanes>(l: L, x: &mut [f32]) {
    let (chunks, tail) = x.as_chunks_mut::<LANES>();
    for x in chunks {
        l.store(silu_lanes(l, l.load(x)), x);
    }
    if !tail.is_empty() {
        l.store_partial(silu_lanes(l, l.load_partial(tail)), tail);
    }
}

#[inline(always)]
pub(crate) fn silu_mul<L: Lanes>(l: L, gate: &mut [f32], up: &[f32]) {
    let (gate_chunks, gate_tail) = gate.as_chunks_mut::<LANES>();
    let (up_chunks, up_tail) = up.as_chunks::<LANES>();
    for (gate, up) in gate_chunks.iter_mut().zip(up_chunks) {
        l.store(l.mul(silu_lanes(l, l.load(gate)), l.load(up)), gate);
    }
    if !gate_tail.is_empty() {
        let product = l.mul(silu_lanes(l, l.load_partial(gate_tail)), l.load_partial(up_tail));
        l.store_partial(product, gate_tail);
    }
}

#[cfg(test)]
mod tests {
    use crate::Kernels;

    #[test]
    fn special_values() {
        for kernels in Kernels::available() {
            let mut x =
                [0.0, f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -1000.0, 1000.0, f32::MIN, f32::MAX, -0.0];
            kernels.silu(&mut x);
            assert_eq!(x[..3], [0.0, 0.0, f32::INFINITY]);
            assert!(x[3].is_nan());
            assert_eq!(x[4..], [0.0, 1000.0, 0.0, f32::MAX, 0.0]);
            let mut gate = [1.0, -1.0];
            kernels.silu_mul(&mut gate, &[2.0, f32::NAN]);
            assert!((gate[0] - 1.462_117_2).abs() < 1e-6 && gate[1].is_nan());
        }
    }
}
