//! Products of integer-dot formats: shared driver, and the two leaves per instruction set.
//!
//! For every sub-block `b` of 32 values the integer dot product `isum` of quants and 8-bit
//! activations is exact (integer scales of halves included), so its evaluation order does not
//! matter (`maddubs`, `vpdpbusd`, scalar). The float part is fixed: accumulator `b mod 8` takes
//! `fma(scale_w * scale_x, isum, acc)`, then, for formats with a minimum, `fma(-min_w, sum_x, acc)`
//! (with minima per half `fma(-min_w * scale_x, imin, acc)`, `imin` the exact sum of the integer
//! minima times the sums of the halves), in ascending order of `b`; the eight accumulators are
//! reduced by the tree of [`join`]. Row products and tiles are therefore bit-identical on any
//! instruction set.

use std::cell::RefCell;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::panel::{MAX_PANELS, PANEL_ROWS, PanelStep};
use crate::lanes::LANES;
use crate::matmul::activations::{Q8Input, Q8Rows, Q8Token, TILE_TOKENS, TileStep};
use crate::pool::DisjointMut;
use crate::quant::{QuantBlock, SUB_BLOCK};

/// Leaf for few tokens: weights in file layout.
pub(crate) trait RowsLeaf<B: QuantBlock>: Copy {
    /// Largest number of tokens per pass over the weights; at most [`MAX_ROWS_TOKENS`].
    const TOKENS: usize = 8;
    /// [`RowSums`] per token.
    const SUMS: usize = 0;

    /// Dot products of up to 16 rows with one to [`TOKENS`](Self::TOKENS) tokens. `sums`: `[tokens,
    /// SUMS]` in any order, the content is unspecified; `out`: `[tokens]`, that of missing rows is
    /// unspecified.
    fn rows(self, blocks: &[B], x: &[Q8Token<'_>], sums: &mut [RowSums], out: &mut [[f32; PANEL_ROWS]]);
}

/// The accumulators of one token with two rows.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct RowSums(pub(crate) [[f32; LANES]; 2]);

/// Leaf for many tokens: panels of expanded weights times tiles of tokens.
pub(crate) trait TileLeaf<B: QuantBlock>: Copy {
    /// Largest number of panels per [`stripe`](Self::stripe); at most [`MAX_PANELS`].
    const PANELS: usize = 1;
    /// Largest number of tiles per [`stripe`](Self::stripe); at most [`MAX_TILES`].
    const TILES: usize = 1;

    /// Expands up to 16 rows of `n` sub-blocks each: see [`expand`](super::panel::expand). `panel`:
    /// `[n]`.
    fn expand(self, blocks: &[B], n: usize, panel: &mut [PanelStep]);

    /// Dot products of 16 rows with `T` tokens. `panel`, `tile`: `[sub-blocks in slot order]`.
    fn tile<const T: usize>(self, panel: &[PanelStep], tile: &[TileStep], out: &mut [[f32; PANEL_ROWS]; T]);

    /// Dot products of all rows and tokens of a stripe. `out`: `[panels, tokens]`.
    #[inline(always)]
    fn stripe(self, stripe: &Stripe<'_>, _slots: &mut SlotSums, out: &mut [[f32; PANEL_ROWS]]) {
        for (panel, out) in stripe.panels.chunks_exact(stripe.n).zip(out.chunks_exact_mut(stripe.tokens)) {
            for (tile, out) in stripe.tiles.chunks_exact(stripe.n).zip(out.chunks_mut(TILE_TOKENS)) {
                match out {
                    [a] => self.tile(panel, tile, std::array::from_mut(a)),
                    [_, _] => self.tile::<2>(panel, tile, out.as_mut_array().expect("2")),
                    [_, _, _] => self.tile::<3>(panel, tile, out.as_mut_array().expect("3")),
                    _ => self.tile::<4>(panel, tile, out.as_mut_array().expect("4")),
                }
            }
        }
    }
}

/// Panels and tiles that are multiplied in registers.
pub(crate) struct Stripe<'a> {
    /// `[panels, n]`
    pub(crate) panels: &'a [PanelStep],
    /// `[tiles, n]`
    pub(crate) tiles: &'a [TileStep],
    /// Sub-blocks per row.
    pub(crate) n: usize,
    /// Tokens in the tiles; the last tile may be partial.
    pub(crate) tokens: usize,
}

/// Largest number of tiles of a [`Stripe`].
pub(crate) const MAX_TILES: usize = 3;

/// Outputs of the largest [`Stripe`], in rows of a panel.
const MAX_SUMS: usize = MAX_PANELS * MAX_TILES * TILE_TOKENS;

/// Float accumulators of a stripe that exceed the registers, `[slot][vector]`.
///
/// Reused for many stripes; the content is unspecified.
#[derive(Clone, Copy, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct SlotSums(pub(crate) [[[f32; PANEL_ROWS]; MAX_SUMS]; LANES]);

/// One matrix product, except the range of rows.
pub(crate) struct IntegerProduct<'a> {
    /// All rows.
    pub(crate) weights: &'a [u8],
    pub(crate) n_rows: usize,
    pub(crate) cols: usize,
    pub(crate) tokens: usize,
    pub(crate) x: Q8Input<'a>,
    /// Index of the first token among those of `out`.
    pub(crate) first: usize,
    /// `[first + tokens or more, n_rows]`.
    pub(crate) out: &'a DisjointMut<'a, f32>,
}

