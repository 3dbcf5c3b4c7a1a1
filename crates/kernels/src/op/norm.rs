//! Root-mean-square normalization.

use crate::Kernels;
use crate::lanes::{LANES, Lanes};

impl Kernels {
    /// Normalizes each row by its root mean square: `out = x / sqrt(mean(x^2) + eps) * weight`.
    ///
    /// # Shapes
    /// `weight`: `[n]`; `x`, `out`: `[rows, n]`.
    ///
    /// # Numerics
    /// The sum of squares in eight lanes as [`dot`](Self::dot); then `(x * (1 / sqrt(..))) * weight`, in this order.
    /// Relative error about `3e-7 + γ_n / 2`. NaN in a row makes that row NaN.
    ///
    /// # Panics
    /// If `x` and `out` differ in length or are not whole rows, or if `weight` is empty and they are not.
    ///
    /// # Source
    /// Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv 1910.07467.
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "rms_norm: input and output differ in length");
        if x.is_empty() {
            return;
        }
        assert!(!weight.is_empty() && x.len().is_multiple_of(weight.len()), "rms_norm: not whole rows");
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.rms_norm)(x, weight, eps, out) }
    }
}

#[inline(always)]
pub(crate) fn rms_norm<L: Lanes>(l: L, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let n = weight.len();
    for (x, out) in x.chunks_exact(n).zip(out.chunks_exact_mut(n)) {
        let mean = super::dot::dot(l, x, x) / n as f32;
        scale_into(l, x, 1.0 / (mean + eps).sqrt(), weight, out);
    }
}

/// `out = (x * scale) * weight`.
#[inline(always)]
fn scale_into<L: Lanes>(l: L, x: &[f32], scale: f32, weight: &[f32], out: &mut [f32]) {
    let (x_chunks, x_tail) = x.as_chunks::<LANES>();
    let (w_chunks, w_tail) = weight.as_chunks::<LANES>();
    let (out_chunks, out_tail) = out.as_chunks_mut::<LANES>();
    for ((x, w), out) in x_chunks.iter().zip(w_chunks).zip(out_chunks) {
        l.store(l.mul(l.mul(l.load(x), l.splat(scale)), l.load(w)), out);
    }
    for ((x, w), out) in x_tail.iter().zip(w_tail).zip(out_tail) {
        *out = x * scale * w;
    }
}

#[cfg(test)]
mod tests {
    use crate::Kernels;

    #[test]
    fn rows_are_independent() {
        for kernels in Kernels::available() {
            let mut out = [0.0; 6];
            kernels.rms_norm(&[3.0, 4.0, 0.0, 0.0, f32::NAN, 1.0], &[1.0, 2.0], 0.0, &mut out);
            let rms = 12.5f32.sqrt();
            assert!((out[0] - 3.0 / rms).abs() < 1e-6 && (out[1] - 8.0 / rms).abs() < 1e-6);
            assert!(out[2].is_nan(), "0 / 0 without eps");
            assert!(out[4].is_nan() && out[5].is_nan());
            kernels.rms_norm(&[0.0, 0.0], &[1.0, 1.0], 1e-6, &mut out[..2]);
            assert_eq!(out[..2], [0.0, 0.0]);
            kernels.rms_norm(&[], &[], 1e-6, &mut []);
        }
    }

    #[test]
    #[should_panic(expected = "not whole rows")]
    fn partial_rows_are_refused() {
        Kernels::available()[0].rms_norm(&[1.0; 5], &[1.0; 2], 0.0, &mut [0.0; 5]);
    }
}
