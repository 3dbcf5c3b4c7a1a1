//! Work list of a batch: the query tiles of all calls, divided into splits where tiles alone would
//! not keep the threads equally busy; the longest tasks first.

use std::cmp::Reverse;
use std::ops::Range;

use super::state::State;
use super::{AttentionCall, AttentionShape, KEY_TILE, SPLIT_KEYS};

/// Rows (queries times heads of a group) of a query tile, unless one query alone has more.
///
/// With 128 dimensions the rows' queries, two accumulators and scores, and a KV tile in f32 take
/// 240 KiB, which fits the L2 cache; widening and prefetching a tile then cost a few percent of the
/// rows' computation.
const ROWS: usize = 128;

/// Cost of reading a KV tile, in rows: a decode step over F16 keys waits for memory as long as 8
/// rows compute.
const READ_ROWS: usize = 8;

/// Tiles that cost more than a thread's share of the batch divided by this number are divided into
/// splits: the last task then keeps the other threads waiting for a quarter of that share at most.
const TASKS_PER_THREAD: usize = 4;

/// Limit of cache lines for partial results of a batch; tiles beyond it are not divided.
const MAX_PARTIALS: usize = 1 << 20;

/// One task of a batch: a query tile of a call, and the splits to attend to.
#[derive(Debug, Clone)]
pub(super) struct Work {
    /// Index of the call.
    pub(super) call: usize,
    /// First value of the call in the queries and outputs of the batch.
    pub(super) start: usize,
    pub(super) kv_head: usize,
    pub(super) queries: Range<usize>,
    pub(super) splits: Range<usize>,
    /// First line of the partial results of `splits`; `None` if the task writes its output.
    pub(super) partial: Option<usize>,
    cost: usize,
}

/// Tasks of a batch; kept between batches for its memory.
#[derive(Debug, Default)]
pub(super) struct WorkList {
    /// All tasks, by descending cost.
    pub(super) tasks: Vec<Work>,
    /// Tiles whose splits are separate tasks; their partial results are merged afterwards.
    pub(super) merges: Vec<Work>,
    /// Lines of all partial results.
    pub(super) partials: usize,
    /// Largest number of rows of a tile.
    pub(super) rows: usize,
    /// Largest padded head size.
    pub(super) padded_dim: usize,
}

impl WorkList {
    /// Replaces the list by the tasks of `calls` for a number of threads.
    pub(super) fn fill(&mut self, calls: &[AttentionCall<'_>], threads: usize) {
        self.tasks.clear();
        self.merges.clear();
        (self.partials, self.rows, self.padded_dim) = (0, 0, 0);
        let mut start = 0;
        for (index, call) in calls.iter().enumerate() {
            self.add_tiles(index, start, call);
            start += call.shape.n_queries * call.shape.n_heads * call.shape.head_dim;
        }
        if threads > 1 {
            self.divide(calls, threads);
            self.tasks.sort_unstable_by_key(|task| Reverse(task.cost));
        }
    }

    /// Adds the query tiles of a call, each with all its splits.
    fn add_tiles(&mut self, call: usize, start: usize, AttentionCall { shape, kv, .. }: &AttentionCall<'_>) {
        if shape.n_queries == 0 || shape.head_dim == 0 || shape.n_heads == 0 {
            return;
        }
        let group = shape.group();
        let step = (ROWS / group).clamp(1, shape.n_queries);
        self.rows = self.rows.max(step * group);
        self.padded_dim = self.padded_dim.max(shape.padded_dim());
        for first in (0..shape.n_queries).step_by(step) {
            let queries = first..(first + step).min(shape.n_queries);
            let keys = shape.keys_of(queries.clone(), kv.len);
            let splits = keys.start / SPLIT_KEYS..keys.end.div_ceil(SPLIT_KEYS);
            let tile = Work { call, start, kv_head: 0, queries, splits, partial: None, cost: 0 };
            let cost = tile.cost_in(shape, kv.len);
            let tiles = (0..shape.n_kv_heads).map(|kv_head| Work { kv_head, cost, ..tile.clone() });
            self.tasks.extend(tiles);
        }
    }

    /// Makes the splits of long tiles separate tasks.
    fn divide(&mut self, calls: &[AttentionCall<'_>], threads: usize) {
        let total: usize = self.tasks.iter().map(|task| task.cost).sum();
        for index in 0..self.tasks.len() {
            let tile = &self.tasks[index];
            let is_long = tile.cost.saturating_mul(TASKS_PER_THREAD * threads) > total;
            if !is_long || tile.splits.len() < 2 {
                continue;
            }
            let AttentionCall { shape, kv, .. } = &calls[tile.call];
            let lines = State::len(tile.rows(shape), shape.padded_dim());
            let end = lines.saturating_mul(tile.splits.len()).saturating_add(self.partials);
            if end > MAX_PARTIALS {
                continue;
            }
            let tile = Work { partial: Some(self.partials), ..tile.clone() };
            for (i, split) in tile.splits.clone().enumerate() {
                let mut part = Work {
                    splits: split..split + 1,
                    partial: Some(self.partials + i * lines),
                    ..tile.clone()
                };
                part.cost = part.cost_in(shape, kv.len);
                if i == 0 {
                    self.tasks[index] = part;
                } else {
                    self.tasks.push(part);
                }
            }
            self.merges.push(tile);
            self.partials = end;
        }
    }

    /// Bytes allocated.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        (self.tasks.capacity() + self.merges.capacity()) * size_of::<Work>()
    }
}

impl Work {
    pub(super) fn rows(&self, shape: &AttentionShape) -> usize {
        self.queries.len() * shape.group()
    }

