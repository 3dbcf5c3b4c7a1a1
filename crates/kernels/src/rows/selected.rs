//! Products with selected rows of a matrix: the logits of a few tokens, and their gradient.

use crate::Kernels;
use crate::lanes::{LANES, Lanes};
use crate::rows::dot::dot;

/// Rows at a time: their sums are independent, so that none waits for the one before.
const ROWS: usize = LANES;

/// Rows of a row-major matrix in any order and number.
#[derive(Debug, Clone, Copy)]
pub struct SelectedRows<'a> {
    values: &'a [f32],
    dim: usize,
    indices: &'a [u32],
}

impl<'a> SelectedRows<'a> {
    /// Rows `indices` of `values`, `[rows, dim]`.
    ///
    /// # Panics
    /// If `values` is not whole rows, or an index is beyond them.
    pub fn new(values: &'a [f32], dim: usize, indices: &'a [u32]) -> Self {
        let rows = values.len().checked_div(dim).unwrap_or(0);
        assert_eq!(rows * dim, values.len(), "selected rows: {} values, rows of {dim}", values.len());
        let beyond = indices.iter().find(|&&index| index as usize >= rows);
        assert!(beyond.is_none(), "selected rows: row {beyond:?} of {rows}");
        Self { values, dim, indices }
    }

    fn row(&self, index: u32) -> &'a [f32] {
        &self.values[index as usize * self.dim..][..self.dim]
    }
}

impl Kernels {
    /// Computes the dot product of `x` with each row.
    ///
    /// # Shapes
    /// `x`: `[dim]`; `out`: `[indices]`.
    ///
    /// # Numerics
    /// Each has the bits of [`dot`](Self::dot).
    ///
    /// # Panics
    /// If the shapes do not match.
    ///
    /// # Examples
    /// ```
    /// use ruvllm_kernels::Kernels;
    /// use ruvllm_kernels::rows::SelectedRows;
    ///
    /// let weights = [1.0, 0.0, 0.0, 1.0, 2.0, 2.0];
    /// let mut logits = [0.0; 2];
    /// Kernels::detect()?.dots(&[3.0, 4.0], SelectedRows::new(&weights, 2, &[2, 0]), &mut logits);
    /// assert_eq!(logits, [14.0, 3.0]);
    /// # Ok::<(), ruvllm_kernels::Error>(())
    /// ```
    pub fn dots(&self, x: &[f32], rows: SelectedRows<'_>, out: &mut [f32]) {
        let agree = x.len() == rows.dim && rows.indices.len() == out.len();
        assert!(agree, "dots: {} of {} values, {} results", rows.indices.len(), rows.dim, out.len());
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.dots)(x, rows, out) }
    }

    /// Adds the sum of the rows, each times its weight, to `x`.
    ///
    /// # Shapes
    /// `x`: `[dim]`; `weights`: `[indices]`.
    ///
    /// # Numerics
    /// One chain of fused multiply-adds per element, in the order of the rows, from `x`:
    /// bit-identical on every instruction set.
    ///
    /// # Panics
    /// If the shapes do not match.
    pub fn add_rows(&self, x: &mut [f32], weights: &[f32], rows: SelectedRows<'_>) {
        let agree = x.len() == rows.dim && rows.indices.len() == weights.len();
        assert!(agree, "add_rows: {} of {} values, {} weights", rows.indices.len(), rows.dim, weights.len());
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.add_rows)(x, weights, rows) }
    }
}

#[inline(always)]
pub(crate) fn dots<L: Lanes>(l: L, x: &[f32], rows: SelectedRows<'_>, out: &mut [f32]) {
    let (groups, rest) = rows.indices.as_chunks::<ROWS>();
    let (outs, rest_out) = out.as_chunks_mut::<ROWS>();
    let (x_chunks, x_tail) = x.as_chunks::<LANES>();
    for (indices, out) in groups.iter().zip(outs) {
        let chunks = indices.map(|index| &rows.row(index).as_chunks::<LANES>().0[..x_chunks.len()]);
        let mut sums = [l.zero(); ROWS];
        for (at, x) in x_chunks.iter().enumerate() {
            let x = l.load(x);
            for (sum, chunks) in sums.iter_mut().zip(chunks) {
                *sum = l.fma(x, l.load(&chunks[at]), *sum);
            }
        }
        if !x_tail.is_empty() {
            let x = l.load_partial(x_tail);
            for (sum, &index) in sums.iter_mut().zip(indices) {
                let (_, tail) = rows.row(index).as_chunks::<LANES>();
                *sum = l.fma(x, l.load_partial(tail), *sum);
            }
        }
        l.store(l.sums(sums), out);
    }
    for (&index, out) in rest.iter().zip(rest_out) {
        *out = dot(l, x, rows.row(index));
    }
}

#[inline(always)]
pub(crate) fn add_rows<L: Lanes>(l: L, x: &mut [f32], weights: &[f32], rows: SelectedRows<'_>) {
    let (groups, rest) = rows.indices.as_chunks::<ROWS>();
    let (weight_groups, rest_weights) = weights.as_chunks::<ROWS>();
    for (indices, weights) in groups.iter().zip(weight_groups) {
        add_group(l, x, *weights, indices.map(|index| rows.row(index)));
    }
    for (&index, &weight) in rest.iter().zip(rest_weights) {
        add_group(l, x, [weight], [rows.row(index)]);
    }
}

/// Adds `N` rows, so that `x` is read and written once for all of them.
#[inline(always)]
fn add_group<L: Lanes, const N: usize>(l: L, x: &mut [f32], weights: [f32; N], rows: [&[f32]; N]) {
    let (x_chunks, x_tail) = x.as_chunks_mut::<LANES>();
    let chunks = rows.map(|row| &row.as_chunks::<LANES>().0[..x_chunks.len()]);
    let vectors = weights.map(|weight| l.splat(weight));
    for (at, x) in x_chunks.iter_mut().enumerate() {
        let mut sum = l.load(x);
        for (&weight, chunks) in vectors.iter().zip(chunks) {
            sum = l.fma(weight, l.load(&chunks[at]), sum);
        }
        l.store(sum, x);
    }
    if !x_tail.is_empty() {
        let mut sum = l.load_partial(x_tail);
        for (&weight, row) in vectors.iter().zip(rows) {
            sum = l.fma(weight, l.load_partial(row.as_chunks::<LANES>().1), sum);
        }
        l.store_partial(sum, x_tail);
    }
}
