//! Row normalization: RMS norm (also with `1 + weight`) and layer norm, optionally after a residual
//! addition.

use crate::Kernels;
use crate::lanes::{LANES, Lanes};
use crate::rows::dot::{add_assign, dot};

/// Normalization with its weights, `[n]` each.
#[derive(Debug, Clone, Copy)]
pub enum Norm<'a> {
    /// RMS norm, `x / sqrt(mean(x^2) + eps) * weight`: Zhang and Sennrich, arXiv 1910.07467.
    Rms {
        /// Scale per column.
        weight: &'a [f32],
    },
    /// RMS norm with `1 + weight`, as in checkpoints of the Gemma family.
    ///
    /// `x / sqrt(mean(x^2) + eps) * (1 + weight)`. (GGUF files of that family store `1 + weight`.)
    RmsPlusOne {
        /// Scale per column, minus 1.
        weight: &'a [f32],
    },
    /// Layer norm: Ba et al., arXiv 1607.06450.
    ///
    /// `(x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias`.
    Layer {
        /// Scale per column.
        weight: &'a [f32],
        /// Bias per column, added after scaling; `None` for zeros.
        bias: Option<&'a [f32]>,
    },
}

impl<'a> Norm<'a> {
    /// Weights, one per column.
    fn weight(&self) -> &'a [f32] {
        match *self {
            Self::Rms { weight } | Self::RmsPlusOne { weight } | Self::Layer { weight, .. } => weight,
        }
    }

    /// Panics unless `len` is a whole number of rows.
    fn assert_rows(&self, len: usize) {
        let n = self.weight().len();
        assert!(len == 0 || (n > 0 && len.is_multiple_of(n)), "norm: not whole rows");
        if let Self::Layer { bias: Some(bias), .. } = self {
            assert_eq!(bias.len(), n, "norm: weight and bias differ in length");
        }
    }
}

impl Kernels {
    /// Applies [`norm`](Self::norm) with [`Norm::Rms`] to each row.
    ///
    /// # Panics
    /// If `x` and `out` differ in length or are not whole rows, or if `weight` is empty and they
    /// are not empty.
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        self.norm(Norm::Rms { weight }, eps, x, out);
    }

    /// Normalizes each row; for per-head norms, a row is a head.
    ///
    /// # Shapes
    /// `x`, `out`: `[rows, n]`, with `n` the length of the weights.
    ///
    /// # Numerics
    /// All sums in eight lanes as in [`dot`](Self::dot). RMS norm: `(x * (1 / sqrt(..))) * weight`,
    /// in this order; relative error about `3e-7 + γ_n / 2`. Layer norm: the mean first, then the
    /// squared differences; error about `3e-7 + γ_n` of `(|x| + mean|x|) / sqrt(..) * |weight|`.
    /// NaN in a row makes that row NaN.
    ///
    /// # Panics
    /// If `x` and `out` differ in length or are not whole rows, or the weights differ in length.
    pub fn norm(&self, norm: Norm<'_>, eps: f32, x: &[f32], out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "norm: input and output differ in length");
        norm.assert_rows(x.len());
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.norm)(norm, eps, x, out) }
    }

    /// Computes `x += y`, then [`norm`](Self::norm) of `x`: residual addition fused with the next
    /// norm.
    ///
    /// Works row by row, while the row is in the L1 cache.
    ///
    /// # Shapes
    /// `x`, `y`, `out`: `[rows, n]`.
    ///
    /// # Numerics
    /// Bit-identical to [`add_assign`](Self::add_assign) followed by [`norm`](Self::norm).
    ///
    /// # Panics
    /// As [`norm`](Self::norm), and if `y` differs in length.
    pub fn add_norm(&self, norm: Norm<'_>, eps: f32, x: &mut [f32], y: &[f32], out: &mut [f32]) {
        assert_eq!(x.len(), y.len(), "add_norm: the summands differ in length");
        assert_eq!(x.len(), out.len(), "add_norm: input and output differ in length");
        norm.assert_rows(x.len());
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.add_norm)(norm, eps, x, y, out) }
    }
}

#[inline(always)]
pub(crate) fn norm<L: Lanes>(l: L, norm: Norm<'_>, eps: f32, x: &[f32], out: &mut [f32]) {
    let n = norm.weight().len().max(1);
    for (x, out) in x.chunks_exact(n).zip(out.chunks_exact_mut(n)) {
        norm_row(l, norm, eps, x, out);
    }
}

#[inline(always)]
pub(crate) fn add_norm<L: Lanes>(l: L, norm: Norm<'_>, eps: f32, x: &mut [f32], y: &[f32], out: &mut [f32]) {
    let n = norm.weight().len().max(1);
    for ((x, y), out) in x.chunks_exact_mut(n).zip(y.chunks_exact(n)).zip(out.chunks_exact_mut(n)) {
        add_assign(l, x, y);
        norm_row(l, norm, eps, x, out);
    }
}

