//! The two products of a key/value tile, tiled for registers: queries by keys, probabilities by values.
//!
//! Both keep enough sums in registers to cover the latency of the multiply-adds (4 cycles, two per cycle), and use every
//! loaded vector for several of them. How many rows and columns that are follows from the number of wide registers;
//! it changes no bit.

use std::ops::Range;

use super::KEY_TILE;
use super::kv::{Line, Tile, WIDE};
use crate::lanes::{LANES, WideLanes};

/// Wide vectors of the scores of a row.
const SCORE_LINES: usize = KEY_TILE / WIDE;

/// Rows of a register tile; up to so many, each key and value is loaded once, whatever its format, so that it is taken from
/// where it lies instead of being widened beforehand.
pub(super) const TILE_ROWS: usize = 4;

/// Whether the registers hold 16 sums beside their operands.
const fn has_many_registers<L: WideLanes>() -> bool {
    L::WIDE_REGISTERS >= 32
}

/// `out[r][j] = q_r · k_j` for all rows and the 32 keys of a tile.
///
/// # Shapes
/// `q`: `[rows, dim]`; `keys`: `[dim, 32]`; `out`: `[rows, 32]`.
#[inline(always)]
pub(super) fn scores<L: WideLanes, T: Tile>(l: L, q: &[f32], dim: usize, keys: T, out: &mut [Line]) {
    let rows = out.len() / SCORE_LINES;
    let mut row = 0;
    while T::SERVES_MANY_ROWS && has_many_registers::<L>() && row + 2 * TILE_ROWS <= rows {
        scores_of_rows::<L, T, { 2 * TILE_ROWS }, 2>(l, q, dim, keys, row, out);
        row += 2 * TILE_ROWS;
    }
    while row + TILE_ROWS <= rows {
        if has_many_registers::<L>() {
            scores_of_rows::<L, T, TILE_ROWS, 2>(l, q, dim, keys, row, out);
        } else {
            scores_of_rows::<L, T, TILE_ROWS, 1>(l, q, dim, keys, row, out);
        }
        row += TILE_ROWS;
    }
    while row < rows {
        scores_of_rows::<L, T, 1, 2>(l, q, dim, keys, row, out);
        row += 1;
    }
}

/// Rows `row..row + R`, `N` wide vectors of keys at a time.
#[inline(always)]
fn scores_of_rows<L: WideLanes, T: Tile, const R: usize, const N: usize>(
    l: L,
    q: &[f32],
    dim: usize,
    keys: T,
    row: usize,
    out: &mut [Line],
) {
    let q: [&[f32]; R] = std::array::from_fn(|i| &q[(row + i) * dim..][..dim]);
    for column in (0..SCORE_LINES).step_by(N) {
        // The lanes of the canonical order are the dimensions modulo 8: here each is a sum of its own per key.
        let mut lanes = [[[l.wide_splat(0.0); N]; R]; LANES];
        for (lane, sums) in lanes.iter_mut().enumerate() {
            *sums = lane_sums::<L, T, R, N>(l, q, keys, column, lane);
        }
        for i in 0..R {
            for n in 0..N {
                let mut s = [l.wide_splat(0.0); LANES / 2];
                for (j, s) in s.iter_mut().enumerate() {
                    *s = l.wide_add(lanes[j][i][n], lanes[j + LANES / 2][i][n]);
                }
                let sum = l.wide_add(l.wide_add(s[0], s[2]), l.wide_add(s[1], s[3]));
                l.wide_store(sum, out[(row + i) * SCORE_LINES + column + n].halves_mut());
            }
        }
    }
}

/// The sums of one lane, over the dimensions that are `lane` modulo 8.
#[inline(always)]
fn lane_sums<L: WideLanes, T: Tile, const R: usize, const N: usize>(
    l: L,
    q: [&[f32]; R],
    keys: T,
    column: usize,
    lane: usize,
) -> [[L::W; N]; R] {
    let mut sums = [[l.wide_splat(0.0); N]; R];
    for dimension in (lane..q[0].len()).step_by(LANES) {
        let k = keys.load::<L, N>(l, dimension, column);
        for i in 0..R {
            let q = l.wide_splat(q[i][dimension]);
            for n in 0..N {
                sums[i][n] = l.wide_fma(q, k[n], sums[i][n]);
            }
        }
    }
    sums
}

/// What [`weigh`] reads besides the values.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a> {
    /// `[rows, 32]`
    pub(super) weights: &'a [[f32; KEY_TILE]],
    /// What the accumulators are multiplied with first, `[rows]`.
    pub(super) factors: &'a [f32],
}

/// `acc_r = factors_r * acc_r + Σ_j weights_rj v_j` for all rows, the sum over the keys in `visible(r)` in ascending
/// order.
///
/// # Shapes
/// `acc`: `[rows, padded_dim]`; `values`: `[32, padded_dim]`.
#[inline(always)]
pub(super) fn weigh<L: WideLanes, T: Tile>(
    l: L,
    weights: Weights<'_>,
    visible: impl Fn(usize) -> Range<usize>,
    values: T,
    acc: &mut [Line],
) {
    let rows = weights.factors.len();
    let columns = acc.len() / rows;
    let mut row = 0;
    while row < rows {
        let n_rows = if row + TILE_ROWS <= rows { TILE_ROWS } else { 1 };
        // The accumulators of all rows do not stay in the first-level cache, and a block begins by waiting for its own.
        let next = (row + n_rows).min(rows)..(row + n_rows + TILE_ROWS).min(rows);
        l.prefetch(&acc[next.start * columns..next.end * columns]);
        // Later rows stand at the same or a later position: the last one starts last, the first one ends first.
        let common = visible(row + n_rows - 1).start..visible(row).end;
        let common = if n_rows < TILE_ROWS || common.is_empty() { KEY_TILE..KEY_TILE } else { common };
        // What only some rows see is taken row by row, the keys before the common ones and those after them.
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
    }
}

/// `acc = factor * acc + Σ weight * value` for rows `row..row + R` over the same keys, `N` wide vectors (then one) at a
/// time.
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

/// `R` rows by `N` wide vectors, held in registers over all keys.
#[allow(clippy::too_many_arguments)] // a leaf: everything it needs, nothing bundled that would have to be unpacked
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
    let columns = acc.len() / weights.factors.len();
    let weights: [&[f32; KEY_TILE]; R] = std::array::from_fn(|i| &weights.weights[row + i]);
    let mut sums = [[l.wide_splat(0.0); N]; R];
    for i in 0..R {
        for n in 0..N {
            let before = l.wide_load(acc[(row + i) * columns + column + n].halves());
            sums[i][n] = l.wide_mul(before, l.wide_splat(factors[i]));
        }
    }
    assert!(keys.end <= KEY_TILE);
    for key in keys {
        let v = values.load::<L, N>(l, key, column);
        for i in 0..R {
            let weight = l.wide_splat(weights[i][key]);
            for n in 0..N {
                sums[i][n] = l.wide_fma(weight, v[n], sums[i][n]);
            }
        }
    }
    for i in 0..R {
        for n in 0..N {
            l.wide_store(sums[i][n], acc[(row + i) * columns + column + n].halves_mut());
        }
    }
}
