//! Causal attention of whole sequences and its derivative, in tiles of queries.
//!
//! Probabilities are not kept: the backward pass computes them again, tile by tile, as
//! FlashAttention does (Dao et al., arXiv 2205.14135). All products are
//! [`Kernels::add_product`], whose sums have one order on every instruction set; a task is a
//! sequence and a key-value head, so no sum is split over threads.

use std::ops::Range;

use ruvllm_kernels::Kernels;
use ruvllm_kernels::rows::MatrixView;

/// Queries per tile.
const TILE: usize = 32;

/// Sequence tiles begin and end at multiples of this many keys, so that products have whole
/// vectors.
const ALIGN: usize = 16;

/// Sizes and switches of attention in one layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) scale: f32,
    pub(crate) window: Option<usize>,
    pub(crate) soft_cap: Option<f32>,
}

/// Queries, keys and values of one sequence, row-major: `[len, n_heads * head_dim]` and twice
/// `[len, n_kv_heads * head_dim]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) queries: &'a [f32],
    pub(crate) keys: &'a [f32],
    pub(crate) values: &'a [f32],
}

/// Gradients of one key-value head and its group of query heads.
pub(crate) struct Gradients<'a> {
    /// `[group, len, head_dim]`, overwritten.
    pub(crate) queries: &'a mut [f32],
    /// `[len, head_dim]`, added to.
    pub(crate) keys: &'a mut [f32],
    /// `[len, head_dim]`, added to.
    pub(crate) values: &'a mut [f32],
}

/// Memory of one task.
#[derive(Default)]
pub(crate) struct Scratch {
    transposed_keys: Vec<f32>,
    transposed_values: Vec<f32>,
    scores: Vec<f32>,
    slopes: Vec<f32>,
    flipped: Vec<f32>,
}

impl Shape {
    pub(crate) fn query_dim(&self) -> usize {
        self.n_heads * self.head_dim
    }