    /// Cost of the work, in KV tiles times rows.
    fn cost_in(&self, shape: &AttentionShape, len: usize) -> usize {
        let keys = shape.keys_of(self.queries.clone(), len);
        let end = keys.end.min(self.splits.end.saturating_mul(SPLIT_KEYS));
        let start = keys.start.max(self.splits.start.saturating_mul(SPLIT_KEYS)).min(end);
        (end.div_ceil(KEY_TILE) - start / KEY_TILE).saturating_mul(self.rows(shape) + READ_ROWS)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{KvView, Mask};
    use super::*;

    fn call(n_kv_heads: usize, group: usize, n_queries: usize, len: usize) -> AttentionCall<'static> {
        let shape = AttentionShape {
            n_heads: n_kv_heads * group,
            n_kv_heads,
            head_dim: 64,
            query_start: len - n_queries,
            n_queries,
            scale: 1.0,
            mask: Mask::CAUSAL,
            soft_cap: None,
            alibi: None,
        };
        AttentionCall { shape, kv: KvView::new(&[], len), sinks: None }
    }

    fn list(calls: &[AttentionCall<'_>], threads: usize) -> WorkList {
        let mut list = WorkList::default();
        list.fill(calls, threads);
        list
    }

    /// Costs of the threads if each takes the next task when it is free.
    fn loads(list: &WorkList, threads: usize) -> Vec<usize> {
        let mut loads = vec![0; threads];
        for task in &list.tasks {
            *loads.iter_mut().min().expect("a thread") += task.cost;
        }
        loads
    }

    #[test]
    fn every_split_of_every_tile_is_in_one_task() {
        let calls = [call(2, 4, 1, 5000), call(2, 4, 1, 3), call(3, 1, 300, 1300), call(1, 200, 2, 600)];
        for threads in [1, 2, 3, 64] {
            let list = list(&calls, threads);
            let mut covered = Vec::new();
            for task in &list.tasks {
                for (query, split) in
                    task.queries.clone().flat_map(|q| task.splits.clone().map(move |s| (q, s)))
                {
                    covered.push((task.call, task.kv_head, query, split));
                }
            }
            covered.sort_unstable();
            let expected: Vec<_> = (calls.iter().enumerate())
                .flat_map(|(index, AttentionCall { shape, kv, .. })| {
                    (0..shape.n_kv_heads).flat_map(move |head| {
                        (0..shape.n_queries).flat_map(move |query| {
                            let splits = shape.keys_of_query(query, kv.len).end.div_ceil(SPLIT_KEYS);
                            (0..splits).map(move |split| (index, head, query, split))
                        })
                    })
                })
                .collect();
            // A tile's last splits have no keys for its first queries.
            assert!(expected.iter().all(|place| covered.binary_search(place).is_ok()), "{threads} threads");
            assert!(covered.windows(2).all(|pair| pair[0] != pair[1]), "{threads} threads: once each");
            let is_divided = !list.merges.is_empty();
            assert!(threads != 1 || !is_divided, "one thread needs no partial results");
            assert!(threads != 64 || is_divided, "{threads} threads: divided");
        }
    }

    #[test]
    fn partial_results_do_not_overlap() {
        let list = list(&[call(2, 4, 3, 5000), call(1, 7, 1, 2000)], 8);
        let of_tasks = |task: &Work| {
            let lines = State::len(task.queries.len() * if task.call == 0 { 4 } else { 7 }, 64);
            task.partial.map(|first| first..first + lines * task.splits.len())
        };
        let mut ranges: Vec<_> = list.tasks.iter().filter_map(of_tasks).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(ranges.last().expect("divided").end, list.partials);
        let mut tiles: Vec<_> = list.merges.iter().filter_map(of_tasks).collect();
        tiles.sort_unstable_by_key(|range| range.start);
        assert!(tiles.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(tiles.last().expect("divided").end, list.partials);
    }

    /// Decode of sequences of unequal lengths: no thread has a sixth more than the average.
    #[test]
    fn unequal_lengths_are_balanced() {
        let decode =
            |lengths: &[usize]| -> Vec<_> { lengths.iter().map(|&len| call(8, 4, 1, len)).collect() };
        let lengths: Vec<usize> = (0..16).map(|i| 64 << (i % 7)).collect();
        for calls in [decode(&lengths), decode(&[8192]), decode(&[4096, 64, 64]), decode(&[4000; 2])] {
            for threads in [2, 3, 4, 8] {
                let loads = loads(&list(&calls, threads), threads);
                let (most, total) = (*loads.iter().max().expect("a thread"), loads.iter().sum::<usize>());
                assert!(most * threads * 6 <= total * 7, "{threads} threads: {loads:?}");
            }
        }
    }

    #[test]
    fn short_tiles_are_not_divided() {
        let calls: Vec<_> = (0..16).map(|_| call(8, 4, 1, 2048)).collect();
        let list = list(&calls, 2);
        assert_eq!((list.tasks.len(), list.merges.len(), list.partials), (128, 0, 0));
    }

    #[test]
    fn calls_without_outputs_have_no_tasks() {
        let calls = [call(2, 1, 0, 10), call(2, 1, 1, 10)];
        let list = list(&calls, 2);
        assert!(list.tasks.iter().all(|task| task.call == 1) && list.tasks.len() == 2);
    }
}
