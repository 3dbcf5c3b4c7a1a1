//! The two products of a key/value tile, tiled for registers.
//!
//! Both keep at least eight sums in registers, which covers the latency of the multiply-adds (4 cycles, two per cycle),
//! and use every loaded vector for several of them.

use std::ops::Range;

use half::f16;

use super::KEY_TILE;
use crate::lanes::{LANES, Lanes};

/// A type of key and value that loads as f32 lanes.
pub(super) trait Element: Copy {
    /// Eight values.
    fn load<L: Lanes>(l: L, x: &[Self; LANES]) -> L::V;
    /// Up to eight values, followed by zeros.
    fn load_partial<L: Lanes>(l: L, x: &[Self]) -> L::V;
}

impl Element for f32 {
    #[inline(always)]
    fn load<L: Lanes>(l: L, x: &[Self; LANES]) -> L::V {
        l.load(x)
    }

    #[inline(always)]
    fn load_partial<L: Lanes>(l: L, x: &[Self]) -> L::V {
        l.load_partial(x)
    }
}

impl Element for f16 {
    #[inline(always)]
    fn load<L: Lanes>(l: L, x: &[Self; LANES]) -> L::V {
        l.load_f16(x)
    }

    #[inline(always)]
    fn load_partial<L: Lanes>(l: L, x: &[Self]) -> L::V {
        l.load_partial_f16(x)
    }
}

/// `out[r][j] = q_r · k_j` for all rows and the first `n_keys` keys (up to seven more are written, with whatever the
/// tile holds there).
///
/// # Shapes
/// In vectors of eight: `q`: `[rows, n]`; `keys`: `[KEY_TILE, n]`; `out`: `[rows]`.
#[inline(always)]
pub(super) fn scores<L: Lanes, T: Element>(
    l: L,
    q: &[[f32; LANES]],
    keys: &[[T; LANES]],
    n_keys: usize,
    out: &mut [[f32; KEY_TILE]],
) {
    let rows = out.len();
    let mut row = 0;
    while row + 4 <= rows {
        scores_of_rows::<L, T, 4, 2>(l, q, keys, n_keys, row, out);
        row += 4;
    }
    if row + 2 <= rows {
        scores_of_rows::<L, T, 2, 4>(l, q, keys, n_keys, row, out);
        row += 2;
    }
    if row < rows {
        scores_of_rows::<L, T, 1, 8>(l, q, keys, n_keys, row, out);
    }
}

/// Rows `row..row + R`, `K` keys at a time; `R * K` is 8, so that the sums of one step are reduced together.
#[inline(always)]
fn scores_of_rows<L: Lanes, T: Element, const R: usize, const K: usize>(
    l: L,
    q: &[[f32; LANES]],
    keys: &[[T; LANES]],
    n_keys: usize,
    row: usize,
    out: &mut [[f32; KEY_TILE]],
) {
    const { assert!(R * K == LANES) };
    let n = keys.len() / KEY_TILE;
    let q: [&[[f32; LANES]]; R] = std::array::from_fn(|i| &q[(row + i) * n..][..n]);
    for first in (0..n_keys).step_by(K) {
        let keys: [&[[T; LANES]]; K] = std::array::from_fn(|j| &keys[(first + j) * n..][..n]);
        let mut sums = [l.zero(); LANES];
        for c in 0..n {
            let mut k = [l.zero(); K];
            for j in 0..K {
                k[j] = T::load(l, &keys[j][c]);
            }
            for i in 0..R {
                let q = l.load(&q[i][c]);
                for j in 0..K {
                    sums[i * K + j] = l.fma(q, k[j], sums[i * K + j]);
                }
            }
        }
        let mut products = [0.0; LANES];
        l.store(l.sums(sums), &mut products);
        for i in 0..R {
            out[row + i][first..first + K].copy_from_slice(&products[i * K..(i + 1) * K]);
        }
    }
}