    pub(crate) fn kv_dim(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Query heads per key-value head.
    pub(crate) fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// Keys that some query of a tile sees, rounded to whole vectors where the sequence allows.
    fn keys_of(&self, tile: &Range<usize>, len: usize) -> Range<usize> {
        let start = self.window.map_or(0, |window| (tile.start + 1).saturating_sub(window));
        start / ALIGN * ALIGN..tile.end.next_multiple_of(ALIGN).min(len)
    }

    /// Keys that a query sees.
    fn seen(&self, query: usize) -> Range<usize> {
        self.window.map_or(0, |window| (query + 1).saturating_sub(window))..query + 1
    }

    /// Computes the attention output of a group of heads: `out`, `[group, len, head_dim]`.
    pub(crate) fn forward(
        &self,
        kernels: &Kernels,
        inputs: Inputs<'_>,
        kv_head: usize,
        out: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let (dim, len) = (self.head_dim, inputs.keys.len() / self.kv_dim());
        transpose_head(inputs.keys, self.kv_dim(), kv_head * dim, dim, &mut scratch.transposed_keys);
        out.fill(0.0);
        for (index, out) in out.chunks_exact_mut(len * dim).enumerate() {
            let head = kv_head * self.group() + index;
            for start in (0..len).step_by(TILE) {
                let tile = start..len.min(start + TILE);
                let keys = self.keys_of(&tile, len);
                self.probabilities(kernels, inputs, head, &tile, &keys, scratch, false);
                let n = keys.len();
                let weights = MatrixView::new(&scratch.scores, tile.len(), n, n);
                let values = head_view(inputs.values, self.kv_dim(), kv_head * dim, dim, keys);
                kernels.add_product(&mut out[tile.start * dim..tile.end * dim], weights, values);
            }
        }
    }

    /// Computes the gradients of a group of heads from those of its output, `gradient`, `[len,
    /// n_heads * head_dim]`.
    pub(crate) fn backward(
        &self,
        kernels: &Kernels,
        inputs: Inputs<'_>,
        kv_head: usize,
        gradient: &[f32],
        out: &mut Gradients<'_>,
        scratch: &mut Scratch,
    ) {
        let (dim, kv_dim, width) = (self.head_dim, self.kv_dim(), self.query_dim());
        let len = inputs.keys.len() / kv_dim;
        transpose_head(inputs.keys, kv_dim, kv_head * dim, dim, &mut scratch.transposed_keys);
        transpose_head(inputs.values, kv_dim, kv_head * dim, dim, &mut scratch.transposed_values);
        out.queries.fill(0.0);
        for (index, queries) in out.queries.chunks_exact_mut(len * dim).enumerate() {
            let head = kv_head * self.group() + index;
            for start in (0..len).step_by(TILE) {
                let tile = start..len.min(start + TILE);
                let keys = self.keys_of(&tile, len);
                let (m, n) = (tile.len(), keys.len());
                self.probabilities(kernels, inputs, head, &tile, &keys, scratch, true);
                let Scratch { transposed_values, scores, slopes, flipped, .. } = &mut *scratch;
                let upstream = head_view(gradient, width, head * dim, dim, tile.clone());
                let key_rows = keys.start * dim..keys.end * dim;

                flip(scores, n, flipped);
                let view = MatrixView::new(flipped, n, m, m);
                kernels.add_product(&mut out.values[key_rows.clone()], view, upstream);

                // Gradients of probabilities, then of scores: `p (dp - Σ p dp)`.
                let gradients = &mut *flipped;
                gradients.clear();
                gradients.resize(m * n, 0.0);
                let value_columns = MatrixView::new(&transposed_values[keys.start..], dim, n, len);
                kernels.add_product(gradients, upstream, value_columns);
                let rows = scores.chunks_exact_mut(n).zip(gradients.chunks_exact(n));
                for (row, (scores, gradients)) in rows.enumerate() {
                    let mean = kernels.dot(scores, gradients);
                    for (score, gradient) in scores.iter_mut().zip(gradients) {
                        *score *= self.scale * (gradient - mean);
                    }
                    if self.soft_cap.is_some() {
                        let slopes = &slopes[row * n..(row + 1) * n];
                        scores.iter_mut().zip(slopes).for_each(|(score, slope)| *score *= slope);
                    }
                }

                let view = MatrixView::new(scores, m, n, n);
                let key_view = head_view(inputs.keys, kv_dim, kv_head * dim, dim, keys);
                kernels.add_product(&mut queries[tile.start * dim..tile.end * dim], view, key_view);
                flip(scores, n, flipped);
                let view = MatrixView::new(flipped, n, m, m);
                let query_view = head_view(inputs.queries, width, head * dim, dim, tile);
                kernels.add_product(&mut out.keys[key_rows], view, query_view);
            }
        }
    }

    /// Computes probabilities of a tile of queries over `keys`, `[tile, keys]`, zero for keys that
    /// a query does not see; with `slopes` also the derivatives of the soft cap.
    #[allow(clippy::too_many_arguments)] // one tile of one head
    fn probabilities(
        &self,
        kernels: &Kernels,
        inputs: Inputs<'_>,
        head: usize,
        tile: &Range<usize>,
        keys: &Range<usize>,
        scratch: &mut Scratch,
        with_slopes: bool,
    ) {
        let (dim, n) = (self.head_dim, keys.len());
        let len = inputs.keys.len() / self.kv_dim();
        let Scratch { transposed_keys, scores, slopes, .. } = scratch;
        scores.clear();
        scores.resize(tile.len() * n, 0.0);
        let queries = head_view(inputs.queries, self.query_dim(), head * dim, dim, tile.clone());
        let key_columns = MatrixView::new(&transposed_keys[keys.start..], dim, n, len);
        kernels.add_product(scores, queries, key_columns);
        if self.soft_cap.is_some() && with_slopes {
            slopes.clear();
            slopes.resize(tile.len() * n, 0.0);
        }
        for (row, scores) in scores.chunks_exact_mut(n).enumerate() {
            let seen = self.seen(tile.start + row);
            let seen = seen.start - keys.start..seen.end - keys.start;
            scores[..seen.start].fill(0.0);
            scores[seen.end..].fill(0.0);
            let slopes = slopes.get_mut(row * n + seen.start..row * n + seen.end);
            let scores = &mut scores[seen];
            scores.iter_mut().for_each(|score| *score *= self.scale);
            if let Some(cap) = self.soft_cap {
                cap_scores(scores, cap, slopes.filter(|_| with_slopes));
            }
            kernels.softmax(scores);
        }
    }
}

/// Applies `cap tanh(x / cap)`, and writes its derivatives, `1 - tanh^2`.
fn cap_scores(scores: &mut [f32], cap: f32, slopes: Option<&mut [f32]>) {
    for score in scores.iter_mut() {
        *score = tanh(f64::from(*score) / f64::from(cap)) as f32;
    }
    if let Some(slopes) = slopes {
        slopes.iter_mut().zip(&*scores).for_each(|(slope, tanh)| *slope = 1.0 - tanh * tanh);
    }
    scores.iter_mut().for_each(|score| *score *= cap);
}

/// Hyperbolic tangent with an absolute error of 1e-16, from the exponential.
pub(crate) fn tanh(x: f64) -> f64 {
    1.0 - 2.0 / ((2.0 * x).exp() + 1.0)
}

/// Rows of one head in row-major rows of all heads.
fn head_view(rows: &[f32], width: usize, column: usize, dim: usize, range: Range<usize>) -> MatrixView<'_> {
    MatrixView::new(&rows[range.start * width + column..], range.len(), dim, width)
}

/// Copies one head of row-major rows, transposed: `[dim, len]`.
fn transpose_head(rows: &[f32], width: usize, column: usize, dim: usize, out: &mut Vec<f32>) {
    let len = rows.len() / width;
    out.clear();
    out.resize(dim * len, 0.0);
    for (position, row) in rows.chunks_exact(width).enumerate() {
        for (d, value) in row[column..column + dim].iter().enumerate() {
            out[d * len + position] = *value;
        }
    }
}

/// Transposes `[m, n]` to `[n, m]`.
pub(crate) fn flip(values: &[f32], n: usize, out: &mut Vec<f32>) {
    let m = values.len() / n;
    out.clear();
    out.resize(m * n, 0.0);
    for (column, out) in out.chunks_exact_mut(m).enumerate() {
        for (row, value) in out.iter_mut().enumerate() {
            *value = values[row * n + column];
        }
    }
}
