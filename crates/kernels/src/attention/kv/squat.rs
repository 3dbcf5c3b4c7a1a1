//! `SQuat`: per-dimension key quantization (`kivi.rs`) that minimizes score errors of queries.
//!
//! Scales, minima and reading are those of KIVI; only the choice of quants differs. Dimensions are
//! quantized in order, and each error is compensated in the remaining dimensions: they move to
//! where the whole error `d` of a key minimizes `|d|² + strength * Σ (q · d)²` over observed
//! queries `q`. With `A` the matrix of that form, `e` the error of dimension `i` and `R` the later
//! dimensions: `k_R -= A_RR⁻¹ A_Ri e`.
//!
//! # Source
//! Wang et al., "`SQuat`: subspace-orthogonal KV cache quantization", arXiv 2503.24358; the update
//! is that of Frantar et al., "`GPTQ`", arXiv 2210.17323. Differences from the paper: ADR-0015.

use half::f16;

use super::codes::{Codes, count, inverse};
use super::{GROUP, Line, floats_mut};
use crate::lanes::{LANES, Lanes};
use crate::{Error, Result};

/// Weights that correct a key's later dimensions for quantization errors of earlier ones, per head.
///
/// Computed from queries, applied by
/// [`KvPlaneMut::with_corrections`](crate::attention::KvPlaneMut::with_corrections).
///
/// # Examples
/// ```
/// use ruvllm_kernels::attention::SquatCorrection;
/// use ruvllm_kernels::Kernels;
///
/// let kernels = Kernels::detect()?;
/// let queries: Vec<f32> = (0..100 * 32).map(|i| (i as f32 * 0.7).sin()).collect(); // [100, 1 head, 32]
/// let mut gram = vec![0.0; 32 * 32];
/// kernels.add_gram(&queries, 32, 0..32, 32, &mut gram);
/// let correction = SquatCorrection::new(&gram, 32, 1.0)?;
/// assert_eq!(correction.bytes(), 4 * 8 * (32 + 24 + 16 + 8));
/// # Ok::<(), ruvllm_kernels::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct SquatCorrection {
    head_dim: usize,
    /// Per group of eight dimensions, a row for each dimension from the group's first on: its
    /// weights of the group's errors. Zero for errors of the dimension itself and later ones.
    weights: Vec<[f32; LANES]>,
}

impl SquatCorrection {
    /// Computes the correction for queries with this Gram matrix.
    ///
    /// The matrix is divided by the mean of its diagonal, so that `strength` is independent of the
    /// number and the length of the queries: 0 is no correction; a larger value lets a key's own
    /// error grow to keep scores right. With few queries, use a small `strength`.
    ///
    /// # Shapes
    /// `gram`: `[head_dim, head_dim]`, `Σ q qᵀ` as summed by
    /// [`Kernels::add_gram`](crate::Kernels::add_gram); only the diagonal and the part above it are
    /// read. All zeros (no queries) gives [`none`](Self::none).
    ///
    /// # Numerics
    /// f64, then rounded to f32; `head_dim³ / 3` multiply-adds.
    ///
    /// # Errors
    /// [`Error::QueryGram`] if the values are not finite, the sum of the diagonal is not positive,
    /// or the form is not positive definite.
    ///
    /// # Panics
    /// If the matrix has another size or `head_dim` is not a multiple of 8.
    pub fn new(gram: &[f32], head_dim: usize, strength: f32) -> Result<Self> {
        assert_eq!(Some(gram.len()), head_dim.checked_mul(head_dim), "squat: size of the Gram matrix");
        let mut correction = Self::none(head_dim);
        if gram.iter().all(|&x| x == 0.0) {
            return Ok(correction);
        }
        let upper = form(gram, head_dim, strength)
            .and_then(|form| factor(form, head_dim))
            .ok_or(Error::QueryGram { head_dim })?;
        let mut later = vec![0.0; head_dim];
        for i in 0..head_dim {
            let (eight, later) = (i / LANES, &mut later[i + 1..]);
            solve(&upper, head_dim, i, later);
            let rows = &mut correction.weights[rows_of(head_dim, eight)][i + 1 - LANES * eight..];
            for (row, x) in rows.iter_mut().zip(later) {
                row[i % LANES] = *x as f32;
            }
        }
        let finite = correction.weights.as_flattened().iter().all(|x| x.is_finite());
        finite.then_some(correction).ok_or(Error::QueryGram { head_dim })
    }

