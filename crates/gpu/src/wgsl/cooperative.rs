//! Matrix products of many activation rows with cooperative matrices (prefill).
//!
//! A workgroup has a tile of activation rows and weight rows; a subgroup a part of it, in squares
//! of `side`. Per stage of columns the threads bring activations and weights to workgroup memory as
//! f16, weights unpacked; the subgroups multiply squares and add to f32. Each output adds its
//! columns in their order, `side` at a time, so that its bits depend on nothing but its row and its
//! activations.
//!
//! [`ColumnSplits`] in turn are added to a second sum; those that are apart have workgroups of
//! their own, whose sums a launch behind adds.
//!
//! With matrices of experts the activation rows of a workgroup are sorted pairs of a row and an
//! expert, all of one expert.
//!
//! On devices without cooperative matrices the products of the squares are written out: slow, for
//! tests of everything around them.

use super::Code;
use super::expand::EXPANDED_UNIT;
use super::experts::{declare_tile, fetch_tile};
use super::output::entry;
use super::weights::Weights;
use crate::expert_keys::ExpertStack;
use crate::kernel::{CooperativeKernel, CooperativeTile, Target};
use crate::repack::Format;
use crate::split_key::ColumnSplits;

/// Values between the rows of a tile in workgroup memory, against bank conflicts.
const GAP: u32 = 8;
/// Side of squares and size of subgroups on devices without cooperative matrices.
const WRITTEN_OUT: (u32, u32) = (16, 32);

/// Side of the squares, threads of a subgroup.
pub(crate) fn square(target: Target) -> (u32, u32) {
    target.cooperative.zip(target.subgroup).unwrap_or(WRITTEN_OUT)
}

/// Workgroups for a batch: tiles of activation rows, which share weights, are neighbours.
pub(crate) fn cooperative_grid(g: &CooperativeKernel, batch: u32) -> (u32, u32) {
    (batch.div_ceil(g.tile.batch), g.rows.div_ceil(g.tile.rows) * g.splits.apart(g.cols))
}

/// Bytes of workgroup memory.
pub(crate) fn cooperative_bytes(g: &CooperativeKernel, target: Target) -> u32 {
    let CooperativeTile { batch, rows, depth, stages, .. } = g.tile;
    let (side, _) = square(target);
    let table = if g.format.levels().is_some() { 1024 } else { 0 };
    (batch + rows) * stages * (depth + GAP) * 2 + g.tile.subgroups() * side * side * 4 + table
}

struct Emitter<'a> {
    code: &'a mut Code,
    g: &'a CooperativeKernel,
    /// Matrices of experts instead of one matrix.
    stack: Option<&'a ExpertStack>,
    weights: Weights,
    side: u32,
    subgroup: u32,
    is_cooperative: bool,
    /// Tiles of single f16 values: naga's MSL takes no others for matrices.
    is_scalar: bool,
}

pub(super) fn emit(code: &mut Code, g: &CooperativeKernel, stack: Option<&ExpertStack>, target: Target) {
    let (side, subgroup) = square(target);
    let is_cooperative = target.cooperative.is_some();
    let weights = Weights::new(g.format, target);
    let mut e = Emitter { code, g, stack, weights, side, subgroup, is_cooperative, is_scalar: side == 8 };
    e.head();
    e.entry();
    e.stages();
    e.store();
    e.code.line("}");
}

