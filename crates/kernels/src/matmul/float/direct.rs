//! Float products for few tokens: weights are read once, in place, and widened in registers.
//!
//! ```text
//! block of 16 rows
//!   slab of columns      the packed inputs (`pack.rs`) of a tile of tokens stay in the L1 cache
//!     tile of tokens
//!       pairs of rows    the register tile; its sums rest in memory until the last slab
//! ```
//!
//! A wide vector holds the eight lanes of rows `r` and `r + 8`, multiplied by the values of a token
//! in both halves.

use std::ops::Range;

use bytemuck::Zeroable;

use super::pack::{DIRECT_SLAB, packed_slab, pieces};
use super::tile::{Pair, direct_pairs};
use super::{FloatFormat, FloatProduct, MAX_DIRECT_TOKENS, chunks, load_tail};
use crate::lanes::{Groups, LANES, Vectors, WideLanes};

/// Rows whose outputs are reduced together.
const BLOCK_ROWS: usize = 2 * LANES;

/// Computes the outputs of `rows` for all tokens.
#[inline(always)]
pub(super) fn product<L: WideLanes, F: FloatFormat>(l: L, product: &FloatProduct<'_>, rows: Range<usize>) {
    let n_pairs = product.tokens().div_ceil(2);
    let mut sums = [Pair::zeroed(); LANES * MAX_DIRECT_TOKENS];
    for rows in pieces(rows, BLOCK_ROWS) {
        let block = Block { product, rows, n_pairs };
        block.multiply::<L, F>(l, &mut sums[..LANES * 2 * n_pairs]);
        block.finish(l, &sums);
    }
}

/// Up to [`BLOCK_ROWS`] rows with all tokens.
struct Block<'a> {
    product: &'a FloatProduct<'a>,
    rows: Range<usize>,
    /// Pairs of tokens.
    n_pairs: usize,
}

/// A slab of a block with a tile of tokens.
struct Part<'a> {
    cols: Range<usize>,
    /// `[chunks, pairs]`
    inputs: &'a [Pair],
    /// Weights of the next block to prefetch, in memory order.
    ahead: &'a [u8],
}

impl Block<'_> {
    /// Computes the sums, `[row pairs][tokens]` for each tile of tokens.
    #[inline(always)]
    fn multiply<L: WideLanes, F: FloatFormat>(&self, l: L, sums: &mut [Pair]) {
        let Self { product, rows, n_pairs } = self;
        let row_bytes = product.cols * size_of::<F>();
        let next = rows.end * row_bytes..(rows.end + rows.len()).min(product.n_rows) * row_bytes;
        let next = &product.weights[next];
        for cols in pieces(0..product.cols, DIRECT_SLAB) {
            for tile in pieces(0..*n_pairs, const { direct_pairs::<L>() }) {
                let share = |col: usize| next.len() / product.cols * col;
                let ahead = if tile.start == 0 { share(cols.start)..share(cols.end) } else { 0..0 };
                let inputs = packed_slab(product.packed, *n_pairs, &tile, &cols);
                let part = Part { cols: cols.clone(), inputs, ahead: &next[ahead] };
                let sums = &mut sums[LANES * 2 * tile.start..LANES * 2 * tile.end];
                // As many pairs of rows as fit beside the tokens.
                match tile.len() {
                    1 if direct_pairs::<L>() >= 12 => self.part::<L, F, 4, 1>(l, &part, sums),
                    2 if direct_pairs::<L>() >= 12 => self.part::<L, F, 4, 2>(l, &part, sums),
                    3 if direct_pairs::<L>() >= 12 => self.part::<L, F, 4, 3>(l, &part, sums),
                    4 if direct_pairs::<L>() >= 12 => self.part::<L, F, 2, 4>(l, &part, sums),
                    5 if direct_pairs::<L>() >= 12 => self.part::<L, F, 2, 5>(l, &part, sums),
                    6 if direct_pairs::<L>() >= 12 => self.part::<L, F, 2, 6>(l, &part, sums),
                    7 if direct_pairs::<L>() >= 12 => self.part::<L, F, 1, 7>(l, &part, sums),
                    8 if direct_pairs::<L>() >= 12 => self.part::<L, F, 1, 8>(l, &part, sums),
                    9 if direct_pairs::<L>() >= 12 => self.part::<L, F, 1, 9>(l, &part, sums),
                    10 if direct_pairs::<L>() >= 12 => self.part::<L, F, 1, 10>(l, &part, sums),
                    11 if direct_pairs::<L>() >= 12 => self.part::<L, F, 1, 11>(l, &part, sums),
                    12 if direct_pairs::<L>() >= 12 => self.part::<L, F, 1, 12>(l, &part, sums),
                    1 => self.part::<L, F, 2, 1>(l, &part, sums),
                    2 => self.part::<L, F, 1, 2>(l, &part, sums),
                    _ => self.part::<L, F, 1, 3>(l, &part, sums),
                }
            }
        }
    }

    /// Adds a part to its sums, `P` pairs of rows and `Q` pairs of tokens at a time.
    #[inline(always)]
    fn part<L: WideLanes, F: FloatFormat, const P: usize, const Q: usize>(
        &self,
        l: L,
        part: &Part<'_>,
        sums: &mut [Pair],
    ) {
        let groups = LANES.min(self.rows.len()).div_ceil(P);
        let sums = sums.as_chunks_mut::<2>().0.as_chunks_mut::<Q>().0.as_chunks_mut::<P>().0;
        for (g, sums) in sums.iter_mut().enumerate().take(groups) {
            // The last row stands in for missing ones.
            let mut rows = [[&[][..]; 2]; P];
            for (p, rows) in rows.iter_mut().enumerate() {
                for (half, row) in rows.iter_mut().enumerate() {
                    let place = (self.rows.start + g * P + p + half * LANES).min(self.rows.end - 1);
                    let bytes = part.cols.start * size_of::<F>()..part.cols.end * size_of::<F>();
                    *row = &self.product.rows::<F, 1>(place)[0][bytes];
                }
            }
            let lines = part.ahead.len() / groups;
            let ahead = &part.ahead[g * lines..(g + 1) * lines];
            tile::<L, F, P, Q>(l, rows, part.inputs.as_chunks().0, ahead, part.cols.start == 0, sums);
        }
    }

    /// Reduces the lanes and writes the outputs.
    #[inline(always)]
    fn finish<L: WideLanes>(&self, l: L, sums: &[Pair]) {
        for tile in pieces(0..self.n_pairs, const { direct_pairs::<L>() }) {
            let n_tokens = 2 * tile.len();
            let sums = &sums[LANES * 2 * tile.start..LANES * 2 * tile.end];
            for (t, token) in (2 * tile.start..self.product.tokens().min(2 * tile.end)).enumerate() {
                let mut acc = [l.wide().splat(0.0); LANES];
                for (p, acc) in acc.iter_mut().enumerate() {
                    *acc = l.wide().load(&sums[p * n_tokens + t].0);
                }
                let mut outputs = [[0.0; LANES]; 2];
                l.wide().store(l.wide().sums(acc), &mut outputs);
                self.product.write(token, self.rows.start, &outputs.as_flattened()[..self.rows.len()]);
            }
        }
    }
}