    /// Creates the identity correction: plain KIVI quantization.
    ///
    /// # Panics
    /// If `head_dim` is not a multiple of 8.
    pub fn none(head_dim: usize) -> Self {
        assert!(
            head_dim.is_multiple_of(LANES),
            "squat: heads of {head_dim} values, not a multiple of {LANES}"
        );
        let rows = rows_of(head_dim, head_dim / LANES).start;
        Self { head_dim, weights: vec![[0.0; LANES]; rows] }
    }

    /// Values per head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Bytes of the weights: a little more than `2 * head_dim²`.
    pub fn bytes(&self) -> usize {
        size_of_val(self.weights.as_slice())
    }
}

/// Rows of group `eight` in the weights: the first group has `head_dim` rows, each later one 8
/// fewer.
fn rows_of(head_dim: usize, eight: usize) -> std::ops::Range<usize> {
    let first = |eight: usize| eight * head_dim - LANES * eight * eight.saturating_sub(1) / 2;
    first(eight)..first(eight + 1)
}

/// Recomputes the quants of a run of tiles with corrections, keeping the stored scales and minima.
///
/// # Shapes
/// `keys`: `[tiles, head_dim, 32]`, modified; `quants`: all of the run; `scales`: `[2, head_dim]`,
/// scales, then minima.
#[inline(always)]
pub(super) fn choose<L: Lanes, C: Codes>(
    l: L,
    correction: &SquatCorrection,
    keys: &mut [Line],
    quants: &mut [u8],
    scales: &[f16],
) {
    let dim = correction.head_dim;
    let keys = floats_mut(keys).as_chunks_mut::<GROUP>().0;
    let quants: &mut [C::Packed] = bytemuck::cast_slice_mut(quants);
    let (scales, minima) = scales.split_at(dim);
    let eights = scales.as_chunks::<LANES>().0.iter().zip(minima.as_chunks::<LANES>().0);
    for (eight, (scales, minima)) in eights.enumerate() {
        let steps = Steps::new(l, scales, minima);
        let first = LANES * eight;
        let (present, later) = correction.weights[rows_of(dim, eight)].split_at(LANES);
        for (keys, quants) in keys.chunks_exact_mut(dim).zip(quants.chunks_exact_mut(dim)) {
            let mut errors = [[0.0; GROUP]; LANES];
            for i in 0..LANES {
                let key = &mut keys[first + i];
                correct(l, &present[i][..i], &errors, key);
                let (q, error) = steps.quantize::<L, C>(l, i, key);
                (quants[first + i], errors[i]) = (C::pack(&q), error);
            }
            for (key, weights) in keys[first + LANES..].iter_mut().zip(later) {
                correct(l, weights, &errors, key);
            }
        }
    }
}

/// Scales and minima of eight dimensions.
struct Steps {
    scales: [f32; LANES],
    /// Reciprocals of the scales; 0 for a scale of 0.
    inverses: [f32; LANES],
    minima: [f32; LANES],
}

impl Steps {
    #[inline(always)]
    fn new<L: Lanes>(l: L, scales: &[f16; LANES], minima: &[f16; LANES]) -> Self {
        let mut steps = Self { scales: [0.0; LANES], inverses: [0.0; LANES], minima: [0.0; LANES] };
        let scales = l.load_f16(scales);
        l.store(scales, &mut steps.scales);
        l.store(inverse(l, scales), &mut steps.inverses);
        l.store(l.load_f16(minima), &mut steps.minima);
        steps
    }

