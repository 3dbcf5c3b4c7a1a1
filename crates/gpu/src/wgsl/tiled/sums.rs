//! The sums of a tile: their factors, and the results.

use super::super::attention::{begin_of, partial_words};
use super::super::sinks;
use super::{Emitter, GAP, SIDE, TILED_SPLIT_TOKENS, WEIGHT_SCALE};
use crate::kernel::AttentionOutput;

impl Emitter<'_> {
    /// Multiplies the sums of queries with a new reference, all others by 1.
    pub(super) fn rescale(&mut self) {
        if !self.is_cooperative {
            self.open_values(0, self.squares());
            self.code.line("sums[i] *= factors[at_row];\n}");
            return;
        }
        let any: Vec<_> = (0..self.t.queries / SIDE).map(|i| format!("grown[{i}]")).collect();
        self.code.line(format!("if (({}) != 0u) {{", any.join(" | ")));
        for first in (0..self.squares()).step_by(self.chunk()) {
            let own = first..self.squares().min(first + self.chunk() as u32);
            self.store(own.clone());
            self.code.line("workgroupBarrier();");
            let words = (own.end - own.start) * SIDE / 4 / self.lanes();
            for i in 0..words {
                let at = format!("scores[own][lane + {}u]", i * self.lanes());
                self.code.line(format!("{at} = {at} * keep;"));
            }
            self.code.line("workgroupBarrier();");
            for j in own {
                self.code.line(format!(
                    "sum{j} = coopLoadT<coop_mat16x16<f32, C>>(&scores[strip][{}], {}u);",
                    (j - first) * SIDE / 4,
                    (self.step + GAP) / 4
                ));
            }
            self.code.line("workgroupBarrier();");
        }
        self.code.line("}");
    }

    /// Squares that the memory of the scores holds side by side.
    fn chunk(&self) -> usize {
        (self.step / SIDE) as usize
    }

    /// Stores squares of the sums over the scores.
    fn store(&mut self, squares: std::ops::Range<u32>) {
        if !self.is_cooperative {
            self.open_values(squares.start, squares.end - squares.start);
            self.code.line("scores[at_row][at_column / 4u][at_column % 4u] = sums[i];\n}");
            return;
        }
        let stride = (self.step + GAP) / 4;
        for (i, j) in squares.enumerate() {
            let at = i as u32 * SIDE / 4;
            self.code.line(format!("coopStoreT(sum{j}, &scores[strip][{at}], {stride}u);"));
        }
    }

    /// Stores the results, some squares at a time through the memory of the scores.
    pub(super) fn finish(&mut self) {
        let (lanes, partial) = (self.lanes(), self.t.attention.output == AttentionOutput::Partial);
        self.code.line(format!(
            "workgroupBarrier();
            row_sums[own * {lanes}u + lane] = total;
            if (lane == 0u) {{
            references[own] = reference;
            }}"
        ));
        for first in (0..self.squares()).step_by(self.chunk()) {
            let squares = first..self.squares().min(first + self.chunk() as u32);
            let words = (squares.end - first) * SIDE / 4;
            self.store(squares);
            self.code.line("workgroupBarrier();");
            let (count, heads) = (words * SIDE, self.heads);
            self.code.line(format!(
                "for (var first_at = 0u; first_at < {count}u; first_at += {}u) {{
                let at = first_at + invocation;
                let stored = strip + at / {words}u;
                let part_word = at % {words}u;
                let row = tile_row + stored / {heads}u;
                let row_head = first_head + stored % {heads}u;
                var row_sum = row_sums[stored * {lanes}u];",
                self.subgroup
            ));
            for lane in 1..lanes {
                self.code.line(format!("row_sum += row_sums[stored * {lanes}u + {lane}u];"));
            }
            self.code.line(format!("var value = scores[stored][part_word] * {:?};", WEIGHT_SCALE.recip()));
            if partial {
                self.put_partial(first);
            } else {
                let sinks = self.t.attention.sinks;
                sinks::divide(self.code, sinks, "references[stored]", "row_sum", "row_head");
                self.code.line(format!(
                    "let word = select(WORDS, row_head * {}u + {}u + part_word, row < rows);",
                    self.dim / 4,
                    first * SIDE / 4
                ));
                self.output.store(self.code);
            }
            self.code.line("}");
            self.code.line("workgroupBarrier();");
        }
    }

    /// Stores a word of a partial result, for queries that see tokens of the split.
    fn put_partial(&mut self, first: u32) {
        let a = &self.t.attention;
        self.code.line(format!(
            "let end = positions[min(row, rows - 1u)] + 1u;
            let first_split = {} / {TILED_SPLIT_TOKENS}u;
            if (row < rows && split >= first_split && split * {TILED_SPLIT_TOKENS}u < end) {{
            let to = (((split - first_split) * rows + row) * {}u + row_head) * {}u;
            partial[to + {}u + part_word] = value;",
            begin_of("end", a.window),
            a.heads,
            partial_words(self.dim),
            first * SIDE / 4
        ));
        if first == 0 {
            self.code.line(format!(
                "if (part_word == 0u) {{
                partial[to + {}u] = vec4<f32>(references[stored], row_sum, 0.0, 0.0);
                }}",
                self.dim / 4
            ));
        }
        self.code.line("}");
    }
}