/// The register tile: adds the products of pairs of rows with pairs of tokens to their sums, or
/// begins them with the `first`.
#[inline(always)]
fn tile<L: WideLanes, F: FloatFormat, const P: usize, const Q: usize>(
    l: L,
    rows: [[&[u8]; 2]; P],
    inputs: &[[Pair; Q]],
    ahead: &[u8],
    first: bool,
    sums: &mut [[[Pair; 2]; Q]; P],
) {
    // Loops instead of closures, which do not reliably inherit the CPU features of the enclosing
    // function.
    let mut acc = [[[l.wide().splat(0.0); 2]; Q]; P];
    if !first {
        for p in 0..P {
            for q in 0..Q {
                for t in 0..2 {
                    acc[p][q][t] = l.wide().load(&sums[p][q][t].0);
                }
            }
        }
    }
    let n = rows[0][0].len() / size_of::<F::Chunk>();
    let mut whole = [[&[][..]; 2]; P];
    for p in 0..P {
        whole[p] = [&chunks::<F>(rows[p][0]).0[..n], &chunks::<F>(rows[p][1]).0[..n]];
    }
    let step = ahead.len() / inputs.len();
    for (c, x) in inputs[..n].iter().enumerate() {
        l.prefetch_far(&ahead[c * step..(c + 1) * step]);
        let mut w = [l.wide().splat(0.0); P];
        for p in 0..P {
            w[p] = l.wide().join(F::load(l, &whole[p][0][c]), F::load(l, &whole[p][1][c]));
        }
        multiply(l, &w, x, &mut acc);
    }
    if let Some(x) = inputs.get(n) {
        let mut w = [l.wide().splat(0.0); P];
        for p in 0..P {
            let [low, high] = rows[p];
            let (low, high) = (chunks::<F>(low).1, chunks::<F>(high).1);
            w[p] = l.wide().join(load_tail::<L, F>(l, low), load_tail::<L, F>(l, high));
        }
        multiply(l, &w, x, &mut acc);
    }
    for p in 0..P {
        for q in 0..Q {
            for t in 0..2 {
                l.wide().store(acc[p][q][t], &mut sums[p][q][t].0);
            }
        }
    }
}

/// One chunk of eight columns.
#[inline(always)]
fn multiply<L: WideLanes, const P: usize, const Q: usize>(
    l: L,
    w: &[L::W; P],
    x: &[Pair; Q],
    acc: &mut [[[L::W; 2]; Q]; P],
) {
    for q in 0..Q {
        for t in 0..2 {
            let x = l.wide().both(l.load(&x[q].0[t]));
            for p in 0..P {
                acc[p][q][t] = l.wide().fma(w[p], x, acc[p][q][t]);
            }
        }
    }
}
