//! Products of integer-dot formats: the frame that is the same for all formats and instruction sets, and the two leaves
//! that an instruction set contributes.
//!
//! For every sub-block `b` of 32 values the integer dot product `isum` of quants and 8-bit activations is exact (integer
//! scales of halves multiplied in), so it does not matter how a leaf forms it: with `maddubs`, with `vpdpbusd`, one by
//! one. The float part is fixed: accumulator `b mod 8` takes `fma(scale_w * scale_x, isum, acc)`, then, for formats with
//! a minimum, `fma(-min_w, sum_x, acc)`, in ascending order of `b`; the eight accumulators are joined by the tree of
//! [`join`]. Row by row or in tiles, on any instruction set, the bits are the same.

use std::cell::RefCell;
use std::ops::Range;

use bytemuck::Zeroable;

use super::panel::{PANEL_ROWS, PanelStep};
use crate::activations::{MIN_TILED_TOKENS, Q8, Q8Token, TILE_TOKENS, TileStep};
use crate::disjoint::DisjointMut;
use crate::format::{QuantBlock, SUB_BLOCK};
use crate::lanes::LANES;

/// Few tokens: rows of weights as they lie in the file.
pub(crate) trait RowsLeaf<B: QuantBlock>: Copy {
    /// Dot products of the rows in `blocks` with one to [`ROWS_TOKENS`] tokens. `out`: `[rows, tokens]`.
    fn rows(self, blocks: &[B], x: &[Q8Token<'_>], out: &mut [f32]);
}

/// Many tokens: a panel of expanded weights against a tile of tokens.
pub(crate) trait TileLeaf<B: QuantBlock>: Copy {
    /// Expands up to 16 rows of `n` sub-blocks each: see [`expand`](super::panel::expand). `panel`: `[n]`.
    fn expand(self, blocks: &[B], n: usize, panel: &mut [PanelStep]);

    /// Dot products of 16 rows with `T` tokens. `panel`, `tile`: `[sub-blocks in slot order]`.
    fn tile<const T: usize>(self, panel: &[PanelStep], tile: &[TileStep], out: &mut [[f32; PANEL_ROWS]; T]);
}

/// One matrix product, seen by the leaves: everything but the rows to compute.
pub(crate) struct IntegerProduct<'a> {
    /// All rows.
    pub(crate) weights: &'a [u8],
    pub(crate) n_rows: usize,
    pub(crate) cols: usize,
    pub(crate) tokens: usize,
    pub(crate) x: &'a Q8,
    /// `[tokens, n_rows]`.
    pub(crate) out: &'a DisjointMut<'a, f32>,
}

thread_local! {
    /// The panel of this thread: allocated by its first product, grown to the longest row it has met.
    static PANEL: RefCell<Vec<PanelStep>> = const { RefCell::new(Vec::new()) };
}

/// Computes the outputs of `rows` for all tokens.
#[inline(always)]
pub(crate) fn product<L, B>(leaf: L, product: &IntegerProduct<'_>, rows: Range<usize>)
where
    L: RowsLeaf<B> + TileLeaf<B>,
    B: QuantBlock,
{
    let blocks_per_row = product.cols / B::LEN;
    let blocks: &[B] = bytemuck::cast_slice(product.weights);
    let blocks = &blocks[rows.start * blocks_per_row..rows.end * blocks_per_row];
    if product.tokens < MIN_TILED_TOKENS {
        row_by_row(leaf, product, blocks, rows);
    } else {
        tiled(leaf, product, blocks, rows);
    }
}

/// Tokens that meet a row at a time, when there are too few for tiles.
pub(crate) const ROWS_TOKENS: usize = 8;

#[inline(always)]
fn row_by_row<L, B>(leaf: L, product: &IntegerProduct<'_>, blocks: &[B], rows: Range<usize>)
where
    L: RowsLeaf<B>,
    B: QuantBlock,
{
    if product.tokens == 1 {
        // SAFETY: the caller computes every row once, so no other part contains these outputs.
        let out = unsafe { product.out.part(rows) };
        leaf.rows(blocks, &[product.x.rows.token(0)], out);
        return;
    }
    let blocks_per_row = product.cols / B::LEN;
    for start in rows.clone().step_by(PANEL_ROWS) {
        let n = PANEL_ROWS.min(rows.end - start);
        let blocks = &blocks[(start - rows.start) * blocks_per_row..][..n * blocks_per_row];
        for first in (0..product.tokens).step_by(ROWS_TOKENS) {
            let tokens = ROWS_TOKENS.min(product.tokens - first);
            let x: [_; ROWS_TOKENS] =
                std::array::from_fn(|t| product.x.rows.token(first + t.min(tokens - 1)));
            let mut sums = [0.0; PANEL_ROWS * ROWS_TOKENS];
            let sums = &mut sums[..n * tokens];
            leaf.rows(blocks, &x[..tokens], sums);
            for t in 0..tokens {
                let start = (first + t) * product.n_rows + start;
                // SAFETY: as above; rows of different tokens do not overlap.
                let out = unsafe { product.out.part(start..start + n) };
                for (out, sums) in out.iter_mut().zip(sums.chunks_exact(tokens)) {
                    *out = sums[t];
                }
            }
        }
    }
}

#[inline(always)]
fn tiled<L, B>(leaf: L, product: &IntegerProduct<'_>, blocks: &[B], rows: Range<usize>)
where
    L: TileLeaf<B>,
    B: QuantBlock,
{
    let n = product.cols / SUB_BLOCK;
    let blocks_per_row = product.cols / B::LEN;
    PANEL.with_borrow_mut(|panel| {
        if panel.len() < n {
            panel.resize(n, PanelStep::zeroed());
        }
        let panel = &mut panel[..n];
        for start in rows.clone().step_by(PANEL_ROWS) {
            let rows_here = start..rows.end.min(start + PANEL_ROWS);
            let first = (start - rows.start) * blocks_per_row;
            leaf.expand(&blocks[first..first + rows_here.len() * blocks_per_row], n, panel);
            for (i, tile) in product.x.tiles.chunks_exact(n).enumerate() {
                let tokens = i * TILE_TOKENS..product.tokens.min((i + 1) * TILE_TOKENS);
                match tokens.len() {
                    1 => one_tile::<L, B, 1>(leaf, panel, tile, product, &rows_here, tokens.start),
                    2 => one_tile::<L, B, 2>(leaf, panel, tile, product, &rows_here, tokens.start),
                    3 => one_tile::<L, B, 3>(leaf, panel, tile, product, &rows_here, tokens.start),
                    _ => one_tile::<L, B, 4>(leaf, panel, tile, product, &rows_here, tokens.start),
                }
            }
        }
    });
}

#[inline(always)]
fn one_tile<L, B, const T: usize>(
    leaf: L,
    panel: &[PanelStep],
    tile: &[TileStep],
    product: &IntegerProduct<'_>,
    rows: &Range<usize>,
    first_token: usize,
) where
    L: TileLeaf<B>,
    B: QuantBlock,
{
    let mut sums = [[0.0; PANEL_ROWS]; T];
    leaf.tile(panel, tile, &mut sums);
    for (t, sums) in sums.iter().enumerate() {
        let start = (first_token + t) * product.n_rows;
        // SAFETY: the caller computes every row once, so no other part contains these outputs.
        let out = unsafe { product.out.part(start + rows.start..start + rows.end) };
        out.copy_from_slice(&sums[..rows.len()]);
    }
}

/// Joins the eight accumulators: the tree of every reduction of this crate.
#[inline(always)]
pub(crate) fn join(acc: [f32; LANES]) -> f32 {
    let s: [f32; LANES / 2] = std::array::from_fn(|j| acc[j] + acc[j + LANES / 2]);
    (s[0] + s[2]) + (s[1] + s[3])
}