/// Computes the statistics of a row, then its values.
#[inline(always)]
fn norm_row<L: Lanes>(l: L, norm: Norm<'_>, eps: f32, x: &[f32], out: &mut [f32]) {
    let n = x.len() as f32;
    match norm {
        Norm::Rms { weight } => {
            let scale = l.splat(1.0 / (dot(l, x, x) / n + eps).sqrt());
            map_columns(l, Scaled(scale), x, [weight], out);
        }
        Norm::RmsPlusOne { weight } => {
            let scale = l.splat(1.0 / (dot(l, x, x) / n + eps).sqrt());
            map_columns(l, ScaledPlusOne(scale), x, [weight], out);
        }
        Norm::Layer { weight, bias } => {
            let mean = l.splat(sum(l, x) / n);
            let scale = l.splat(1.0 / (squares_about(l, x, mean) / n + eps).sqrt());
            match bias {
                None => map_columns(l, Centred(mean, scale), x, [weight], out),
                Some(bias) => map_columns(l, Centred(mean, scale), x, [weight, bias], out),
            }
        }
    }
}

/// Formula over eight values and `N` parameters per column.
trait Formula<L: Lanes, const N: usize>: Copy {
    fn of(self, l: L, x: L::V, parameters: [L::V; N]) -> L::V;
}

#[derive(Clone, Copy)]
struct Scaled<V>(V);

#[derive(Clone, Copy)]
struct ScaledPlusOne<V>(V);

/// Mean and scale.
#[derive(Clone, Copy)]
struct Centred<V>(V, V);

impl<L: Lanes> Formula<L, 1> for Scaled<L::V> {
    #[inline(always)]
    fn of(self, l: L, x: L::V, [weight]: [L::V; 1]) -> L::V {
        l.mul(l.mul(x, self.0), weight)
    }
}

impl<L: Lanes> Formula<L, 1> for ScaledPlusOne<L::V> {
    #[inline(always)]
    fn of(self, l: L, x: L::V, [weight]: [L::V; 1]) -> L::V {
        l.mul(l.mul(x, self.0), l.add(l.splat(1.0), weight))
    }
}

impl<L: Lanes> Formula<L, 1> for Centred<L::V> {
    #[inline(always)]
    fn of(self, l: L, x: L::V, [weight]: [L::V; 1]) -> L::V {
        l.mul(l.mul(l.sub(x, self.0), self.1), weight)
    }
}

impl<L: Lanes> Formula<L, 2> for Centred<L::V> {
    #[inline(always)]
    fn of(self, l: L, x: L::V, [weight, bias]: [L::V; 2]) -> L::V {
        l.fma(l.mul(l.sub(x, self.0), self.1), weight, bias)
    }
}

/// Computes `out[i] = formula(x[i], [parameters[0][i], ..])`.
#[inline(always)]
fn map_columns<L: Lanes, F: Formula<L, N>, const N: usize>(
    l: L,
    formula: F,
    x: &[f32],
    parameters: [&[f32]; N],
    out: &mut [f32],
) {
    let whole = x.len() / LANES;
    let parameters = parameters.map(|row| (&row.as_chunks::<LANES>().0[..whole], &row[whole * LANES..]));
    let (x_chunks, x_tail) = x.as_chunks::<LANES>();
    let (out_chunks, out_tail) = out.as_chunks_mut::<LANES>();
    let mut here = [l.zero(); N];
    for (i, (x, out)) in x_chunks.iter().zip(out_chunks).enumerate() {
        for (here, (chunks, _)) in here.iter_mut().zip(&parameters) {
            *here = l.load(&chunks[i]);
        }
        l.store(formula.of(l, l.load(x), here), out);
    }
    if !x_tail.is_empty() {
        for (here, (_, tail)) in here.iter_mut().zip(&parameters) {
            *here = l.load_partial(tail);
        }
        l.store_partial(formula.of(l, l.load_partial(x_tail), here), out_tail);
    }
}

/// Sum of a row.
#[inline(always)]
fn sum<L: Lanes>(l: L, x: &[f32]) -> f32 {
    let (chunks, tail) = x.as_chunks::<LANES>();
    let mut acc = l.zero();
    for x in chunks {
        acc = l.add(acc, l.load(x));
    }
    l.sum(l.add(acc, l.load_partial(tail)))
}

/// `Σ (x - mean)^2`; lanes beyond the tail hold the mean, which adds 0.
#[inline(always)]
fn squares_about<L: Lanes>(l: L, x: &[f32], mean: L::V) -> f32 {
    let (chunks, tail) = x.as_chunks::<LANES>();
    let mut acc = l.zero();
    for x in chunks {
        let d = l.sub(l.load(x), mean);
        acc = l.fma(d, d, acc);
    }
    let mut last = [0.0; LANES];
    l.store(mean, &mut last);
    last[..tail.len()].copy_from_slice(tail);
    let d = l.sub(l.load(&last), mean);
    l.sum(l.fma(d, d, acc))
}
