//! Register-tiled products of a KV tile: `QKᵀ` (queries by keys) and `PV` (probabilities by
//! values).
//!
//! Both keep enough accumulators in registers to cover the FMA latency (4 cycles, two per cycle),
//! and reuse every loaded vector. The tile shape follows from the number of wide registers and does
//! not affect the result's bits.

use std::ops::Range;

use super::KEY_TILE;
use super::kv::{Line, Tile, WIDE};
use crate::lanes::{CACHE_LINE, LANES, Vectors, WideLanes};

/// Wide vectors per row of scores.
const SCORE_LINES: usize = KEY_TILE / WIDE;

/// Rows of a register tile. Up to this many rows, each key and value is loaded once in any format,
/// so that it is read in place instead of being widened first.
pub(super) const TILE_ROWS: usize = 4;

/// True if the registers hold 16 accumulators and their operands.
const fn has_many_registers<L: WideLanes>() -> bool {
    L::WIDE_REGISTERS >= 32
}

/// Software prefetch of the next tile, in parts between the products of this one.
///
/// All at once, the prefetches would fill the queue of outstanding loads and delay the loads of
/// this tile.
#[derive(Clone, Copy)]
pub(super) struct Ahead<'a> {
    lines: &'a [[u8; CACHE_LINE]],
    /// Lines per part.
    part: usize,
}

impl<'a> Ahead<'a> {
    /// Parts per tile.
    const PARTS: usize = LANES;

    #[inline(always)]
    pub(super) fn new(numbers: &'a [u8]) -> Self {
        let lines = numbers.as_chunks().0;
        Self { lines, part: lines.len().div_ceil(Self::PARTS) }
    }

    /// No prefetch.
    #[inline(always)]
    pub(super) fn nothing() -> Self {
        Self { lines: &[], part: 0 }
    }

    /// Prefetches one part.
    #[inline(always)]
    fn ask<L: WideLanes>(self, l: L, part: usize) {
        for i in part * self.part..(part + 1) * self.part {
            if let Some(line) = self.lines.get(i) {
                l.prefetch(line);
            }
        }
    }
}

/// Computes `out[r][j] = q_r · k_j` for all rows and the 32 keys of a tile.
///
/// # Shapes
/// `q`: `[rows, dim]`; `keys`: `[dim, 32]`; `out`: `[rows, 32]`.
#[inline(always)]
pub(super) fn scores<L: WideLanes, T: Tile>(
    l: L,
    q: &[f32],
    dim: usize,
    keys: T,
    mut ahead: Ahead<'_>,
    out: &mut [Line],
) {
    let rows = out.len() / SCORE_LINES;
    let mut row = 0;
    while row < rows {
        let left = rows - row;
        let many = has_many_registers::<L>();
        row += if T::SERVES_MANY_ROWS && many && left >= 2 * TILE_ROWS {
            scores_of_rows::<L, T, { 2 * TILE_ROWS }, 2>(l, q, dim, keys, ahead, row, out)
        } else if many && left >= TILE_ROWS {
            scores_of_rows::<L, T, TILE_ROWS, 2>(l, q, dim, keys, ahead, row, out)
        } else if left >= TILE_ROWS {
            scores_of_rows::<L, T, TILE_ROWS, 1>(l, q, dim, keys, ahead, row, out)
        } else {
            scores_of_rows::<L, T, 1, 2>(l, q, dim, keys, ahead, row, out)
        };
        ahead = Ahead::nothing();
    }
}

/// Computes rows `row..row + R`, `N` wide vectors of keys at a time; returns `R`.
#[inline(always)]
fn scores_of_rows<L: WideLanes, T: Tile, const R: usize, const N: usize>(
    l: L,
    q: &[f32],
    dim: usize,
    keys: T,
    ahead: Ahead<'_>,
    row: usize,
    out: &mut [Line],
) -> usize {
    let q: [&[f32]; R] = std::array::from_fn(|i| &q[(row + i) * dim..][..dim]);
    for column in (0..SCORE_LINES).step_by(N) {
        let ahead = if column == 0 { ahead } else { Ahead::nothing() };
        let sums = added(
            l,
            four_lanes::<L, T, R, N>(l, q, keys, ahead, column, 0),
            four_lanes::<L, T, R, N>(l, q, keys, ahead, column, 1),
        );
        for i in 0..R {
            for n in 0..N {
                l.wide().store(sums[i][n], out[(row + i) * SCORE_LINES + column + n].halves_mut());
            }
        }
    }
    R
}

