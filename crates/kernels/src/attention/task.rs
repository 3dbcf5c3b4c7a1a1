//! One task of attention: a query tile over some splits.

use std::ops::Range;

use super::alibi::alibi_slope;
use super::kv::{
    KvFormat, KvTile, Line, Tile, TileVisitor, WIDE, floats, keys_to_values, pad_values, widen_keys,
    widen_values, with_keys, with_values,
};
use super::products::{Ahead, TILE_ROWS, Weights, scores, weigh};
use super::scratch::Worker;
use super::softmax::{ScoreRule, decay, weights};
use super::state::State;
use super::{AttentionShape, KEY_TILE, KvView, Mask, SPLIT_KEYS};
use crate::lanes::{Fused, Vectors, WideLanes};
use crate::rows::softmax::shift_for;

/// Query tile and the splits to attend to.
pub(crate) struct Task<'a> {
    pub(super) shape: &'a AttentionShape,
    pub(super) q: &'a [f32], // [n_queries, n_heads, head_dim]
    pub(super) kv: &'a KvView<'a>,
    pub(super) kv_head: usize,
    /// Queries of the tile; row `i * group + g` is query `queries.start + i` of head `g` of the
    /// group.
    pub(super) queries: Range<usize>,
    pub(super) splits: Range<usize>,
}

impl Task<'_> {
    pub(super) fn rows(&self) -> usize {
        self.queries.len() * self.shape.group()
    }

    /// Keys of the tile at `start` visible to query `query` of the call, relative to `start`; may
    /// be empty.
    #[inline(always)]
    fn visible(&self, query: usize, start: usize) -> Range<usize> {
        let keys = self.shape.keys_of_query(query, self.kv.len);
        let within = |position: usize| position.saturating_sub(start).min(KEY_TILE);
        within(keys.start)..within(keys.end)
    }

    /// Queries of the task that see a key of the tile at `start` (causal mask, sliding window).
    fn queries_of_tile(&self, start: usize) -> Range<usize> {
        if self.shape.mask == Mask::Full {
            return self.queries.clone();
        }
        let first = start.saturating_sub(self.shape.query_start).max(self.queries.start);
        let seeing = (first..self.queries.end).take_while(|&query| !self.visible(query, start).is_empty());
        first..first + seeing.count()
    }
}

/// Attends the task's rows to its splits, in ascending order; the result is in `worker.total`.
#[inline(always)]
pub(crate) fn attend<L: WideLanes>(l: L, task: &Task<'_>, worker: &mut Worker) {
    let (rows, dim) = (task.rows(), task.shape.padded_dim());
    load_queries(task, worker);
    let keys = task.shape.keys_of(task.queries.clone(), task.kv.len);
    worker.total.reset(rows, dim);
    for split in task.splits.clone() {
        let keys = keys.start.max(split * SPLIT_KEYS)..keys.end.min((split + 1) * SPLIT_KEYS);
        if keys.is_empty() {
            continue;
        }
        worker.split.reset(rows, dim);
        for start in (keys.start / KEY_TILE * KEY_TILE..keys.end).step_by(KEY_TILE) {
            let next = (start + KEY_TILE < keys.end).then(|| task.kv.tile(task.kv_head, start + KEY_TILE));
            let ahead = next.map_or([Ahead::nothing(); 2], |(keys, values)| {
                [Some(keys), values].map(|tile| {
                    let Some(tile) = tile else { return Ahead::nothing() };
                    l.prefetch(tile.scales);
                    Ahead::new(tile.numbers)
                })
            });
            attend_tile(l, task, start, ahead, worker);
        }
        merge(l, &mut worker.total, &worker.split);
    }
}

/// Copies the tile's query rows and computes the `ALiBi` slopes of its heads.
#[inline(always)]
fn load_queries(task: &Task<'_>, worker: &mut Worker) {
    let shape = task.shape;
    let (group, dim) = (shape.group(), shape.head_dim);
    for (query, rows) in task.queries.clone().zip(worker.q.chunks_exact_mut(group * dim)) {
        let start = (query * shape.n_heads + task.kv_head * group) * dim;
        rows.copy_from_slice(&task.q[start..start + group * dim]);
    }
    if let Some(max_bias) = shape.alibi {
        for (g, slope) in worker.slopes[..group].iter_mut().enumerate() {
            *slope = alibi_slope(task.kv_head * group + g, shape.n_heads, max_bias);
        }
    }
}

