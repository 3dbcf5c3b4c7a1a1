//! 8-bit activations: the quantization of one group of 32 values, and the two layouts that products read.
//!
//! - [`Q8Rows`], for few tokens: rows, structure of arrays; besides the plain order, the orders in which quants come out
//!   of packed blocks ([`Order`]).
//! - [`TileStep`]s, for many: four tokens interleaved in the order in which a register tile consumes them.

use bytemuck::{Pod, Zeroable};

use crate::format::SUB_BLOCK;
use crate::lanes::{LANES, Lanes};
use crate::matmul::slot_position;

/// Tokens per tile.
pub(crate) const TILE_TOKENS: usize = 4;

/// One group of 32 values.
struct Group {
    quants: [i8; SUB_BLOCK],
    scale: f32,
    /// `scale` times the sum of the quants.
    sum: f32,
    /// Sums of the quants 0..16 and 16..32.
    halves: [i16; 2],
}

impl Group {
    /// Quantizes 32 values. Plain loops: they become vector code where the caller enables the instructions.
    #[inline(always)]
    fn new(x: &[f32; SUB_BLOCK]) -> Self {
        /// Adding 1.5 * 2^23 leaves the rounded integer, ties to even, in the low bits of the sum.
        const SHIFT: f32 = 12_582_912.0;
        // As integers, magnitudes order like the numbers, with infinity and then NaN above all of them.
        let largest = f32::from_bits(x.iter().fold(0, |m, x| m.max(x.to_bits() & 0x7fff_ffff)));
        let inverse = 127.0 / largest;
        if !largest.is_finite() || !inverse.is_finite() {
            let scale = if largest.is_finite() { 0.0 } else { f32::NAN };
            return Self { quants: [0; SUB_BLOCK], scale, sum: scale, halves: [0; 2] };
        }
        let quants = x.map(|x| (x * inverse + SHIFT).to_bits() as i8);
        let mut halves = [0; 2];
        for (half, quants) in halves.iter_mut().zip(quants.as_chunks::<{ SUB_BLOCK / 2 }>().0) {
            *half = quants.iter().map(|&q| i16::from(q)).sum();
        }
        let scale = largest / 127.0;
        Self { quants, scale, sum: scale * (f32::from(halves[0]) + f32::from(halves[1])), halves }
    }
}

/// The groups of one row; the last one is padded with zeros.
#[inline(always)]
fn groups(row: &[f32]) -> impl Iterator<Item = Group> {
    let (full, tail) = row.as_chunks::<SUB_BLOCK>();
    let last = (!tail.is_empty()).then(|| {
        let mut padded = [0.0; SUB_BLOCK];
        padded[..tail.len()].copy_from_slice(tail);
        Group::new(&padded)
    });
    full.iter().map(Group::new).chain(last)
}

/// Sub-blocks per group: one per accumulator.
const GROUP: usize = LANES;

/// An order of the 256 quants of eight sub-blocks, in pieces of four consecutive ones, that meets weights as they come
/// out of their packed form: 8 vectors of 8 pieces. The lane decides the sub-block, so sums of products stay apart
/// per sub-block without any shuffling of products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Vector `i`: piece `i` of the sub-blocks 0 to 7.
    Pieces,
    /// Vectors `i < 4`: pieces `i` of the sub-blocks 0, 2, 4, 6, then their pieces `i + 4`; vectors `i + 4`: the same of
    /// the sub-blocks 1, 3, 5, 7.
    EvenOdd,
    /// The same with the sub-blocks 0, 1, 4, 5 and 2, 3, 6, 7.
    Pairs,
}

impl Order {
    const ALL: [Self; 3] = [Self::Pieces, Self::EvenOdd, Self::Pairs];

    /// Sub-block and piece in lane `lane` of vector `i`.
    const fn source(self, i: usize, lane: usize) -> (usize, usize) {
        let sub_blocks: [usize; 8] = match self {
            Self::Pieces => return (lane, i),
            Self::EvenOdd => [0, 2, 4, 6, 1, 3, 5, 7],
            Self::Pairs => [0, 1, 4, 5, 2, 3, 6, 7],
        };
        (sub_blocks[i / 4 * 4 + lane % 4], i % 4 + lane / 4 * 4)
    }
}

/// The quants of eight sub-blocks in one [`Order`].
pub(crate) type OrderedGroup = [[[i8; 4]; LANES]; 8];

/// Rows: the fields are `[tokens, sub-blocks]` where nothing else is said.
#[derive(Debug, Default)]
pub(crate) struct Q8Rows {
    n_sub_blocks: usize,
    quants: Vec<[i8; SUB_BLOCK]>,
    /// For each [`Order`]: `[tokens, groups]`, whole groups only.
    ordered: [Vec<OrderedGroup>; Order::ALL.len()],
    scales: Vec<f32>,
    sums: Vec<f32>,
    halves: Vec<[i16; 2]>,
}

