//! One task of attention: a query tile over some splits.

use std::ops::Range;

use half::f16;

use super::scratch::{State, Worker};
use super::tile::{Element, scores, weigh};
use super::{AttentionShape, KEY_TILE, KvRows, KvView, SPLIT_KEYS};
use crate::lanes::{LANES, Lanes};
use crate::op::math::{exp_nonpositive, tanh};
use crate::op::softmax::shift_for;

/// Up to this many rows, half-precision tiles are widened on the way into the products instead of beforehand: all rows
/// are then in registers together, so each value is still widened once.
const DIRECT_ROWS: usize = 4;

/// A query tile and the splits to attend it to.
pub(crate) struct Task<'a> {
    pub(super) shape: &'a AttentionShape,
    pub(super) q: &'a [f32], // [n_queries, n_heads, head_dim]
    pub(super) kv: &'a KvView<'a>,
    pub(super) kv_head: usize,
    /// Queries of the tile; row `i * group + g` is query `queries.start + i` of the `g`-th head of the group.
    pub(super) queries: Range<usize>,
    pub(super) splits: Range<usize>,
}

impl Task<'_> {
    pub(super) fn rows(&self) -> usize {
        self.queries.len() * self.shape.group()
    }

    /// Which keys of the tile at `start` a row sees, relative to `start`; may be empty.
    #[inline(always)]
    fn visible(&self, row: usize, start: usize) -> Range<usize> {
        let keys = self.shape.keys_of_query(self.queries.start + row / self.shape.group());
        let within = |position: usize| position.saturating_sub(start).min(KEY_TILE);
        within(keys.start)..within(keys.end)
    }
}

/// Attends the task's rows to its splits, in ascending order; the result is `worker.total`.
#[inline(always)]
pub(crate) fn attend<L: Lanes>(l: L, task: &Task<'_>, worker: &mut Worker) {
    let (rows, dim) = (task.rows(), task.shape.padded_dim());
    load_queries(task, &mut worker.q);
    let keys = task.shape.keys_of(task.queries.clone());
    worker.total.reset(rows, dim);
    for split in task.splits.clone() {
        let keys = keys.start.max(split * SPLIT_KEYS)..keys.end.min((split + 1) * SPLIT_KEYS);
        if keys.is_empty() {
            continue;
        }
        worker.split.reset(rows, dim);
        for start in (keys.start / KEY_TILE * KEY_TILE..keys.end).step_by(KEY_TILE) {
            attend_tile(l, task, start, keys.end - start, worker);
        }
        merge(l, &mut worker.total, &worker.split);
    }
}

/// Copies the tile's query rows, padded with zeros, into `q`.
#[inline(always)]
fn load_queries(task: &Task<'_>, q: &mut [f32]) {
    let shape = task.shape;
    let (group, dim, padded) = (shape.group(), shape.head_dim, shape.padded_dim());
    let mut rows = q.chunks_exact_mut(padded);
    for query in task.queries.clone() {
        let start = (query * shape.n_heads + task.kv_head * group) * dim;
        for (head, row) in task.q[start..start + group * dim].chunks_exact(dim).zip(&mut rows) {
            row[..dim].copy_from_slice(head);
            row[dim..].fill(0.0);
        }
    }
}