    /// Quants of dimension `i` at 32 positions, and their errors (dequantized minus original). A
    /// non-finite error counts as 0, so that garbage stays in its dimension.
    #[inline(always)]
    fn quantize<L: Lanes, C: Codes>(
        &self,
        l: L,
        i: usize,
        key: &[f32; GROUP],
    ) -> ([u8; GROUP], [f32; GROUP]) {
        let (scale, minimum) = (l.splat(self.scales[i]), l.splat(self.minima[i]));
        let inverse = l.splat(self.inverses[i]);
        let (mut quants, mut errors) = ([0; GROUP], [0.0; GROUP]);
        let places = quants.as_chunks_mut().0.iter_mut().zip(errors.as_chunks_mut().0);
        for (x, (quants, error)) in key.as_chunks().0.iter().zip(places) {
            let x = l.load(x);
            *quants = count(l, l.mul(l.sub(x, minimum), inverse), [0.0, C::LARGEST]);
            let e = l.sub(l.fma(l.load(&quants.map(f32::from)), scale, minimum), x);
            l.store(l.select_lt(l.abs(e), l.splat(f32::INFINITY), e, l.zero()), error);
        }
        (quants, errors)
    }
}

/// Adds the weighted errors of earlier dimensions to a later one, in order.
#[inline(always)]
fn correct<L: Lanes>(l: L, weights: &[f32], errors: &[[f32; GROUP]; LANES], key: &mut [f32; GROUP]) {
    let key = key.as_chunks_mut().0;
    let mut sums = [l.zero(); GROUP / LANES];
    for (sum, key) in sums.iter_mut().zip(&*key) {
        *sum = l.load(key);
    }
    for (&weight, errors) in weights.iter().zip(errors) {
        let weight = l.splat(weight);
        for (sum, error) in sums.iter_mut().zip(errors.as_chunks().0) {
            *sum = l.fma(weight, l.load(error), *sum);
        }
    }
    for (sum, key) in sums.into_iter().zip(key) {
        l.store(sum, key);
    }
}

/// Upper triangle of `I + strength * gram / (mean of its diagonal)`.
///
/// `None` if the mean is not positive.
fn form(gram: &[f32], dim: usize, strength: f32) -> Option<Vec<f64>> {
    let trace: f64 = gram.iter().step_by(dim + 1).map(|&x| f64::from(x)).sum();
    let factor = f64::from(strength) * dim as f64 / trace;
    let mut form: Vec<f64> = gram.iter().map(|&x| factor * f64::from(x)).collect();
    form.iter_mut().step_by(dim + 1).for_each(|x| *x += 1.0);
    (trace > 0.0).then_some(form)
}

/// Factors `a = U Uᵀ` in place with upper triangular `U`; `None` if `a` is not positive definite.
/// The trailing submatrix of `a` from any dimension is the product of that submatrix of `U`.
fn factor(mut a: Vec<f64>, dim: usize) -> Option<Vec<f64>> {
    for j in (0..dim).rev() {
        let (above, row) = a.split_at_mut(j * dim);
        let (pivot, behind) = row[j..dim].split_first_mut()?;
        *pivot -= dot(behind, behind);
        // Also false for NaN.
        if !(*pivot > 0.0 && pivot.is_finite()) {
            return None;
        }
        *pivot = pivot.sqrt();
        for other in above.chunks_exact_mut(dim) {
            let (x, rest) = other[j..].split_first_mut()?;
            *x = (*x - dot(rest, behind)) / *pivot;
        }
    }
    Some(a)
}

/// Computes `-A_RR⁻¹ A_Ri` for dimension `i` and the later dimensions `R`: forward substitution in
/// `U_RRᵀ x = -U_iRᵀ`.
fn solve(factor: &[f64], dim: usize, i: usize, x: &mut [f64]) {
    let first = dim - x.len();
    for (x, u) in x.iter_mut().zip(&factor[i * dim + first..]) {
        *x = -u;
    }
    let mut rest = x;
    let mut r = first;
    while let Some((x, later)) = rest.split_first_mut() {
        let (pivot, row) = (factor[r * dim + r], &factor[r * dim + r + 1..]);
        *x /= pivot;
        for (y, u) in later.iter_mut().zip(row) {
            *y -= u * *x;
        }
        (rest, r) = (later, r + 1);
    }
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}