/// One row of [`Q8Rows`]: every field is `[sub-blocks]`.
#[derive(Clone, Copy)]
pub(crate) struct Q8Token<'a> {
    pub(crate) quants: &'a [[i8; SUB_BLOCK]],
    /// For each [`Order`]: `[groups]`.
    ordered: [&'a [OrderedGroup]; Order::ALL.len()],
    pub(crate) scales: &'a [f32],
    pub(crate) sums: &'a [f32],
    pub(crate) halves: &'a [[i16; 2]],
}

impl Q8Rows {
    /// Sets the shape; the content is unspecified.
    pub(super) fn resize(&mut self, tokens: usize, cols: usize) {
        self.n_sub_blocks = cols.div_ceil(SUB_BLOCK);
        let n = tokens * self.n_sub_blocks;
        self.quants.resize(n, [0; SUB_BLOCK]);
        for ordered in &mut self.ordered {
            ordered.resize(tokens * (self.n_sub_blocks / GROUP), [[[0; 4]; LANES]; 8]);
        }
        self.scales.resize(n, 0.0);
        self.sums.resize(n, 0.0);
        self.halves.resize(n, [0; 2]);
    }

    /// One row.
    pub(crate) fn token(&self, token: usize) -> Q8Token<'_> {
        let n = self.n_sub_blocks;
        let groups = token * (n / GROUP)..(token + 1) * (n / GROUP);
        let range = token * n..(token + 1) * n;
        Q8Token {
            quants: &self.quants[range.clone()],
            ordered: self.ordered.each_ref().map(|ordered| &ordered[groups.clone()]),
            scales: &self.scales[range.clone()],
            sums: &self.sums[range.clone()],
            halves: &self.halves[range],
        }
    }
}

impl<'a> Q8Token<'a> {
    /// The quants of whole groups of eight sub-blocks in an order.
    pub(crate) fn ordered(&self, order: Order) -> &'a [OrderedGroup] {
        self.ordered[order as usize]
    }
}

/// Quantizes `values`, `[tokens, cols]`, into rows of that shape.
#[inline(always)]
pub(crate) fn quantize_rows<L: Lanes>(_: L, values: &[f32], cols: usize, rows: &mut Q8Rows) {
    if cols == 0 {
        return;
    }
    let mut i = 0;
    for row in values.chunks_exact(cols) {
        for group in groups(row) {
            rows.quants[i] = group.quants;
            rows.scales[i] = group.scale;
            rows.sums[i] = group.sum;
            rows.halves[i] = group.halves;
            i += 1;
        }
    }
    let groups_per_row = rows.n_sub_blocks / GROUP;
    for (token, quants) in rows.quants.chunks_exact(rows.n_sub_blocks).enumerate() {
        for (i, group) in quants.as_chunks::<GROUP>().0.iter().enumerate() {
            for (order, to) in Order::ALL.into_iter().zip(&mut rows.ordered) {
                to[token * groups_per_row + i] = reorder(group, order);
            }
        }
    }
}

#[inline(always)]
fn reorder(group: &[[i8; SUB_BLOCK]; GROUP], order: Order) -> OrderedGroup {
    std::array::from_fn(|i| {
        std::array::from_fn(|lane| {
            let (sub_block, piece) = order.source(i, lane);
            group[sub_block].as_chunks().0[piece]
        })
    })
}

/// One sub-block of four tokens, in the order in which a register tile consumes it. Tokens that do not exist are zeros.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct TileStep {
    /// `quants[g][t]`: values `4g..4g + 4` of token `t`.
    pub(crate) quants: [[[i8; 4]; TILE_TOKENS]; SUB_BLOCK / 4],
    pub(crate) scales: [f32; TILE_TOKENS],
    pub(crate) sums: [f32; TILE_TOKENS],
    pub(crate) halves: [[i16; 2]; TILE_TOKENS],
}

/// Quantizes `values`, `[tokens, cols]`, into tiles, `[tiles, sub-blocks in slot order]`.
#[inline(always)]
pub(crate) fn quantize_tiles<L: Lanes>(_: L, values: &[f32], cols: usize, tiles: &mut [TileStep]) {
    let steps = cols.div_ceil(SUB_BLOCK);
    if steps == 0 {
        return;
    }
    for (rows, tile) in values.chunks(TILE_TOKENS * cols).zip(tiles.chunks_exact_mut(steps)) {
        if rows.len() < TILE_TOKENS * cols {
            tile.fill(TileStep::zeroed());
        }
        for (t, row) in rows.chunks_exact(cols).enumerate() {
            for (b, group) in groups(row).enumerate() {
                let step = &mut tile[slot_position(b, steps)];
                for (to, from) in step.quants.iter_mut().zip(group.quants.as_chunks::<4>().0) {
                    to[t] = *from;
                }
                step.scales[t] = group.scale;
                step.sums[t] = group.sum;
                step.halves[t] = group.halves;
            }
        }
    }
}
