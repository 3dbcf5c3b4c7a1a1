//! Working memory of attention: owned by the caller, grown when a call needs more, otherwise
//! reused.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::KEY_TILE;
use super::kv::{Line, as_lines_len, floats, floats_mut};

/// Working memory of [`Kernels::attention`](crate::Kernels::attention), to be kept from call to
/// call.
///
/// It holds nothing that matters between calls. A model needs one per thread that calls attention.
#[derive(Debug, Default)]
pub struct AttentionScratch {
    workers: Workers,
    partials: Vec<Line>, // [query tiles, splits, State::len]
}

/// One [`Worker`] per thread of the pool. Only one thread at a time uses each, so the locks are
/// never contended.
#[derive(Debug, Default)]
pub(super) struct Workers(Vec<Mutex<Worker>>);

/// Memory of one thread.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    /// Queries of the tile's rows, `[rows, head_dim]`.
    pub(super) q: Vec<f32>,
    /// Keys of a tile in f32, `[head_dim, KEY_TILE]`.
    pub(super) keys: Vec<Line>,
    /// Values of a tile in f32, `[KEY_TILE, padded_dim]`.
    pub(super) values: Vec<Line>,
    /// Scales (and minima) of a quantized tile in f32.
    pub(super) scales: Vec<Line>,
    /// Scores, then probabilities, `[rows, KEY_TILE]`.
    pub(super) scores: Vec<Line>,
    /// Factors of the accumulators for the current tile, `[rows]`.
    pub(super) factors: Vec<f32>,
    /// `ALiBi` slopes of the heads of the group, if there are any.
    pub(super) slopes: Vec<f32>,
    /// Result of the splits so far.
    pub(super) total: State,
    /// Result of one split.
    pub(super) split: State,
}

/// A running softmax for some rows: of each, the largest score, the sum of exponentials relative to
/// it, and the sum of values with these weights. Empty rows are `-inf, 0, zeros`.
#[derive(Debug, Default)]
pub(crate) struct State {
    rows: usize,
    padded_dim: usize,
    lines: Vec<Line>, // [rows, padded_dim] accumulators, [rows] largest scores, [rows] sums
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
            self.partials.resize(partials, Line::default());
        }
    }

    /// Bytes held.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let worker = |index| {
            let worker = self.worker(index);
            let states = worker.total.lines.len() + worker.split.lines.len();
            let tile = worker.keys.len() + worker.values.len() + worker.scales.len() + worker.scores.len();
            let values = worker.q.len() + worker.factors.len() + worker.slopes.len();
            (states + tile) * size_of::<Line>() + values * size_of::<f32>()
        };
        self.partials.len() * size_of::<Line>() + (0..self.workers.0.len()).map(worker).sum::<usize>()
    }

    /// The memory of the thread with this index.
    pub(super) fn worker(&self, index: usize) -> MutexGuard<'_, Worker> {
        self.workers.get(index)
    }

    /// The threads' memory, and that of partial results.
    pub(super) fn parts(&mut self) -> (&Workers, &mut [Line]) {
        (&self.workers, &mut self.partials)
    }
}

impl Workers {
    pub(super) fn get(&self, index: usize) -> MutexGuard<'_, Worker> {
        // The next task overwrites the memory of one that panicked.
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
        grow(&mut self.total.lines, State::len(rows, padded_dim));
        grow(&mut self.split.lines, State::len(rows, padded_dim));
    }
}

fn grow<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
}

/// The three parts of a [`State`].
pub(super) struct StateParts<'a> {
    pub(super) acc: &'a mut [Line],    // [rows, padded_dim]
    pub(super) largest: &'a mut [f32], // [rows]
    pub(super) sums: &'a mut [f32],    // [rows]
}

impl State {
    /// Number of lines of a state.
    pub(super) fn len(rows: usize, padded_dim: usize) -> usize {
        as_lines_len(rows * padded_dim) + as_lines_len(2 * rows)
    }

    /// Makes all rows empty; the memory must have been reserved.
    pub(super) fn reset(&mut self, rows: usize, padded_dim: usize) {
        (self.rows, self.padded_dim) = (rows, padded_dim);
        let parts = self.parts();
        parts.largest.fill(f32::NEG_INFINITY);
        parts.sums.fill(0.0);
        parts.acc.fill(Line::default());
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn padded_dim(&self) -> usize {
        self.padded_dim
    }

    /// The memory of the rows.
    pub(super) fn lines(&self) -> &[Line] {
        &self.lines[..Self::len(self.rows, self.padded_dim)]
    }

    /// The memory of the rows.
    pub(super) fn lines_mut(&mut self) -> &mut [Line] {
        &mut self.lines[..Self::len(self.rows, self.padded_dim)]
    }

    pub(super) fn parts(&mut self) -> StateParts<'_> {
        let rows = self.rows;
        let acc_len = as_lines_len(rows * self.padded_dim);
        let (acc, rest) = self.lines_mut().split_at_mut(acc_len);
        let (largest, rest) = floats_mut(rest).split_at_mut(rows);
        StateParts { acc, largest, sums: &mut rest[..rows] }
    }

    /// Largest score and sum of weights of one row.
    pub(super) fn row_sums(&self, row: usize) -> (f32, f32) {
        let rest = floats(&self.lines()[as_lines_len(self.rows * self.padded_dim)..]);
        (rest[row], rest[self.rows + row])
    }

    /// Accumulator of one row.
    pub(super) fn row(&self, row: usize) -> &[f32] {
        &floats(&self.lines)[row * self.padded_dim..][..self.padded_dim]
    }
}