/// One step of the online softmax of `worker.split`: the tile of keys at `start`, of which `n_keys` (or all) are wanted.
#[inline(always)]
fn attend_tile<L: Lanes>(l: L, task: &Task<'_>, start: usize, n_keys: usize, worker: &mut Worker) {
    let next_wanted = n_keys > KEY_TILE;
    let n_keys = n_keys.min(KEY_TILE);
    let (rows, dim) = (task.rows(), task.shape.head_dim);
    let (keys, values) = task.kv.tile(task.kv_head, start, dim);
    if rows <= DIRECT_ROWS && next_wanted {
        let (keys, values) = task.kv.tile(task.kv_head, start + KEY_TILE, dim);
        prefetch(l, keys);
        prefetch(l, values);
    }
    let Worker { q, keys: wide_keys, values: wide_values, scores: tile, factors, split, .. } = worker;
    let q = vectors(&q[..rows * task.shape.padded_dim()]);
    let tile = &mut tile[..rows];

    match load(l, keys, dim, n_keys, rows, wide_keys) {
        Tile::F32(keys) => scores(l, q, keys, n_keys, tile),
        Tile::F16(keys) => scores(l, q, keys, n_keys, tile),
    }

    let state = split.parts();
    for (row, scores) in tile.iter_mut().enumerate() {
        let visible = task.visible(row, start);
        if visible.is_empty() {
            factors[row] = 1.0;
        } else {
            let (largest, sum) = (&mut state.largest[row], &mut state.sums[row]);
            factors[row] = weights(l, task.shape, visible, scores, largest, sum);
        }
    }

    let acc = state.acc.as_chunks_mut::<LANES>().0;
    let visible = |row| task.visible(row, start);
    match load(l, values, dim, n_keys, rows, wide_values) {
        Tile::F32(values) => weigh(l, tile, factors, visible, values, acc),
        Tile::F16(values) => weigh(l, tile, factors, visible, values, acc),
    }
}

#[inline(always)]
fn prefetch<L: Lanes>(l: L, tile: KvRows<'_>) {
    match tile {
        KvRows::F32(tile) => l.prefetch(tile),
        KvRows::F16(tile) => l.prefetch(tile),
    }
}

/// Keys or values of a tile in whole vectors, `[KEY_TILE, padded_dim / 8]`.
enum Tile<'a> {
    F32(&'a [[f32; LANES]]),
    F16(&'a [[f16; LANES]]),
}

/// The rows of a tile, in place where that is possible and worthwhile for so many query rows, else copied to `wide`.
#[inline(always)]
fn load<'a, L: Lanes>(
    l: L,
    tile: KvRows<'a>,
    dim: usize,
    n_keys: usize,
    rows: usize,
    wide: &'a mut [f32],
) -> Tile<'a> {
    let whole = dim.is_multiple_of(LANES);
    match tile {
        KvRows::F32(tile) if whole => Tile::F32(vectors(tile)),
        KvRows::F16(tile) if whole && rows <= DIRECT_ROWS => Tile::F16(vectors(tile)),
        KvRows::F32(tile) => Tile::F32(widen(l, tile, dim, n_keys, wide)),
        KvRows::F16(tile) => Tile::F32(widen(l, tile, dim, n_keys, wide)),
    }
}

/// Turns the products of one row into weights and updates the row's largest score and sum. Gives back the factor by which
/// what was accumulated before has to be multiplied.
#[inline(always)]
fn weights<L: Lanes>(
    l: L,
    shape: &AttentionShape,
    visible: Range<usize>,
    scores: &mut [f32; KEY_TILE],
    largest: &mut f32,
    sum: &mut f32,
) -> f32 {
    let vectors = scores.as_chunks_mut::<LANES>().0;
    let mut tile_largest = l.splat(f32::NEG_INFINITY);
    for (i, vector) in vectors.iter_mut().enumerate() {
        let mut s = l.mul(l.load(vector), l.splat(shape.scale));
        if let Some(cap) = shape.soft_cap {
            s = l.mul(l.splat(cap), tanh(l, l.div(s, l.splat(cap))));
        }
        s = mask(l, i * LANES, &visible, s);
        tile_largest = l.max(s, tile_largest);
        l.store(s, vector);
    }
    let tile_largest = l.max_lane(tile_largest);
    let before = *largest;
    let after = if tile_largest > before { tile_largest } else { before };
    let shift = shift_for(after);
    let mut tile_sum = l.zero();
    for vector in vectors {
        let p = exp_nonpositive(l, l.sub(l.load(vector), l.splat(shift)));
        tile_sum = l.add(tile_sum, p);
        l.store(p, vector);
    }
    let factor = decay(l, before, after, shift);
    *largest = after;
    *sum = sum.mul_add(factor, l.sum(tile_sum));
    factor
}

