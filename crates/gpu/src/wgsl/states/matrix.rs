//! States that are a matrix per head: division over threads, loads and stores.
//!
//! A column of the state is its own recursion. `lanes` threads have a column, each some words of 4
//! rows in registers; sums over a column go through workgroup memory and are added lane by lane.

use super::{NO_STATE, end_rows};
use crate::wgsl::Code;

/// Threads of a workgroup for wide heads.
const THREADS: u32 = 256;

/// Words of 4 rows per thread, unless a column has more than a workgroup takes.
const THREAD_WORDS: u32 = 4;

/// Division of a head's state over workgroups and threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MatrixTile {
    /// Words of 4 rows.
    words: u32,
    width: u32,
    /// Columns of a workgroup.
    pub(super) columns: u32,
    /// Threads per column.
    pub(super) lanes: u32,
    /// Words of a thread.
    pub(super) own: u32,
    /// Workgroups per head.
    pub(crate) blocks: u32,
}

impl MatrixTile {
    /// Division of `rows` rows, a multiple of 4, and `width` columns. It follows from these alone,
    /// and so do the bits.
    pub(crate) fn new(rows: u32, width: u32) -> Self {
        let words = rows / 4;
        let lanes = words.div_ceil(THREAD_WORDS).next_power_of_two();
        let columns = (THREADS / lanes).min(width.next_power_of_two());
        Self { words, width, columns, lanes, own: words.div_ceil(lanes), blocks: width.div_ceil(columns) }
    }

    pub(super) fn threads(&self) -> u32 {
        self.columns * self.lanes
    }

    /// Constants, and the bindings of spans and states.
    pub(super) fn declare(&self, code: &mut Code, (heads, first): (u32, u32)) {
        code.line(format!(
            "const HEADS: u32 = {heads}u;
            const WORDS: u32 = {}u; // of 4 rows of a state
            const WIDTH: u32 = {}u; // columns of a state
            const COLUMNS: u32 = {}u; // of a workgroup
            const LANES: u32 = {}u; // threads of a column
            const NONE: u32 = {NO_STATE}u;",
            self.words, self.width, self.columns, self.lanes
        ));
        code.binding(first, "read", "spans", "vec4<u32>");
        code.binding(first + 1, "read_write", "state", "vec4<f32>");
        code.binding(first + 2, "read_write", "out", "f32");
    }

    /// The thread's place, and its words of the state before the span.
    pub(super) fn load(&self, code: &mut Code) {
        code.line(format!(
            "let head = group.x / {blocks}u;
            let column = group.x % {blocks}u * COLUMNS + thread % COLUMNS;
            let is_own = column < WIDTH;
            let lane = thread / COLUMNS;
            let span = spans[2u * group.y];
            let rows = span.y;",
            blocks = self.blocks
        ));
        for r in 0..self.own {
            code.line(format!("let word{r} = lane * {}u + {r}u;\nvar state{r} = vec4<f32>();", self.own));
        }
        code.line("if (is_own && rows > 0u && span.x != NONE) {\nlet at = (span.x * HEADS + head) * WORDS;");
        for r in 0..self.own {
            self.if_own(code, r, &format!("state{r} = state[(at + word{r}) * WIDTH + column];"));
        }
        code.line("}");
    }

    /// Ends the loops over rows; stores the words of the state behind a row that has a slot for it.
    pub(super) fn end_rows(&self, code: &mut Code) {
        end_rows(code, |code| {
            code.line("if (is_own) {\nlet at = (kept.x * HEADS + head) * WORDS;");
            for r in 0..self.own {
                self.if_own(code, r, &format!("state[(at + word{r}) * WIDTH + column] = state{r};"));
            }
            code.line("}");
        });
    }

    /// Adds what the other lanes of a column have in `array` to `sum`, in their order. `place` is
    /// the column's first entry. Written out: drivers do not unroll loops that wgpu bounds, and one
    /// load would wait for the other.
    pub(super) fn add_lanes(&self, code: &mut Code, sum: &str, array: &str, place: &str) {
        for lane in 1..self.lanes {
            code.line(format!("{sum} += {array}[{}u + {place}];", lane * self.columns));
        }
    }

    /// A line for the threads whose word `r` is one of the state.
    fn if_own(&self, code: &mut Code, r: u32, line: &str) {
        match self.is_whole() {
            true => code.line(line),
            false => code.line(format!("if (word{r} < WORDS) {{\n{line}\n}}")),
        }
    }

    /// True if all words of all lanes are words of the state.
    fn is_whole(&self) -> bool {
        self.own * self.lanes == self.words
    }

    /// Value of a word of weights, `array[at + word]`; zero beyond the state.
    pub(super) fn word(&self, r: u32, array: &str, at: &str) -> String {
        match self.is_whole() {
            true => format!("{array}[{at} + word{r}]"),
            false => {
                format!("select(vec4<f32>(), {array}[{at} + min(word{r}, WORDS - 1u)], word{r} < WORDS)")
            }
        }
    }
}

/// A chain of multiply-adds of two words onto `sum`.
pub(super) fn add_product(a: &str, b: &str, sum: &str) -> String {
    format!("fma({a}.w, {b}.w, fma({a}.z, {b}.z, fma({a}.y, {b}.y, fma({a}.x, {b}.x, {sum}))))")
}
