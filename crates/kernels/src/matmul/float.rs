//! Products of F32, F16 and BF16 matrices with f32 rows, written once over [`Lanes`].
//!
//! Every output is the dot product of `op/dot.rs`: eight lanes over the columns, ascending, joined by the tree. Several
//! rows and tokens are in flight at a time, each with its own vector of lanes, which changes no bit of any of them.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};

use crate::disjoint::DisjointMut;
use crate::lanes::{LANES, Lanes};

/// A number format that is widened as it is loaded.
pub(crate) trait FloatFormat: Pod {
    /// Eight numbers as bytes of any alignment.
    type Chunk: Pod;

    /// Widens eight numbers.
    fn load<L: Lanes>(l: L, chunk: &Self::Chunk) -> L::V;
}

impl FloatFormat for f32 {
    type Chunk = [u8; 32];

    #[inline(always)]
    fn load<L: Lanes>(l: L, chunk: &Self::Chunk) -> L::V {
        l.load(&bytemuck::cast(*chunk))
    }
}

impl FloatFormat for f16 {
    type Chunk = [u8; 16];

    #[inline(always)]
    fn load<L: Lanes>(l: L, chunk: &Self::Chunk) -> L::V {
        l.load_f16(&bytemuck::cast(*chunk))
    }
}

impl FloatFormat for bf16 {
    type Chunk = [u8; 16];

    #[inline(always)]
    fn load<L: Lanes>(l: L, chunk: &Self::Chunk) -> L::V {
        l.load_bf16(&bytemuck::cast(*chunk))
    }
}

/// One matrix product: everything but the rows to compute.
pub(crate) struct FloatProduct<'a> {
    /// All rows.
    pub(crate) weights: &'a [u8],
    pub(crate) n_rows: usize,
    pub(crate) cols: usize,
    /// `[tokens, cols]`.
    pub(crate) x: &'a [f32],
    /// `[tokens, n_rows]`.
    pub(crate) out: &'a DisjointMut<'a, f32>,
}

/// Rows in flight.
const TILE_ROWS: usize = 4;
/// Tokens in flight: 4 x 3 accumulators, four weights and an activation fill 16 registers with one to spare.
const TILE_TOKENS: usize = 3;

/// Computes the outputs of `rows` for all tokens.
#[inline(always)]
pub(crate) fn product<L: Lanes, F: FloatFormat>(l: L, product: &FloatProduct<'_>, rows: Range<usize>) {
    for row in rows.clone().step_by(TILE_ROWS) {
        if row + TILE_ROWS <= rows.end {
            all_tokens::<L, F, TILE_ROWS>(l, product, row);
        } else {
            (row..rows.end).for_each(|row| all_tokens::<L, F, 1>(l, product, row));
        }
    }
}

#[inline(always)]
fn all_tokens<L: Lanes, F: FloatFormat, const R: usize>(l: L, product: &FloatProduct<'_>, row: usize) {
    let tokens = product.x.len() / product.cols;
    for token in (0..tokens).step_by(TILE_TOKENS) {
        match tokens - token {
            1 => tile::<L, F, R, 1>(l, product, row, token),
            2 => tile::<L, F, R, 2>(l, product, row, token),
            _ => tile::<L, F, R, TILE_TOKENS>(l, product, row, token),
        }
    }
}

#[inline(always)]
fn tile<L: Lanes, F: FloatFormat, const R: usize, const T: usize>(
    l: L,
    product: &FloatProduct<'_>,
    row: usize,
    token: usize,
) {
    let row_bytes = product.cols * size_of::<F>();
    let w: [&[u8]; R] = std::array::from_fn(|r| &product.weights[(row + r) * row_bytes..][..row_bytes]);
    let x: [&[f32]; T] = std::array::from_fn(|t| &product.x[(token + t) * product.cols..][..product.cols]);
    let sums = dots::<L, F, R, T>(l, w, x);
    for (t, sums) in sums.iter().enumerate() {
        let start = (token + t) * product.n_rows + row;
        // SAFETY: the caller computes every row once, so no other part contains these outputs.
        unsafe { product.out.part(start..start + R) }.copy_from_slice(sums);
    }
}

/// Dot products of `R` rows with `T` tokens, all of one length.
#[inline(always)]
fn dots<L: Lanes, F: FloatFormat, const R: usize, const T: usize>(
    l: L,
    w: [&[u8]; R],
    x: [&[f32]; T],
) -> [[f32; R]; T] {
    let cols = x[0].len();
    let n = cols / LANES;
    let chunks: [&[F::Chunk]; R] = w.map(|w| bytemuck::cast_slice(&w[..n * size_of::<F::Chunk>()]));
    let values: [&[[f32; LANES]]; T] = x.map(|x| x.as_chunks().0);
    let (chunks, values) = (chunks.map(|w| &w[..n]), values.map(|x| &x[..n]));
    let mut acc = [[l.zero(); R]; T];
    for c in 0..n {
        let w: [L::V; R] = std::array::from_fn(|r| F::load(l, &chunks[r][c]));
        for (acc, x) in acc.iter_mut().zip(values) {
            let x = l.load(&x[c]);
            for (acc, &w) in acc.iter_mut().zip(&w) {
                *acc = l.fma(w, x, *acc);
            }
        }
    }
    if cols % LANES != 0 {
        for (acc, x) in acc.iter_mut().zip(x) {
            let x = l.load_partial(&x[n * LANES..]);
            for (acc, w) in acc.iter_mut().zip(w) {
                let mut chunk = F::Chunk::zeroed();
                let tail = &w[n * size_of::<F::Chunk>()..];
                bytemuck::bytes_of_mut(&mut chunk)[..tail.len()].copy_from_slice(tail);
                *acc = l.fma(F::load(l, &chunk), x, *acc);
            }
        }
    }
    acc.map(|acc| acc.map(|acc| l.sum(acc)))
}