/// Replaces the scores of keys outside `visible` by `-inf`; `first` is the index of the vector's first key.
#[inline(always)]
fn mask<L: Lanes>(l: L, first: usize, visible: &Range<usize>, s: L::V) -> L::V {
    if visible.start <= first && first + LANES <= visible.end {
        return s;
    }
    let masked = l.splat(f32::NEG_INFINITY);
    let index = l.add(l.load(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]), l.splat(first as f32));
    let s = l.select_lt(index, l.splat(visible.start as f32), masked, s);
    l.select_lt(index, l.splat(visible.end as f32), s, masked)
}

/// `e^(before - shift)`: what sums relative to the score `before` are worth relative to `shift`, where `after` is the
/// larger score from which `shift` comes.
#[inline(always)]
fn decay<L: Lanes>(l: L, before: f32, after: f32, shift: f32) -> f32 {
    if before == after {
        return 1.0; // what the exponential gives, without computing it; nothing was accumulated if both are -inf
    }
    let mut lanes = [0.0; LANES];
    l.store(exp_nonpositive(l, l.splat(before - shift)), &mut lanes);
    lanes[0]
}

/// Adds the rows of `split` to those of `total`, which covers earlier keys.
///
/// Empty rows are passed over rather than computed with: a row's result must not depend on which splits the other rows of
/// its tile needed.
#[inline(always)]
pub(crate) fn merge<L: Lanes>(l: L, total: &mut State, split: &State) {
    let (rows, dim) = (total.rows(), total.padded_dim());
    let (split_largest, rest) = split.values().split_at(rows);
    let (split_sums, split_acc) = rest.split_at(rows);
    let total = total.parts();
    for row in 0..rows {
        let (acc, from) =
            (&mut total.acc[row * dim..(row + 1) * dim], &split_acc[row * dim..(row + 1) * dim]);
        let (largest, sum) = (&mut total.largest[row], &mut total.sums[row]);
        if is_empty(split_largest[row], split_sums[row]) {
            continue;
        }
        if is_empty(*largest, *sum) {
            (*largest, *sum) = (split_largest[row], split_sums[row]);
            acc.copy_from_slice(from);
            continue;
        }
        let after = if split_largest[row] > *largest { split_largest[row] } else { *largest };
        let shift = shift_for(after);
        let keep = decay(l, *largest, after, shift);
        let add = decay(l, split_largest[row], after, shift);
        *largest = after;
        *sum = sum.mul_add(keep, split_sums[row] * add);
        let (keep, add) = (l.splat(keep), l.splat(add));
        for (acc, from) in acc.as_chunks_mut::<LANES>().0.iter_mut().zip(from.as_chunks::<LANES>().0) {
            l.store(l.fma(l.load(acc), keep, l.mul(l.load(from), add)), acc);
        }
    }
}

/// Whether a row has no weight: it saw no key, or only scores of `-inf`.
fn is_empty(largest: f32, sum: f32) -> bool {
    largest == f32::NEG_INFINITY && sum == 0.0
}

/// Whole vectors of a slice.
#[inline(always)]
fn vectors<T>(x: &[T]) -> &[[T; LANES]] {
    x.as_chunks::<LANES>().0
}

/// Copies the first `n_rows` rows of `dim` values to `to`, in f32 and padded with zeros to whole vectors.
#[inline(always)]
fn widen<'a, L: Lanes, T: Element>(
    l: L,
    from: &[T],
    dim: usize,
    n_rows: usize,
    to: &'a mut [f32],
) -> &'a [[f32; LANES]] {
    let per_row = dim.div_ceil(LANES);
    let to = &mut to.as_chunks_mut::<LANES>().0[..KEY_TILE * per_row];
    for (from, to) in from.chunks_exact(dim).take(n_rows).zip(to.chunks_exact_mut(per_row)) {
        let (whole, tail) = from.as_chunks::<LANES>();
        for (from, to) in whole.iter().zip(&mut *to) {
            l.store(T::load(l, from), to);
        }
        if !tail.is_empty() {
            l.store(T::load_partial(l, tail), &mut to[per_row - 1]);
        }
    }
    to
}
