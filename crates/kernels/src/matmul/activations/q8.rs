//! 8-bit activations: quantization of a sub-block of 32 values, and the two layouts for products.
//!
//! - [`Q8Rows`], for few tokens: single sub-blocks, and groups of eight in the orders of unpacked
//!   weights ([`Order`]).
//! - [`TileStep`]s, for many tokens: four tokens interleaved in the order in which a register tile
//!   reads them.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use crate::lanes::{LANES, Lanes, ScalarLanes};
use crate::matmul::slot_position;
use crate::pool::DisjointMut;
use crate::quant::SUB_BLOCK;

/// Tokens per tile.
pub(crate) const TILE_TOKENS: usize = 4;

/// Sub-block of 32 values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Q8SubBlock {
    pub(crate) quants: [i8; SUB_BLOCK],
    pub(crate) scale: f32,
    /// `scale` times the sum of the quants.
    pub(crate) sum: f32,
    /// Sums of quants 0..16 and 16..32.
    pub(crate) halves: [i16; 2],
}

impl Q8SubBlock {
    const ZERO: Self = Self { quants: [0; SUB_BLOCK], scale: 0.0, sum: 0.0, halves: [0; 2] };

    /// Reciprocal scale of a sub-block of largest magnitude `largest`.
    ///
    /// Without a finite one, the sub-block to use instead.
    #[inline(always)]
    pub(super) fn inverse_scale(largest: f32) -> Result<f32, Self> {
        let inverse = 127.0 / largest;
        if largest.is_finite() && inverse.is_finite() {
            return Ok(inverse);
        }
        let scale = if largest.is_finite() { 0.0 } else { f32::NAN };
        Err(Self { scale, sum: scale, ..Self::ZERO })
    }

    #[inline(always)]
    pub(super) fn from_quants(quants: [i8; SUB_BLOCK], halves: [i16; 2], largest: f32) -> Self {
        let scale = largest / 127.0;
        Self { quants, scale, sum: scale * (f32::from(halves[0]) + f32::from(halves[1])), halves }
    }
}

/// Steps of quantization that an instruction set may override, with bit-identical results.
pub(crate) trait Q8Leaf: Lanes {
    /// Quantizes 32 values.
    #[inline(always)]
    fn sub_block(self, x: &[f32; SUB_BLOCK]) -> Q8SubBlock {
        // As integers, magnitudes sort like floats, with infinity and then NaN above all of them.
        let largest = f32::from_bits(x.iter().fold(0, |m, x| m.max(x.to_bits() & 0x7fff_ffff)));
        let inverse = match Q8SubBlock::inverse_scale(largest) {
            Ok(inverse) => inverse,
            Err(without_scale) => return without_scale,
        };
        let quants = x.map(|x| (x * inverse).round_ties_even() as i8);
        let mut halves = [0; 2];
        for (half, quants) in halves.iter_mut().zip(quants.as_chunks::<{ SUB_BLOCK / 2 }>().0) {
            *half = quants.iter().map(|&q| i16::from(q)).sum();
        }
        Q8SubBlock::from_quants(quants, halves, largest)
    }

    /// Reorders the quants of eight sub-blocks.
    #[inline(always)]
    fn reorder(self, sub_blocks: &[Q8SubBlock; LANES], order: Order) -> OrderedQuants {
        std::array::from_fn(|i| {
            std::array::from_fn(|lane| {
                let (sub_block, piece) = order.source(i, lane);
                sub_blocks[sub_block].quants.as_chunks().0[piece]
            })
        })
    }

    /// Interleaves the quants of one sub-block of four tokens, piece by piece.
    #[inline(always)]
    fn interleave(self, tokens: &[Q8SubBlock; TILE_TOKENS]) -> [[[i8; 4]; TILE_TOKENS]; SUB_BLOCK / 4] {
        std::array::from_fn(|g| tokens.each_ref().map(|token| token.quants.as_chunks().0[g]))
    }
}

impl Q8Leaf for ScalarLanes {}

/// Quantizes one row; the last sub-block is padded with zeros.
#[inline(always)]
fn sub_blocks<L: Q8Leaf>(leaf: L, row: &[f32], to: &mut [Q8SubBlock]) {
    let (full, tail) = row.as_chunks::<SUB_BLOCK>();
    for (x, to) in full.iter().zip(&mut *to) {
        *to = leaf.sub_block(x);
    }
    if !tail.is_empty() {
        let mut padded = [0.0; SUB_BLOCK];
        padded[..tail.len()].copy_from_slice(tail);
        to[full.len()] = leaf.sub_block(&padded);
    }
}