/// One step of the online softmax in `worker.split`: the tile of keys at `start`.
#[inline(always)]
fn attend_tile<L: WideLanes>(
    l: L,
    task: &Task<'_>,
    start: usize,
    ahead: [Ahead<'_>; 2],
    worker: &mut Worker,
) {
    let shape = task.shape;
    let (group, dim, columns) = (shape.group(), shape.head_dim, shape.padded_dim() / WIDE);
    let (mut keys, values) = task.kv.tile(task.kv_head, start);
    let queries = task.queries_of_tile(start);
    if queries.is_empty() {
        return;
    }
    let rows = (queries.start - task.queries.start) * group..(queries.end - task.queries.start) * group;
    let n_rows = rows.len();
    let Worker {
        q, keys: wide_keys, values: wide_values, scales, scores: tile, factors, slopes, split, ..
    } = worker;
    let tile = &mut tile[..2 * n_rows];
    let factors = &mut factors[..n_rows];

    // With few rows, keys and values are dequantized in registers by the products, else (and for
    // formats that need a whole tile) beforehand.
    let widened =
        |tile: KvTile<'_>| tile.nuq.is_some() || (tile.format != KvFormat::F32 && n_rows > TILE_ROWS);
    if widened(keys) || (values.is_none() && keys.format != KvFormat::F32) {
        widen_keys(l, keys, dim, scales, wide_keys);
        keys = KvTile::of_f32(&wide_keys[..2 * dim]);
    }
    let q = &q[rows.start * dim..rows.end * dim];
    with_keys(l, keys, scales, Scoring { q, dim, ahead: ahead[0], out: tile });

    let state = split.parts();
    let (largest, sums) = (&mut state.largest[rows.clone()], &mut state.sums[rows.clone()]);
    for (i, query) in queries.clone().enumerate() {
        let visible = task.visible(query, start);
        let offset = shape.alibi.map(|_| offset_to(start, shape.query_start + query));
        for g in 0..group {
            let row = i * group + g;
            let bias = offset.map(|offset| (slopes[g], offset));
            let rule = ScoreRule { shape, visible: visible.clone(), bias };
            let products = &mut tile.as_chunks_mut::<2>().0[row];
            factors[row] = weights(l, &rule, products, &mut largest[row], &mut sums[row]);
        }
    }

    let acc = &mut state.acc[rows.start * columns..rows.end * columns];
    let weights = Weights { weights: floats(tile).as_chunks().0, factors, ahead: ahead[1] };
    let all = 0..KEY_TILE;
    let whole = task.visible(queries.start, start) == all && task.visible(queries.end - 1, start) == all;
    let visible =
        |row: usize| if whole { all.clone() } else { task.visible(queries.start + row / group, start) };
    let values = match values {
        Some(values) if dim.is_multiple_of(WIDE) && !widened(values) => values,
        other => {
            match other {
                Some(values) if dim.is_multiple_of(WIDE) => widen_values(l, values, dim, scales, wide_values),
                Some(values) => pad_values(l, values, dim, wide_values),
                None => keys_to_values(keys, columns, wide_values),
            }
            KvTile::of_f32(&wide_values[..KEY_TILE * columns])
        }
    };
    with_values(l, values, columns, scales, Weighing { weights, visible, acc });
}

/// Position `start` relative to position `query`, rounded once: positions as f32 are exact only up
/// to 2^24.
#[inline(always)]
fn offset_to(start: usize, query: usize) -> f32 {
    if start < query { -((query - start) as f32) } else { (start - query) as f32 }
}

/// Scores of some rows with a tile of keys.
struct Scoring<'a> {
    q: &'a [f32], // [rows, dim]
    dim: usize,
    ahead: Ahead<'a>,
    out: &'a mut [Line], // [rows, 32]
}

impl<L: WideLanes> TileVisitor<L> for Scoring<'_> {
    #[inline(always)]
    fn visit<T: Tile>(self, l: L, keys: T) {
        scores(l, self.q, self.dim, keys, self.ahead, self.out);
    }
}

/// Weighted sums of some rows over a tile of values.
struct Weighing<'a, V> {
    weights: Weights<'a>,
    visible: V,
    acc: &'a mut [Line],
}

impl<L: WideLanes, V: Fn(usize) -> Range<usize>> TileVisitor<L> for Weighing<'_, V> {
    #[inline(always)]
    fn visit<T: Tile>(self, l: L, values: T) {
        weigh(l, self.weights, self.visible, values, self.acc);
    }
}

/// Merges the rows of `split` into `total`, which covers earlier keys.
///
/// Empty rows are skipped: a row's result must not depend on the splits of the other rows of its
/// tile.
#[inline(always)]
pub(crate) fn merge<L: WideLanes>(l: L, total: &mut State, split: &State) {
    let (rows, columns) = (total.rows(), total.padded_dim() / WIDE);
    let total = total.parts();
    for row in 0..rows {
        let place = row * columns..(row + 1) * columns;
        let (acc, from) = (&mut total.acc[place.clone()], &split.lines()[place]);
        let (largest, sum) = (&mut total.largest[row], &mut total.sums[row]);
        let (split_largest, split_sum) = split.row_sums(row);
        if is_empty(split_largest, split_sum) {
            continue;
        }
        if is_empty(*largest, *sum) {
            (*largest, *sum) = (split_largest, split_sum);
            acc.copy_from_slice(from);
            continue;
        }
        let after = if split_largest > *largest { split_largest } else { *largest };
        let shift = shift_for(after);
        let keep = decay(l, *largest, after, shift);
        let add = decay(l, split_largest, after, shift);
        *largest = after;
        *sum = sum.fma(keep, split_sum * add);
        let (keep, add) = (l.wide().splat(keep), l.wide().splat(add));
        for (acc, from) in acc.iter_mut().zip(from) {
            let from = l.wide().mul(l.wide().load(from.halves()), add);
            l.wide().store(l.wide().fma(l.wide().load(acc.halves()), keep, from), acc.halves_mut());
        }
    }
}

/// True if a row has no weight: no key, or only scores of `-inf`.
fn is_empty(largest: f32, sum: f32) -> bool {
    largest == f32::NEG_INFINITY && sum == 0.0
}
