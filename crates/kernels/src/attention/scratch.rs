//! Working memory of attention: owned by the caller, grown on demand, reused between calls.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::kv::{Line, as_lines_len};
use super::state::State;
use super::work::WorkList;
use super::{AttentionCall, KEY_TILE};

/// Working memory of [`Kernels::attention`](crate::Kernels::attention), reused between calls.
///
/// No state is carried between calls. Each thread that calls attention needs its own.
#[derive(Debug, Default)]
pub struct AttentionScratch {
    work: WorkList,
    workers: Workers,
    partials: Vec<Line>, // [divided tiles, splits, State::len]
}

/// One [`Worker`] per thread of the pool. Each is used by one thread at a time, so the locks are
/// never contended.
#[derive(Debug, Default)]
pub(super) struct Workers(Vec<Mutex<Worker>>);

/// Working memory of one thread.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    /// Query rows of the tile, `[rows, head_dim]`.
    pub(super) q: Vec<f32>,
    /// Keys of a tile in f32, `[head_dim, KEY_TILE]`.
    pub(super) keys: Vec<Line>,
    /// Values of a tile in f32, `[KEY_TILE, padded_dim]`.
    pub(super) values: Vec<Line>,
    /// Scales (and minima) of a quantized tile in f32.
    pub(super) scales: Vec<Line>,
    /// Scores, then probabilities, `[rows, KEY_TILE]`.
    pub(super) scores: Vec<Line>,
    /// Rescaling factors of the accumulators for the current tile, `[rows]`.
    pub(super) factors: Vec<f32>,
    /// `ALiBi` slopes of the heads of the group, if used.
    pub(super) slopes: Vec<f32>,
    /// Result of the splits so far.
    pub(super) total: State,
    /// Result of one split.
    pub(super) split: State,
}

impl AttentionScratch {
    /// Creates empty scratch; the first calls allocate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Fills the work list, and reserves memory for its tasks.
    pub(super) fn prepare(&mut self, calls: &[AttentionCall<'_>], threads: usize) {
        let Self { work, workers, partials } = self;
        work.fill(calls, threads);
        if workers.0.len() < threads {
            workers.0.resize_with(threads, Mutex::default);
        }
        for worker in &mut workers.0[..threads] {
            let worker = worker.get_mut().unwrap_or_else(PoisonError::into_inner);
            worker.reserve(work.rows, work.padded_dim);
        }
        grow(partials, work.partials);
    }

    /// Bytes allocated.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let worker = |index| {
            let worker = self.workers.get(index);
            let states = worker.total.reserved() + worker.split.reserved();
            let tile = worker.keys.len() + worker.values.len() + worker.scales.len() + worker.scores.len();
            let values = worker.q.len() + worker.factors.len() + worker.slopes.len();
            (states + tile) * size_of::<Line>() + values * size_of::<f32>()
        };
        let workers = (0..self.workers.0.len()).map(worker).sum::<usize>();
        self.work.bytes() + self.partials.len() * size_of::<Line>() + workers
    }

    /// Tasks, working memory of the threads, and memory of partial results.
    pub(super) fn parts(&mut self) -> (&WorkList, &Workers, &mut [Line]) {
        (&self.work, &self.workers, &mut self.partials)
    }
}

impl Workers {
    pub(super) fn get(&self, index: usize) -> MutexGuard<'_, Worker> {
        // A worker poisoned by a panic is safe to reuse: the next task overwrites its memory.
        self.0[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker {
    fn reserve(&mut self, rows: usize, padded_dim: usize) {
        grow(&mut self.q, rows * padded_dim);
        grow(&mut self.factors, rows);
        grow(&mut self.slopes, rows);
        let tile = as_lines_len(KEY_TILE * padded_dim);
        grow(&mut self.keys, tile);
        grow(&mut self.values, tile);
        grow(&mut self.scales, as_lines_len(2 * padded_dim));
        grow(&mut self.scores, as_lines_len(rows * KEY_TILE));
        self.total.reserve(rows, padded_dim);
        self.split.reserve(rows, padded_dim);
    }
}

fn grow<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AttentionShape, KvView, Mask};
    use super::*;

    /// All memory of a call is reserved before its tasks run.
    #[test]
    fn scratch_does_not_grow_again() {
        let tokens = 1100;
        let call = |n_queries| {
            let shape = AttentionShape {
                n_heads: 6,
                n_kv_heads: 2,
                head_dim: 16,
                query_start: tokens - n_queries,
                n_queries,
                scale: 0.25,
                mask: Mask::CAUSAL,
                soft_cap: None,
                alibi: None,
            };
            [AttentionCall { shape, kv: KvView::new(&[], tokens), sinks: None }]
        };
        let mut scratch = AttentionScratch::new();
        let mut sizes = Vec::new();
        for _ in 0..2 {
            scratch.prepare(&call(tokens), 2);
            scratch.prepare(&call(1), 2);
            sizes.push(scratch.bytes());
        }
        assert!(sizes[0] > 0);
        assert_eq!(sizes[0], sizes[1]);
    }
}