/// Order of the 256 quants of eight sub-blocks that matches unpacked weights.
///
/// There are 8 vectors of 8 *pieces*, four consecutive quants each.
///
/// Where the lane determines the sub-block, products of different sub-blocks stay separate without
/// shuffles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Vector `i`: sub-block `i`, in value order.
    Plain,
    /// Vector `i`: piece `i` of sub-blocks 0 to 7.
    Pieces,
    /// Vectors 0 to 3: pieces `i` of sub-blocks 0, 2, 4, 6, then their pieces `i + 4`; vectors 4 to
    /// 7: the same for sub-blocks 1, 3, 5, 7.
    EvenOdd,
    /// Order of `EvenOdd` with sub-blocks 0, 1, 4, 5 and 2, 3, 6, 7.
    Pairs,
    /// Vector `4h + l`: pieces `2l` and `2l + 1` of sub-block `4h`, then those of `4h + 1` to
    /// `4h + 3`.
    Eights,
}

impl Order {
    pub(super) const ALL: [Self; 5] = [Self::Plain, Self::Pieces, Self::EvenOdd, Self::Pairs, Self::Eights];

    /// Sub-block and piece in lane `lane` of vector `i`.
    const fn source(self, i: usize, lane: usize) -> (usize, usize) {
        let sub_blocks: [usize; 8] = match self {
            Self::Plain => return (i, lane),
            Self::Pieces => return (lane, i),
            Self::Eights => return (i / 4 * 4 + lane / 2, i % 4 * 2 + lane % 2),
            Self::EvenOdd => [0, 2, 4, 6, 1, 3, 5, 7],
            Self::Pairs => [0, 1, 4, 5, 2, 3, 6, 7],
        };
        (sub_blocks[i / 4 * 4 + lane % 4], i % 4 + lane / 4 * 4)
    }
}

/// Quants of eight sub-blocks in one [`Order`].
pub(crate) type OrderedQuants = [[[i8; 4]; LANES]; 8];

/// Eight sub-blocks, one per accumulator, with their quants in one [`Order`].
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Q8Group {
    pub(crate) quants: OrderedQuants,
    pub(crate) scales: [f32; LANES],
    pub(crate) sums: [f32; LANES],
    pub(crate) halves: [[i16; 2]; LANES],
    /// Padding to a cache line, so that no vector load crosses one.
    padding: [u8; 32],
}

/// Rows for few tokens.
#[derive(Debug, Default)]
pub(crate) struct Q8Rows {
    /// Sub-blocks per token.
    n_sub_blocks: usize,
    /// The orders that the products of the instruction set read.
    orders: &'static [Order],
    /// `[tokens, sub-blocks]`
    sub_blocks: Vec<Q8SubBlock>,
    /// Groups per [`Order`]: `[tokens, groups]`, the last one filled up with zeros; none of other
    /// orders.
    groups: [Vec<Q8Group>; Order::ALL.len()],
}

/// One row of [`Q8Rows`].
#[derive(Clone, Copy)]
pub(crate) struct Q8Token<'a> {
    pub(crate) sub_blocks: &'a [Q8SubBlock],
    groups: [&'a [Q8Group]; Order::ALL.len()],
}

impl<'a> Q8Token<'a> {
    /// A row without values.
    pub(crate) const NONE: Self = Self { sub_blocks: &[], groups: [&[]; Order::ALL.len()] };

    /// Groups of eight sub-blocks; missing ones of the last group are zeros.
    pub(crate) fn groups(&self, order: Order) -> &'a [Q8Group] {
        self.groups[order as usize]
    }
}

impl Q8Rows {
    /// Sets shape and orders; the content is unspecified.
    pub(super) fn resize(&mut self, tokens: usize, cols: usize, orders: &'static [Order]) {
        self.n_sub_blocks = cols.div_ceil(SUB_BLOCK);
        self.orders = orders;
        self.sub_blocks.resize(tokens * self.n_sub_blocks, Q8SubBlock::ZERO);
        for order in Order::ALL {
            let tokens = if orders.contains(&order) { tokens } else { 0 };
            self.groups[order as usize].resize(tokens * self.n_sub_blocks.div_ceil(LANES), Q8Group::zeroed());
        }
    }

    /// Row of one token.
    pub(crate) fn token(&self, token: usize) -> Q8Token<'_> {
        let row = |per_token: usize| token * per_token..(token + 1) * per_token;
        let mut groups: [&[Q8Group]; _] = [&[]; Order::ALL.len()];
        for &order in self.orders {
            groups[order as usize] = &self.groups[order as usize][row(self.n_sub_blocks.div_ceil(LANES))];
        }
        Q8Token { sub_blocks: &self.sub_blocks[row(self.n_sub_blocks)], groups }
    }

    /// The rows as parts for several threads.
    pub(super) fn parts(&mut self) -> Q8RowParts<'_> {
        Q8RowParts {
            n_sub_blocks: self.n_sub_blocks,
            orders: self.orders,
            sub_blocks: DisjointMut::new(&mut self.sub_blocks),
            groups: self.groups.each_mut().map(|groups| DisjointMut::new(groups)),
        }
    }
}

/// [`Q8Rows`] that several threads write.
pub(crate) struct Q8RowParts<'a> {
    n_sub_blocks: usize,
    orders: &'static [Order],
    sub_blocks: DisjointMut<'a, Q8SubBlock>,
    groups: [DisjointMut<'a, Q8Group>; Order::ALL.len()],
}