/// Accumulators of `R` rows by `N` wide vectors of keys.
type Sums<L, const R: usize, const N: usize> = [[<L as WideLanes>::W; N]; R];

/// Sums of the lanes `lane + {0, 2, 4, 6}` for each key. Lanes of the canonical order are the
/// dimensions modulo 8: each is a separate sum, and the call tree is the reduction tree.
#[inline(always)]
fn four_lanes<L: WideLanes, T: Tile, const R: usize, const N: usize>(
    l: L,
    q: [&[f32]; R],
    keys: T,
    ahead: Ahead<'_>,
    column: usize,
    lane: usize,
) -> Sums<L, R, N> {
    let first = two_lanes::<L, T, R, N>(l, q, keys, ahead, column, lane);
    added(l, first, two_lanes::<L, T, R, N>(l, q, keys, ahead, column, lane + 2))
}

/// Sum of lanes `lane` and `lane + 4`.
#[inline(always)]
fn two_lanes<L: WideLanes, T: Tile, const R: usize, const N: usize>(
    l: L,
    q: [&[f32]; R],
    keys: T,
    ahead: Ahead<'_>,
    column: usize,
    lane: usize,
) -> Sums<L, R, N> {
    ahead.ask(l, lane);
    let first = one_lane::<L, T, R, N>(l, q, keys, column, lane);
    ahead.ask(l, lane + LANES / 2);
    added(l, first, one_lane::<L, T, R, N>(l, q, keys, column, lane + LANES / 2))
}

/// Sum over the dimensions equal to `lane` modulo 8.
#[inline(always)]
fn one_lane<L: WideLanes, T: Tile, const R: usize, const N: usize>(
    l: L,
    q: [&[f32]; R],
    keys: T,
    column: usize,
    lane: usize,
) -> Sums<L, R, N> {
    let mut sums = [[l.wide().splat(0.0); N]; R];
    for dimension in (lane..q[0].len()).step_by(LANES) {
        let k = keys.load::<L, N>(l, dimension, column);
        for i in 0..R {
            let q = l.wide().splat(q[i][dimension]);
            for n in 0..N {
                sums[i][n] = l.wide().fma(q, k[n], sums[i][n]);
            }
        }
    }
    sums
}

#[inline(always)]
fn added<L: WideLanes, const R: usize, const N: usize>(
    l: L,
    mut a: Sums<L, R, N>,
    b: Sums<L, R, N>,
) -> Sums<L, R, N> {
    for i in 0..R {
        for n in 0..N {
            a[i][n] = l.wide().add(a[i][n], b[i][n]);
        }
    }
    a
}

/// Arguments of [`weigh`] except the values.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a> {
    /// Attention weights, `[rows, 32]`.
    pub(super) weights: &'a [[f32; KEY_TILE]],
    /// Rescaling factors of the accumulators, `[rows]`.
    pub(super) factors: &'a [f32],
    pub(super) ahead: Ahead<'a>,
}

