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

use super::panel::{self, PANEL_ROWS, PanelStep};
use crate::activations::{MIN_TILED_TOKENS, Q8, Q8Token, TILE_TOKENS, TileStep};
use crate::disjoint::DisjointMut;
use crate::format::{QuantBlock, SUB_BLOCK};
use crate::lanes::LANES;

/// Few tokens: rows of weights as they lie in the file, each byte read once.
pub(crate) trait RowsLeaf<B: QuantBlock>: Copy {
    /// Dot products of `out.len() / T` rows of `blocks` with `T` tokens. `out`: `[rows, T]`.
    fn rows<const T: usize>(self, blocks: &[B], x: &[Q8Token<'_>; T], out: &mut [f32]);
}

/// Many tokens: a panel of expanded weights against a tile of tokens.
pub(crate) trait TileLeaf<B: QuantBlock>: Copy {
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
    match product.tokens {
        1 => few_tokens::<L, B, 1>(leaf, product, blocks, rows),
        2 => few_tokens::<L, B, 2>(leaf, product, blocks, rows),
        3 => few_tokens::<L, B, 3>(leaf, product, blocks, rows),
        _ => tiled(leaf, product, blocks, rows),
    }
}

/// At most `MIN_TILED_TOKENS - 1` tokens.
#[inline(always)]
fn few_tokens<L, B, const T: usize>(leaf: L, product: &IntegerProduct<'_>, blocks: &[B], rows: Range<usize>)
where
    L: RowsLeaf<B>,
    B: QuantBlock,
{
    const { assert!(T < MIN_TILED_TOKENS) };
    let x: [Q8Token<'_>; T] = std::array::from_fn(|t| product.x.rows.token(t));
    if T == 1 {
        // SAFETY: the caller computes every row once, so no other part contains these outputs.
        let out = unsafe { product.out.part(rows) };
        leaf.rows(blocks, &x, out);
        return;
    }
    let blocks_per_row = product.cols / B::LEN;
    for start in rows.clone().step_by(PANEL_ROWS) {
        let end = rows.end.min(start + PANEL_ROWS);
        let mut sums = [[0.0; T]; PANEL_ROWS];
        let sums = &mut sums[..end - start];
        let blocks = &blocks[(start - rows.start) * blocks_per_row..(end - rows.start) * blocks_per_row];
        leaf.rows(blocks, &x, sums.as_flattened_mut());
        for t in 0..T {
            // SAFETY: as above; rows of different tokens do not overlap.
            let out = unsafe { product.out.part(t * product.n_rows + start..t * product.n_rows + end) };
            for (out, sums) in out.iter_mut().zip(&*sums) {
                *out = sums[t];
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
            panel::expand::<B>(&blocks[first..first + rows_here.len() * blocks_per_row], n, panel);
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