/// Quantizes `values`, `[tokens, cols]`, into the rows of these tokens; no two calls get the same.
#[inline(always)]
pub(crate) fn quantize_rows<L: Q8Leaf>(
    leaf: L,
    values: &[f32],
    cols: usize,
    rows: &Q8RowParts<'_>,
    tokens: Range<usize>,
) {
    if cols == 0 {
        return;
    }
    let part = |per_token: usize| tokens.start * per_token..tokens.end * per_token;
    // SAFETY: the tokens of different calls differ, so their rows do not overlap.
    let to = unsafe { rows.sub_blocks.part(part(rows.n_sub_blocks)) };
    let groups_per_row = rows.n_sub_blocks.div_ceil(LANES);
    for (row, to) in values.chunks_exact(cols).zip(to.chunks_exact_mut(rows.n_sub_blocks)) {
        sub_blocks(leaf, row, to);
    }
    for &order in rows.orders {
        // SAFETY: as above.
        let groups = unsafe { rows.groups[order as usize].part(part(groups_per_row)) };
        if groups.is_empty() {
            continue;
        }
        for (to, groups) in to.chunks_exact(rows.n_sub_blocks).zip(groups.chunks_exact_mut(groups_per_row)) {
            let (whole, rest) = to.as_chunks::<LANES>();
            let mut filled = [Q8SubBlock::ZERO; LANES];
            filled[..rest.len()].copy_from_slice(rest);
            for (sub_blocks, group) in whole.iter().chain([&filled]).zip(groups) {
                group.quants = leaf.reorder(sub_blocks, order);
                group.scales = sub_blocks.map(|b| b.scale);
                group.sums = sub_blocks.map(|b| b.sum);
                group.halves = sub_blocks.map(|b| b.halves);
            }
        }
    }
}

/// Sub-block of four tokens, in the order in which a register tile reads it; missing tokens are
/// zeros.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct TileStep {
    /// `quants[g][t]`: values `4g..4g + 4` of token `t`.
    pub(crate) quants: [[[i8; 4]; TILE_TOKENS]; SUB_BLOCK / 4],
    pub(crate) scales: [f32; TILE_TOKENS],
    pub(crate) sums: [f32; TILE_TOKENS],
    pub(crate) halves: [[i16; 2]; TILE_TOKENS],
    /// `columns[h][t][j]`: sum of values `4g + 2j` and `4g + 2j + 1` of half `h` of token `t`, over
    /// all `g`; the values that `maddubs` adds up in one 16-bit lane.
    pub(crate) columns: [[[i16; 2]; TILE_TOKENS]; 2],
    /// Largest sum of magnitudes of any column; at most 8 * 127.
    pub(crate) reach: i32,
}

/// `columns` and `reach` of [`TileStep`].
#[inline(always)]
fn columns(tokens: &[Q8SubBlock; TILE_TOKENS]) -> ([[[i16; 2]; TILE_TOKENS]; 2], i32) {
    let (mut sums, mut reach) = ([[[0; 2]; TILE_TOKENS]; 2], 0);
    for (t, token) in tokens.iter().enumerate() {
        for (half, sums) in token.quants.as_chunks::<{ SUB_BLOCK / 2 }>().0.iter().zip(&mut sums) {
            let mut magnitudes = [0_i16; 2];
            for piece in half.as_chunks::<4>().0 {
                for (i, &x) in piece.iter().enumerate() {
                    sums[t][i / 2] += i16::from(x);
                    magnitudes[i / 2] += i16::from(x).abs();
                }
            }
            reach = reach.max(magnitudes[0]).max(magnitudes[1]);
        }
    }
    (sums, i32::from(reach))
}

/// Quantizes `values`, `[tokens, cols]`, into tiles, `[tiles, sub-blocks in slot order]`.
#[inline(always)]
pub(crate) fn quantize_tiles<L: Q8Leaf>(leaf: L, values: &[f32], cols: usize, tiles: &mut [TileStep]) {
    let n = cols.div_ceil(SUB_BLOCK);
    if n == 0 {
        return;
    }
    for (rows, tile) in values.chunks(TILE_TOKENS * cols).zip(tiles.chunks_exact_mut(n)) {
        for b in 0..n {
            let mut tokens = [Q8SubBlock::ZERO; TILE_TOKENS];
            for (row, token) in rows.chunks_exact(cols).zip(&mut tokens) {
                let values = &row[b * SUB_BLOCK..cols.min((b + 1) * SUB_BLOCK)];
                sub_blocks(leaf, values, std::slice::from_mut(token));
            }
            let (columns, reach) = columns(&tokens);
            tile[slot_position(b, n)] = TileStep {
                quants: leaf.interleave(&tokens),
                scales: tokens.map(|token| token.scale),
                sums: tokens.map(|token| token.sum),
                halves: tokens.map(|token| token.halves),
                columns,
                reach,
            };
        }
    }
}