impl Emitter<'_> {
    fn threads(&self) -> u32 {
        self.g.tile.subgroups() * self.subgroup
    }

    /// Squares of a subgroup along the activation rows and along the weight rows.
    fn squares(&self) -> (u32, u32) {
        let CooperativeTile { batch, rows, across, down, .. } = self.g.tile;
        (batch / across / self.side, rows / down / self.side)
    }

    fn sums(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let (across, down) = self.squares();
        (0..across).flat_map(move |i| (0..down).map(move |j| (i, j)))
    }

    /// Names of the parts of a sum that one thread holds where products are written out.
    fn parts(&self) -> u32 {
        if self.is_cooperative { 1 } else { self.side * self.side / self.subgroup }
    }

    fn head(&mut self) {
        let CooperativeKernel { format, rows, cols, tile, width, .. } = *self.g;
        if self.is_cooperative {
            self.code.line("enable wgpu_cooperative_matrix;");
        }
        if !self.weights.f16 {
            self.code.line("enable f16;");
        }
        let planes = if format == Format::F16 {
            self.code.line(format!(
                "const ROWS: u32 = {rows}u; // weight rows\nconst WORDS: u32 = {}u; // 4-value words per row",
                cols / 4
            ));
            self.code.binding(0, "read", "quants", "vec4<f16>");
            1
        } else {
            self.weights.declare(self.code, rows, cols)
        };
        self.code.binding(planes, "read", "x", "vec4<f16>");
        let mut next = planes + 1;
        if !self.is_apart() {
            self.code.binding(next, "read", "row_scales", "f32");
            next += 1;
        }
        next += self.stack.map_or(0, |_| declare_tile(self.code, next, tile.batch));
        self.code.binding(next, "read_write", "y", "f32");
        let (element, length) =
            if self.is_scalar { ("f16", tile.depth + GAP) } else { ("vec4<f16>", (tile.depth + GAP) / 4) };
        self.code.line(format!(
            "{}
            const STAGES: u32 = {}u; // of {} columns
            var<workgroup> tile_x: array<array<{element}, {length}>, {}>;
            var<workgroup> tile_w: array<array<{element}, {length}>, {}>;
            var<workgroup> sums: array<f32, {}>;",
            match self.g.splits {
                ColumnSplits::Apart(split) =>
                    format!("const SPLIT_STAGES: u32 = {}u; // stages of a split", split / tile.depth),
                _ => format!("const WIDTH: u32 = {width}u; // values per output row"),
            },
            cols.div_ceil(tile.depth),
            tile.depth,
            tile.batch * tile.stages,
            tile.rows * tile.stages,
            tile.subgroups() * self.side * self.side
        ));
        if format != Format::F16 {
            self.weights.bytes(self.code);
        }
        if !self.is_cooperative {
            self.code.line(format!(
                "fn add_row(sum: f32, x_row: u32, w_row: u32) -> f32 {{
                var total = sum;
                for (var k = 0u; k < {}u; k++) {{
                let x4 = vec4<f32>(tile_x[x_row][k]);
                let w4 = vec4<f32>(tile_w[w_row][k]);
                total = fma(x4.w, w4.w, fma(x4.z, w4.z, fma(x4.y, w4.y, fma(x4.x, w4.x, total))));
                }}
                return total;
                }}",
                tile.depth / 4
            ));
        }
    }

    fn entry(&mut self) {
        let tile = self.g.tile;
        let subgroup = self.is_cooperative.then_some(self.subgroup);
        entry(self.code, self.threads(), subgroup, "@builtin(num_workgroups) count: vec3<u32>,");
        if !self.is_cooperative {
            self.code.line(format!(
                "let subgroup = thread / {0}u;\nlet invocation = thread % {0}u;",
                self.subgroup
            ));
        }
        self.weights.prepare(self.code, self.threads());
        let (across, down) = self.squares();
        match self.stack {
            Some(stack) => {
                fetch_tile(self.code, stack, "x", tile.batch);
                self.code.line("let filled = arrayLength(&row_scales); // activation rows");
            }
            None => self.code.line(format!(
                "let tile_batch = group.x * {0}u;\nlet filled = count.x * {0}u; // activation rows",
                tile.batch
            )),
        }
        let row_tile = match self.g.splits {
            ColumnSplits::Apart(_) => {
                let tiles = self.g.rows.div_ceil(tile.rows);
                self.code.line(format!(
                    "let split = group.y / {tiles}u;
                    let first_stage = split * SPLIT_STAGES;
                    let end_stage = min(first_stage + SPLIT_STAGES, STAGES);"
                ));
                format!("group.y % {tiles}u")
            }
            _ => "group.y".to_owned(),
        };
        self.code.line(format!(
            "let tile_row = {row_tile} * {}u;
            let own_batch = subgroup / {}u * {}u;
            let own_row = subgroup % {}u * {}u;",
            tile.rows,
            tile.down,
            across * self.side,
            tile.down,
            down * self.side
        ));
        for (i, j) in self.sums() {
            let more = (self.results() == "total").then_some("total");
            for name in ["sum"].into_iter().chain(more) {
                if self.is_cooperative {
                    self.code.line(format!("var {name}{i}_{j} = coop_mat{0}x{0}<f32, C>();", self.side));
                } else {
                    for part in 0..self.parts() {
                        self.code.line(format!("var {name}{i}_{j}_{part} = 0.0;"));
                    }
                }
            }
        }
    }

    fn stages(&mut self) {
        let tile = self.g.tile;
        let (first, end) = if self.is_apart() { ("first_stage", "end_stage") } else { ("0u", "STAGES") };
        if tile.stages == 1 {
            self.code.line(format!("for (var stage = {first}; stage < {end}; stage++) {{"));
            self.load("stage");
            self.keep("0u");
            self.code.line("workgroupBarrier();");
            self.products("0u");
            self.end_split();
            self.code.line("workgroupBarrier();\n}");
            return;
        }
        self.code.line("{");
        self.load(first);
        self.keep("0u");
        self.code.line(format!(
            "}}
            workgroupBarrier();
            for (var stage = {first}; stage < {end}; stage++) {{
            let following = min(stage + 1u, {end} - 1u);"
        ));
        let done = if self.is_apart() { "(stage - first_stage)" } else { "stage" };
        self.code.line(format!("let place = {done} & 1u;"));
        self.load("following");
        self.products("place");
        self.end_split();
        self.keep("(1u - place)");
        self.code.line("workgroupBarrier();\n}");
    }

    /// Words of activations, and words or groups of 32 of weights, per stage.
    fn items(&self) -> (u32, u32) {
        let CooperativeTile { batch, rows, depth, .. } = self.g.tile;
        let unit = if self.g.format == Format::F16 { 4 } else { 32 };
        (batch * depth / 4, rows * depth / unit)
    }

    /// Reads the items of a thread; the last ones again where there are fewer than threads.
    fn load(&mut self, stage: &str) {
        let tile = self.g.tile;
        let (words, groups) = self.items();
        let expert = if self.stack.is_some() { "expert_row + " } else { "" };
        let index = |n: u32, items: u32, threads: u32| {
            let at = if n == 0 { "thread".to_owned() } else { format!("thread + {}u", n * threads) };
            if (n + 1) * threads > items { format!("min({at}, {}u)", items - 1) } else { at }
        };
        for n in 0..groups.div_ceil(self.threads()) {
            let at = index(n, groups, self.threads());
            if self.g.format == Format::F16 {
                let per_row = tile.depth / 4;
                self.code.line(format!(
                    "let p{n} = {at};
                    let w{n} = quants[({expert}min(tile_row + p{n} / {per_row}u, ROWS - 1u)) * WORDS
                    + min({stage} * {per_row}u + p{n} % {per_row}u, WORDS - 1u)];"
                ));
            } else {
                let per_row = tile.depth / 32;
                self.code.line(format!(
                    "let p{n} = {at};
                    let row{n} = ({expert}min(tile_row + p{n} / {per_row}u, ROWS - 1u)) * STEPS;
                    let i{n} = min({stage} * {per_row}u + p{n} % {per_row}u, STEPS - 1u);"
                ));
                self.weights.load(self.code, n, n);
            }
        }
        for n in 0..words.div_ceil(self.threads()) {
            let row = match self.stack {
                Some(stack) => format!("tile_pairs[q{n} / 8u % {}u] / {}u", tile.batch, stack.sharing),
                None => format!("tile_batch + q{n} / 8u % {}u", tile.batch),
            };
            self.code.line(format!(
                "let q{n} = {};
                let x{n} = x[(({stage} * {}u + q{n} / {}u) * filled + {row}) * 8u + q{n} % 8u];",
                index(n, words, self.threads()),
                tile.depth / 32,
                8 * tile.batch
            ));
        }
    }

    /// Stores what [`Emitter::load`] read, weights unpacked, at a place of the tiles.
    fn keep(&mut self, place: &str) {
        let tile = self.g.tile;
        let (words, groups) = self.items();
        for n in 0..groups.div_ceil(self.threads()) {
            let rest = self.open(n, groups);
            if self.g.format == Format::F16 {
                let per_row = tile.depth / 4;
                let row = format!("{place} * {}u + p{n} / {per_row}u", tile.rows);
                self.put("w", &row, &format!("p{n} % {per_row}u"), &format!("w{n}"));
            } else {
                let per_row = tile.depth / 32;
                self.code.line(format!(
                    "let at{n} = {place} * {}u + p{n} / {per_row}u;\nlet word{n} = p{n} % {per_row}u * 8u;",
                    tile.rows
                ));
                if self.g.format.has_min() && n > 0 {
                    self.code.line(format!("let shift{n} = (i{n} & 7u) * 4u;"));
                }
                self.weights.unpack(self.code, n, n);
                self.weights.half_factors(self.code, &format!("{n}_{n}"));
                for word in 0..8 {
                    let value = self.weights.halves(&format!("{n}_{n}"), word);
                    self.put("w", &format!("at{n}"), &format!("word{n} + {word}u"), &value);
                }
            }
            self.code.line(rest);
        }
        for n in 0..words.div_ceil(self.threads()) {
            let rest = self.open(n, words);
            let row = format!("{place} * {0}u + q{n} / 8u % {0}u", tile.batch);
            let word = format!("q{n} / {}u * 8u + q{n} % 8u", 8 * tile.batch);
            self.put("x", &row, &word, &format!("x{n}"));
            self.code.line(rest);
        }
    }

    /// Opens a scope for item `n` of a thread, and gives its end.
    fn open(&mut self, n: u32, items: u32) -> &'static str {
        let threads = self.threads();
        self.code.line(if (n + 1) * threads > items {
            format!("if (thread < {}u) {{", items - n * threads)
        } else {
            "{".to_owned()
        });
        "}"
    }

    /// Stores four values.
    fn put(&mut self, tile: &str, row: &str, word: &str, value: &str) {
        if !self.is_scalar {
            self.code.line(format!("tile_{tile}[{row}][{word}] = {value};"));
            return;
        }
        self.code.line(format!("{{\nlet value = {value};\nlet to = ({word}) * 4u;\nlet at = {row};"));
        for i in 0..4 {
            self.code.line(format!("tile_{tile}[at][to + {i}u] = value[{i}];"));
        }
        self.code.line("}");
    }

    /// Adds the products of a stage to the sums.
    fn products(&mut self, place: &str) {
        let tile = self.g.tile;
        let (across, down) = self.squares();
        let side = self.side;
        self.code.line(format!(
            "let x_row = {place} * {}u + own_batch;\nlet w_row = {place} * {}u + own_row;",
            tile.batch, tile.rows
        ));
        if !self.is_cooperative {
            self.written_out();
            return;
        }
        let unit = if self.is_scalar { 1 } else { 4 };
        let stride = (tile.depth + GAP) / unit;
        for k in 0..tile.depth / side {
            let at = k * side / unit;
            self.code.line("{");
            for i in 0..across {
                self.code.line(format!(
                    "let a{i} = coopLoadT<coop_mat{side}x{side}<f16, A>>(&tile_x[x_row + {}u][{at}], {stride}u);",
                    i * side
                ));
            }
            for j in 0..down {
                self.code.line(format!(
                    "let b{j} = coopLoad<coop_mat{side}x{side}<f16, B>>(&tile_w[w_row + {}u][{at}], {stride}u);",
                    j * side
                ));
            }
            for (i, j) in self.sums() {
                self.code.line(format!("sum{i}_{j} = coopMultiplyAdd(a{i}, b{j}, sum{i}_{j});"));
            }
            self.code.line("}");
        }
    }

    /// Adds the sums of a split to those of the splits before it, behind its last stage.
    fn end_split(&mut self) {
        let ColumnSplits::InTurn(split) = self.g.splits else { return };
        let stages = split / self.g.tile.depth;
        self.code.line(format!("if ((stage + 1u) % {stages}u == 0u || stage + 1u == STAGES) {{"));
        for (i, j) in self.sums() {
            if self.is_cooperative {
                self.code.line(format!(
                    "total{i}_{j} = total{i}_{j} + sum{i}_{j};
                    sum{i}_{j} = coop_mat{0}x{0}<f32, C>();",
                    self.side
                ));
            } else {
                for part in 0..self.parts() {
                    let of = format!("{i}_{j}_{part}");
                    self.code.line(format!("total{of} = total{of} + sum{of};\nsum{of} = 0.0;"));
                }
            }
        }
        self.code.line("}");
    }

    /// Name of the sums that are stored.
    fn results(&self) -> &'static str {
        if matches!(self.g.splits, ColumnSplits::InTurn(_)) { "total" } else { "sum" }
    }

    fn is_apart(&self) -> bool {
        matches!(self.g.splits, ColumnSplits::Apart(_))
    }

    /// Row and column of part `part` of a square.
    fn place(&self, part: u32) -> (String, String) {
        let (side, rows) = (self.side, self.subgroup / self.side);
        (format!("invocation / {side}u + {}u", part * rows), format!("invocation % {side}u"))
    }

    fn written_out(&mut self) {
        for (i, j) in self.sums() {
            for part in 0..self.parts() {
                let (row, column) = self.place(part);
                let (sum, side) = (format!("sum{i}_{j}_{part}"), self.side);
                self.code.line(format!(
                    "{sum} = add_row({sum}, x_row + {}u + {row}, w_row + {}u + {column});",
                    i * side,
                    j * side
                ));
            }
        }
    }

    /// Stores the sums, square by square through workgroup memory.
    fn store(&mut self) {
        let CooperativeKernel { first, .. } = *self.g;
        let (side, square, results) = (self.side, self.side * self.side, self.results());
        self.code.line(format!("let own = subgroup * {square}u;\nlet column = invocation % {side}u;"));
        let whole = |source: &str| format!("y[to * WIDTH + {first}u + row] = {{}} * row_scales[{source}];");
        let (begin, exists, to, store) = match (self.stack, self.is_apart()) {
            (Some(stack), _) => {
                let store = whole(&format!("to / {}u", stack.sharing));
                ("own_batch", "place < own_pairs", "tile_pairs[place]", store)
            }
            (None, false) => {
                self.code.line("let batch = arrayLength(&y) / WIDTH;");
                ("tile_batch + own_batch", "place < batch", "place", whole("to"))
            }
            (None, true) => {
                let store = "y[(split * filled + to) * ROWS + row] = {};".to_owned();
                ("tile_batch + own_batch", "place < filled", "place", store)
            }
        };
        for (i, j) in self.sums() {
            if self.is_cooperative {
                self.code.line(format!("coopStoreT({results}{i}_{j}, &sums[own], {side}u);"));
            } else {
                for part in 0..self.parts() {
                    let (row, column) = self.place(part);
                    self.code
                        .line(format!("sums[own + ({row}) * {side}u + {column}] = {results}{i}_{j}_{part};"));
                }
            }
            self.code.line(format!(
                "workgroupBarrier();
                {{
                let row = tile_row + own_row + {}u + column;
                for (var o = invocation / {side}u; o < {side}u; o += {}u) {{
                let place = {begin} + {}u + o;
                if ({exists} && row < ROWS) {{
                let to = {to};
                {}
                }}
                }}
                }}
                workgroupBarrier();",
                j * side,
                self.subgroup / side,
                i * side,
                store.replace("{}", &format!("sums[own + o * {side}u + column]")),
            ));
        }
    }
}

/// Rows of the expanded activations, whole tiles, and their values.
pub(crate) fn expanded(g: &CooperativeKernel, batch: u32) -> (u32, u64) {
    let rows = batch.next_multiple_of(g.tile.batch);
    (rows, u64::from(rows) * u64::from(g.cols.next_multiple_of(EXPANDED_UNIT)))
}
