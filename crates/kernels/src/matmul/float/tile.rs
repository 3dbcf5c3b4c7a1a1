//! Register tile: rows times pairs of tokens, eight columns at a time.
//!
//! A wide vector holds the eight lanes of two tokens. Per eight columns, a tile of `R` rows and `P`
//! pairs loads `P` wide vectors of inputs and `R` chunks of weights, duplicated to both halves, for
//! `R * P` multiplications: fewer loads than multiplications, and enough accumulators to hide the
//! FMA latency.

use bytemuck::{Pod, Zeroable};

use crate::lanes::{Groups, LANES, Vectors, WideLanes};

/// Eight columns of two tokens, or the lanes of the sums of two tokens with a row; whole cache
/// lines.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Pair(pub(super) [[f32; LANES]; 2]);

/// The largest tile of an instruction set.
#[derive(Clone, Copy)]
pub(super) struct TileShape {
    pub(super) rows: usize,
    pub(super) pairs: usize,
}

/// Largest number of rows and of pairs of a tile of any instruction set.
pub(super) const MAX_TILE_ROWS: usize = 8;
pub(super) const MAX_TILE_PAIRS: usize = 3;

impl TileShape {
    /// The tile that fills the registers of `L`: 24 sums, three inputs and a weight in 32 wide
    /// registers; six sums, an input and (half of) a weight in eight.
    pub(super) const fn of<L: WideLanes>() -> Self {
        if L::WIDE_REGISTERS >= 32 {
            Self { rows: MAX_TILE_ROWS, pairs: MAX_TILE_PAIRS }
        } else {
            Self { rows: 6, pairs: 1 }
        }
    }

    /// Rows of the next tile where `remaining` are left: one of the row counts that
    /// `blocked.rs` has a tile for.
    pub(super) fn next_rows(self, remaining: usize) -> usize {
        if remaining >= self.rows { self.rows } else { 1 << remaining.ilog2() }
    }

    /// Pairs of the next tile where `remaining` are left.
    pub(super) fn next_pairs(self, remaining: usize) -> usize {
        remaining.min(self.pairs)
    }
}

/// Pairs of tokens that the direct path multiplies with a pair of rows: their sums, an input and a
/// weight fill the registers.
pub(super) const fn direct_pairs<L: WideLanes>() -> usize {
    if L::WIDE_REGISTERS >= 32 { 12 } else { 3 }
}

/// Adds the products of `weights` and `inputs` to `acc`.
///
/// `weights`: `[chunks, rows]`; `inputs`: `[chunks, pairs]`; `acc`: `[pairs, rows]`.
#[inline(always)]
pub(super) fn multiply<L: WideLanes, const R: usize, const P: usize>(
    l: L,
    weights: &[[[f32; LANES]; R]],
    inputs: &[[Pair; P]],
    acc: &mut [[L::W; R]; P],
) {
    let mut sums = *acc;
    for (w, x) in weights.iter().zip(inputs) {
        // Loops and not `map`: a closure does not reliably inherit the CPU features of the function
        // around it.
        let mut loaded = [l.wide().splat(0.0); P];
        for p in 0..P {
            loaded[p] = l.wide().load(&x[p].0);
        }
        for r in 0..R {
            let w = l.wide().both(l.load(&w[r]));
            for p in 0..P {
                sums[p][r] = l.wide().fma(w, loaded[p], sums[p][r]);
            }
        }
    }
    *acc = sums;
}

/// Outputs of a pair of tokens: reduces the lanes of up to eight rows.
#[inline(always)]
pub(super) fn finish<L: WideLanes, const R: usize>(l: L, acc: [L::W; R]) -> [[f32; LANES]; 2] {
    let mut eight = [l.wide().splat(0.0); LANES];
    eight[..R].copy_from_slice(&acc);
    let sums = l.wide().sums(eight);
    let mut outputs = [[0.0; LANES]; 2];
    l.wide().store(sums, &mut outputs);
    outputs
}