thread_local! {
    /// Panels of this thread: allocated by its first product, grown to the longest row.
    static PANEL: RefCell<Vec<PanelStep>> = const { RefCell::new(Vec::new()) };
    /// Accumulators of row products of this thread; no heap, as a thread may join any warm step.
    static SUMS: RefCell<[RowSums; MAX_SUMS_OF_ROWS]> =
        const { RefCell::new([RowSums([[0.0; LANES]; 2]); MAX_SUMS_OF_ROWS]) };
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
    match product.x {
        Q8Input::Tiles(tiles) => tiled(leaf, product, tiles, blocks, rows),
        Q8Input::Rows { rows: x, first } => row_by_row(leaf, product, (x, first), blocks, rows),
    }
}

/// Largest number of tokens of row products of any instruction set.
pub(crate) const MAX_ROWS_TOKENS: usize = 32;
/// Accumulators of 16 rows with as many tokens.
const MAX_SUMS_OF_ROWS: usize = MAX_ROWS_TOKENS * PANEL_ROWS / 2;

#[inline(always)]
fn row_by_row<L, B>(
    leaf: L,
    product: &IntegerProduct<'_>,
    (inputs, first): (&Q8Rows, usize),
    blocks: &[B],
    rows: Range<usize>,
) where
    L: RowsLeaf<B>,
    B: QuantBlock,
{
    let block_rows = PANEL_ROWS * (product.cols / B::LEN);
    let mut x = [Q8Token::NONE; MAX_ROWS_TOKENS];
    let x = &mut x[..product.tokens];
    for (t, x) in x.iter_mut().enumerate() {
        *x = inputs.token(first + t);
    }
    let mut out = [[0.0; PANEL_ROWS]; MAX_ROWS_TOKENS];
    SUMS.with_borrow_mut(|sums| {
        for (start, blocks) in rows.clone().step_by(PANEL_ROWS).zip(blocks.chunks(block_rows)) {
            let n_rows = PANEL_ROWS.min(rows.end - start);
            for (first, x) in (0..).step_by(L::TOKENS).zip(x.chunks(L::TOKENS)) {
                let out = &mut out[..x.len()];
                leaf.rows(blocks, x, &mut sums[..x.len() * L::SUMS], out);
                write(product, first, start..start + n_rows, out);
            }
        }
    });
}

/// Writes the outputs of up to 16 rows for the tokens from `first` on.
#[inline(always)]
fn write(product: &IntegerProduct<'_>, first: usize, rows: Range<usize>, values: &[[f32; PANEL_ROWS]]) {
    for (token, values) in (first..).zip(values) {
        let start = (product.first + token) * product.n_rows;
        // SAFETY: the caller computes every row once, so no other part contains these outputs.
        let out = unsafe { product.out.part(start + rows.start..start + rows.end) };
        // With a known length this is one store instead of a call.
        match out.as_mut_array() {
            Some(out) => *out = *values,
            None => out.copy_from_slice(&values[..rows.len()]),
        }
    }
}

#[inline(always)]
fn tiled<L, B>(leaf: L, product: &IntegerProduct<'_>, tiles: &[TileStep], blocks: &[B], rows: Range<usize>)
where
    L: TileLeaf<B>,
    B: QuantBlock,
{
    let n = product.cols / SUB_BLOCK;
    let blocks_per_row = product.cols / B::LEN;
    PANEL.with_borrow_mut(|panels| {
        if panels.len() < L::PANELS * n {
            panels.resize(L::PANELS * n, PanelStep::zeroed());
        }
        for start in rows.clone().step_by(L::PANELS * PANEL_ROWS) {
            let rows_here = start..rows.end.min(start + L::PANELS * PANEL_ROWS);
            let blocks = &blocks[(start - rows.start) * blocks_per_row..][..rows_here.len() * blocks_per_row];
            let panels = &mut panels[..rows_here.len().div_ceil(PANEL_ROWS) * n];
            for (blocks, panel) in blocks.chunks(PANEL_ROWS * blocks_per_row).zip(panels.chunks_exact_mut(n))
            {
                leaf.expand(blocks, n, panel);
            }
            all_tiles(leaf, panels, product, tiles, rows_here);
        }
    });
}

/// Computes the outputs of the rows in `panels`, `[panels, sub-blocks]`.
#[inline(always)]
fn all_tiles<L, B>(
    leaf: L,
    panels: &[PanelStep],
    product: &IntegerProduct<'_>,
    mut tiles: &[TileStep],
    rows: Range<usize>,
) where
    L: TileLeaf<B>,
    B: QuantBlock,
{
    let n = product.cols / SUB_BLOCK;
    let mut slots = SlotSums::zeroed();
    let mut sums = [[0.0; PANEL_ROWS]; MAX_SUMS];
    let mut token = 0;
    while token < product.tokens {
        let left = tiles.len() / n;
        // A single tile at the end would be inefficient: it is balanced with its neighbours.
        let n_tiles = if left == L::TILES + 1 { left.div_ceil(2) } else { left.min(L::TILES) };
        let (here, rest) = tiles.split_at(n_tiles * n);
        tiles = rest;
        let tokens = (n_tiles * TILE_TOKENS).min(product.tokens - token);
        let sums = &mut sums[..panels.len() / n * tokens];
        leaf.stripe(&Stripe { panels, tiles: here, n, tokens }, &mut slots, sums);
        for (p, sums) in sums.chunks_exact(tokens).enumerate() {
            let start = rows.start + p * PANEL_ROWS;
            let n_rows = PANEL_ROWS.min(rows.end - start);
            write(product, token, start..start + n_rows, sums);
        }
        token += tokens;
    }
}

/// Reduces the eight accumulators by the tree of every reduction of this crate.
#[inline(always)]
pub(crate) fn join(acc: [f32; LANES]) -> f32 {
    let s: [f32; LANES / 2] = std::array::from_fn(|j| acc[j] + acc[j + LANES / 2]);
    (s[0] + s[2]) + (s[1] + s[3])
}
