//! State of the online softmax of some rows: result of some keys, to be merged with that of others.

use super::kv::{Line, as_lines_len, floats, floats_mut};

/// Online softmax state of some rows.
///
/// Per row: the largest score, the sum of exponentials relative to it, and the sum of values with
/// these weights. Empty rows are `-inf, 0, zeros`.
#[derive(Debug, Default)]
pub(crate) struct State {
    rows: usize,
    padded_dim: usize,
    lines: Vec<Line>, // [rows, padded_dim] accumulators, [rows] largest scores, [rows] sums
}

/// Sections of a [`State`].
pub(super) struct StateParts<'a> {
    pub(super) acc: &'a mut [Line],    // [rows, padded_dim]
    pub(super) largest: &'a mut [f32], // [rows]
    pub(super) sums: &'a mut [f32],    // [rows]
}

impl State {
    /// Lines per state.
    pub(super) fn len(rows: usize, padded_dim: usize) -> usize {
        as_lines_len(rows * padded_dim) + as_lines_len(2 * rows)
    }

    /// Reserves memory.
    pub(super) fn reserve(&mut self, rows: usize, padded_dim: usize) {
        let len = Self::len(rows, padded_dim);
        if self.lines.len() < len {
            self.lines.resize(len, Line::default());
        }
    }

    /// Lines of reserved memory.
    #[cfg(test)]
    pub(super) fn reserved(&self) -> usize {
        self.lines.len()
    }

    /// Empties all rows; requires reserved memory.
    pub(super) fn reset(&mut self, rows: usize, padded_dim: usize) {
        (self.rows, self.padded_dim) = (rows, padded_dim);
        let parts = self.parts();
        parts.largest.fill(f32::NEG_INFINITY);
        parts.sums.fill(0.0);
        parts.acc.fill(Line::default());
    }

    /// Makes each row the result of one key without a value, whose score is the sink of its head;
    /// heads alternate as in a task. Requires reserved memory.
    pub(super) fn reset_to_sinks(&mut self, rows: usize, padded_dim: usize, sinks: &[f32]) {
        self.reset(rows, padded_dim);
        let parts = self.parts();
        for (largest, &sink) in parts.largest.iter_mut().zip(sinks.iter().cycle()) {
            *largest = sink;
        }
        parts.sums.fill(1.0);
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn padded_dim(&self) -> usize {
        self.padded_dim
    }

    /// Memory of the rows.
    pub(super) fn lines(&self) -> &[Line] {
        &self.lines[..Self::len(self.rows, self.padded_dim)]
    }

    /// Mutable memory of the rows.
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
