//! Working memory of attention: owned by the caller, grown when a call needs more, otherwise reused.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::KEY_TILE;

/// Working memory of [`Kernels::attention`](crate::Kernels::attention), to be kept from call to call.
///
/// It holds nothing that matters between calls. A model needs one per thread that calls attention.
#[derive(Debug, Default)]
pub struct AttentionScratch {
    workers: Workers,
    partials: Vec<f32>, // [query tiles, splits, State::len]
}

/// One [`Worker`] per thread of the pool. Only one thread at a time uses each, so the locks are never contended.
#[derive(Debug, Default)]
pub(super) struct Workers(Vec<Mutex<Worker>>);

/// Memory of one thread.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    /// Queries of the tile's rows, `[rows, padded_dim]`.
    pub(super) q: Vec<f32>,
    /// Keys of a tile in f32, `[KEY_TILE, padded_dim]`.
    pub(super) keys: Vec<f32>,
    /// Values of a tile in f32, `[KEY_TILE, padded_dim]`.
    pub(super) values: Vec<f32>,
    /// Scores, then probabilities, `[rows]` of a tile.
    pub(super) scores: Vec<[f32; KEY_TILE]>,
    /// Factors of the accumulators for the current tile, `[rows]`.
    pub(super) factors: Vec<f32>,
    /// Result of the splits so far.
    pub(super) total: State,
    /// Result of one split.
    pub(super) split: State,
}

/// A running softmax for some rows: of each, the largest score, the sum of exponentials relative to it, and the sum of
/// values with these weights. Empty rows are `-inf, 0, zeros`.
#[derive(Debug, Default)]
pub(crate) struct State {
    rows: usize,
    padded_dim: usize,
    values: Vec<f32>, // [rows] largest scores, [rows] sums, [rows, padded_dim] accumulators
}

impl AttentionScratch {
    /// Scratch without memory; the first calls allocate what they need.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for a call.
    pub(super) fn reserve(&mut self, threads: usize, rows: usize, padded_dim: usize, partials: usize) {
        if self.workers.0.len() < threads {
            self.workers.0.resize_with(threads, Mutex::default);
        }
        for worker in &mut self.workers.0[..threads] {
            worker.get_mut().unwrap_or_else(PoisonError::into_inner).reserve(rows, padded_dim);
        }
        if self.partials.len() < partials {
            self.partials.resize(partials, 0.0);
        }
    }

    /// Number of f32 values held.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let worker = |index| {
            let worker = self.worker(index);
            let tile = worker.keys.len() + worker.values.len() + worker.scores.len() * KEY_TILE;
            let rows = worker.q.len() + worker.factors.len();
            tile + rows + worker.total.values.len() + worker.split.values.len()
        };
        self.partials.len() + (0..self.workers.0.len()).map(worker).sum::<usize>()
    }

    /// The memory of the thread with this index.
    pub(super) fn worker(&self, index: usize) -> MutexGuard<'_, Worker> {
        self.workers.get(index)
    }

    /// The threads' memory, and that of partial results.
    pub(super) fn parts(&mut self) -> (&Workers, &mut [f32]) {
        (&self.workers, &mut self.partials)
    }
}

impl Workers {
    pub(super) fn get(&self, index: usize) -> MutexGuard<'_, Worker> {
        // What a panicking task left behind is overwritten by the next one.
        self.0[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker {
    fn reserve(&mut self, rows: usize, padded_dim: usize) {
        let grow = |buffer: &mut Vec<f32>, len: usize| {
            if buffer.len() < len {
                buffer.resize(len, 0.0);
            }
        };
        grow(&mut self.q, rows * padded_dim);
        grow(&mut self.keys, KEY_TILE * padded_dim);
        grow(&mut self.values, KEY_TILE * padded_dim);
        grow(&mut self.factors, rows);
        if self.scores.len() < rows {
            self.scores.resize(rows, [0.0; KEY_TILE]);
        }
        grow(&mut self.total.values, State::len(rows, padded_dim));
        grow(&mut self.split.values, State::len(rows, padded_dim));
    }
}

/// The three parts of a [`State`].
pub(super) struct StateParts<'a> {
    pub(super) largest: &'a mut [f32], // [rows]
    pub(super) sums: &'a mut [f32],    // [rows]
    pub(super) acc: &'a mut [f32],     // [rows, padded_dim]
}

impl State {
    /// Number of f32 values of a state.
    pub(super) fn len(rows: usize, padded_dim: usize) -> usize {
        rows * (padded_dim + 2)
    }

    /// Makes all rows empty; the memory must have been reserved.
    pub(super) fn reset(&mut self, rows: usize, padded_dim: usize) {
        (self.rows, self.padded_dim) = (rows, padded_dim);
        let parts = self.parts();
        parts.largest.fill(f32::NEG_INFINITY);
        parts.sums.fill(0.0);
        parts.acc.fill(0.0);
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn padded_dim(&self) -> usize {
        self.padded_dim
    }

    /// The values as they lie in memory.
    pub(super) fn values(&self) -> &[f32] {
        &self.values[..Self::len(self.rows, self.padded_dim)]
    }

    /// The values as they lie in memory.
    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values[..Self::len(self.rows, self.padded_dim)]
    }

    pub(super) fn parts(&mut self) -> StateParts<'_> {
        let rows = self.rows;
        let (largest, rest) = self.values_mut().split_at_mut(rows);
        let (sums, acc) = rest.split_at_mut(rows);
        StateParts { largest, sums, acc }
    }

    /// Sum of weights and accumulator of one row.
    pub(super) fn row(&self, row: usize) -> (f32, &[f32]) {
        let values = self.values();
        let start = 2 * self.rows + row * self.padded_dim;
        (values[self.rows + row], &values[start..start + self.padded_dim])
    }
}