/// `acc_r = factors_r * acc_r + Σ_j weights_rj v_j` for all rows, the sum over the keys in `visible(r)` in ascending
/// order.
///
/// # Shapes
/// In vectors of eight: `acc`: `[rows, n]`; `values`: `[KEY_TILE, n]`; `weights`, `factors`: `[rows]`.
#[inline(always)]
pub(super) fn weigh<L: Lanes, T: Element>(
    l: L,
    weights: &[[f32; KEY_TILE]],
    factors: &[f32],
    visible: impl Fn(usize) -> Range<usize>,
    values: &[[T; LANES]],
    acc: &mut [[f32; LANES]],
) {
    let rows = weights.len();
    let mut row = 0;
    while row < rows {
        let n_rows = match rows - row {
            6.. => 6,
            4.. => 4,
            2.. => 2,
            _ => 1,
        };
        let seen: [Range<usize>; 6] = std::array::from_fn(|i| visible((row + i).min(row + n_rows - 1)));
        let mut now: [f32; 6] = std::array::from_fn(|i| factors[(row + i).min(row + n_rows - 1)]);
        // Later rows stand at the same or a later position: the last one starts last, the first one ends first.
        let mut common = seen[n_rows - 1].start..seen[0].end;
        if common.is_empty() {
            common = KEY_TILE..KEY_TILE;
        }
        // What only some rows see is taken row by row: first the keys before the common ones ..
        for i in 0..n_rows {
            let before = seen[i].start..seen[i].end.min(common.start);
            if !before.is_empty() {
                add_values::<L, T, 1, 8>(l, weights, [now[i]], before, values, row + i, acc);
                now[i] = 1.0;
            }
        }
        match (common.is_empty(), n_rows) {
            (true, _) => {}
            (_, 6) => add_values::<L, T, 6, 2>(l, weights, now, common.clone(), values, row, acc),
            (_, 4) => {
                let now = [now[0], now[1], now[2], now[3]];
                add_values::<L, T, 4, 2>(l, weights, now, common.clone(), values, row, acc);
            }
            (_, 2) => {
                let now = [now[0], now[1]];
                add_values::<L, T, 2, 4>(l, weights, now, common.clone(), values, row, acc);
            }
            _ => add_values::<L, T, 1, 8>(l, weights, [now[0]], common.clone(), values, row, acc),
        }
        // .. and then those after them.
        for i in 0..n_rows {
            let after = seen[i].start.max(common.end)..seen[i].end;
            if !after.is_empty() {
                add_values::<L, T, 1, 8>(l, weights, [1.0], after, values, row + i, acc);
            }
        }
        row += n_rows;
    }
}

/// `acc = factor * acc + Σ weight * value` for rows `row..row + R` over the same keys.
#[inline(always)]
fn add_values<L: Lanes, T: Element, const R: usize, const C: usize>(
    l: L,
    weights: &[[f32; KEY_TILE]],
    factors: [f32; R],
    keys: Range<usize>,
    values: &[[T; LANES]],
    row: usize,
    acc: &mut [[f32; LANES]],
) {
    let n = values.len() / KEY_TILE;
    let mut column = 0;
    while column + C <= n {
        add_columns::<L, T, R, C>(l, weights, factors, keys.clone(), values, row, column, acc);
        column += C;
    }
    while column < n {
        add_columns::<L, T, R, 1>(l, weights, factors, keys.clone(), values, row, column, acc);
        column += 1;
    }
}

/// `R` rows by `C` vectors, held in registers over all keys.
#[allow(clippy::too_many_arguments)] // a leaf: everything it needs, nothing bundled that would have to be unpacked
#[inline(always)]
fn add_columns<L: Lanes, T: Element, const R: usize, const C: usize>(
    l: L,
    weights: &[[f32; KEY_TILE]],
    factors: [f32; R],
    keys: Range<usize>,
    values: &[[T; LANES]],
    row: usize,
    column: usize,
    acc: &mut [[f32; LANES]],
) {
    let n = values.len() / KEY_TILE;
    let weights: [&[f32; KEY_TILE]; R] = std::array::from_fn(|i| &weights[row + i]);
    let mut sums = [[l.zero(); C]; R];
    for i in 0..R {
        for c in 0..C {
            sums[i][c] = l.mul(l.load(&acc[(row + i) * n + column + c]), l.splat(factors[i]));
        }
    }
    assert!(keys.end <= KEY_TILE);
    for key in keys {
        let from = &values[key * n + column..][..C];
        let mut v = [l.zero(); C];
        for c in 0..C {
            v[c] = T::load(l, &from[c]);
        }
        for i in 0..R {
            let weight = l.splat(weights[i][key]);
            for c in 0..C {
                sums[i][c] = l.fma(weight, v[c], sums[i][c]);
            }
        }
    }
    for i in 0..R {
        for c in 0..C {
            l.store(sums[i][c], &mut acc[(row + i) * n + column + c]);
        }
    }
}