/// Computes `acc_r = factors_r * acc_r + Σ_j weights_rj v_j` for all rows.
///
/// The sum is over the keys in `visible(r)`, in ascending order.
///
/// # Shapes
/// `acc`: `[rows, padded_dim]`; `values`: `[32, padded_dim]`.
#[inline(always)]
pub(super) fn weigh<L: WideLanes, T: Tile>(
    l: L,
    mut weights: Weights<'_>,
    visible: impl Fn(usize) -> Range<usize>,
    values: T,
    acc: &mut [Line],
) {
    let rows = weights.factors.len();
    let columns = acc.len() / rows;
    let mut row = 0;
    while row < rows {
        let n_rows = if row + TILE_ROWS <= rows { TILE_ROWS } else { 1 };
        // The accumulators of all rows exceed the L1 cache, so those of the next register tile are
        // prefetched.
        let next = (row + n_rows).min(rows)..(row + n_rows + TILE_ROWS).min(rows);
        l.prefetch(&acc[next.start * columns..next.end * columns]);
        // Later rows are at the same or a later position: the last row starts last, the first row
        // ends first.
        let common = visible(row + n_rows - 1).start..visible(row).end;
        let common = if n_rows < TILE_ROWS || common.is_empty() { KEY_TILE..KEY_TILE } else { common };
        // Keys visible to only some rows, before and after the common keys, are processed row by
        // row.
        let mut now: [f32; TILE_ROWS] = std::array::from_fn(|i| weights.factors[(row + i).min(rows - 1)]);
        for alone in [0..common.start, common.end..KEY_TILE] {
            for i in 0..n_rows {
                let seen = visible(row + i);
                let keys = seen.start.max(alone.start)..seen.end.min(alone.end);
                if !keys.is_empty() {
                    add_values::<L, T, 1, 4>(l, weights, [now[i]], keys, values, row + i, acc);
                    now[i] = 1.0;
                }
            }
            if alone.start == 0 && !common.is_empty() {
                if has_many_registers::<L>() {
                    add_values::<L, T, TILE_ROWS, 4>(l, weights, now, common.clone(), values, row, acc);
                } else {
                    add_values::<L, T, TILE_ROWS, 1>(l, weights, now, common.clone(), values, row, acc);
                }
                now = [1.0; TILE_ROWS];
            }
        }
        row += n_rows;
        weights.ahead = Ahead::nothing();
    }
}

/// Computes `acc = factor * acc + Σ weight * value` for rows `row..row + R` over the same keys.
///
/// `N` wide vectors (then one) at a time.
#[inline(always)]
fn add_values<L: WideLanes, T: Tile, const R: usize, const N: usize>(
    l: L,
    weights: Weights<'_>,
    factors: [f32; R],
    keys: Range<usize>,
    values: T,
    row: usize,
    acc: &mut [Line],
) {
    let columns = acc.len() / weights.factors.len();
    let mut column = 0;
    while column + N <= columns {
        add_columns::<L, T, R, N>(l, weights, factors, keys.clone(), values, row, column, acc);
        column += N;
    }
    while N > 1 && column < columns {
        add_columns::<L, T, R, 1>(l, weights, factors, keys.clone(), values, row, column, acc);
        column += 1;
    }
}

/// Computes `R` rows by `N` wide vectors, in registers over all keys.
#[allow(clippy::too_many_arguments)] // innermost kernel, unbundled arguments
#[inline(always)]
fn add_columns<L: WideLanes, T: Tile, const R: usize, const N: usize>(
    l: L,
    weights: Weights<'_>,
    factors: [f32; R],
    keys: Range<usize>,
    values: T,
    row: usize,
    column: usize,
    acc: &mut [Line],
) {
    const KEYS_OF_PART: usize = KEY_TILE / Ahead::PARTS;
    let columns = acc.len() / weights.factors.len();
    let ahead = if column == 0 { weights.ahead } else { Ahead::nothing() };
    let weights: [&[f32; KEY_TILE]; R] = std::array::from_fn(|i| &weights.weights[row + i]);
    let mut sums = [[l.wide().splat(0.0); N]; R];
    for i in 0..R {
        for n in 0..N {
            let before = l.wide().load(acc[(row + i) * columns + column + n].halves());
            sums[i][n] = l.wide().mul(before, l.wide().splat(factors[i]));
        }
    }
    assert!(keys.end <= KEY_TILE);
    let mut start = keys.start;
    while start < keys.end {
        let part = start / KEYS_OF_PART;
        ahead.ask(l, part);
        let end = keys.end.min((part + 1) * KEYS_OF_PART);
        for key in start..end {
            let v = values.load::<L, N>(l, key, column);
            for i in 0..R {
                let weight = l.wide().splat(weights[i][key]);
                for n in 0..N {
                    sums[i][n] = l.wide().fma(weight, v[n], sums[i][n]);
                }
            }
        }
        start = end;
    }
    for i in 0..R {
        for n in 0..N {
            l.wide().store(sums[i][n], acc[(row + i) * columns + column + n].halves_mut());
        }
    }
}
