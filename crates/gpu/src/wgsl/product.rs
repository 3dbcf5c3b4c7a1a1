//! Matrix products of 1 to 64 activation rows (GEMV and small-batch GEMM).
//!
//! A workgroup has up to 8 activation rows. More are divided into parts of 8, whose workgroups for
//! the same weight rows are neighbours, so that all but the first find the weights in the cache.
//!
//! A team of `lanes` threads owns `rows` weight rows. Lane `l` takes the steps `l`, `l + lanes`,
//! ... of each row: 32 values of a quantized format, 8 of F16. It adds them in this order; the
//! lanes' sums are added by a butterfly of shuffles within a subgroup, then over subgroups in their
//! order (or by a tree in workgroup memory without subgroups).

//!
//! With matrices of experts a workgroup has one pair of a row and an expert, whose matrix it reads.

use super::Code;
use super::output::{add8, entry, subgroup_sum};
use super::weights::Weights;
use crate::expert_keys::ExpertStack;
use crate::kernel::{MAX_BATCH, Product, Target};
use crate::repack::Format;

/// Workgroups along x; more go to y.
pub(super) const GRID_X: u32 = 32_768;

/// Grid of a product.
pub(crate) fn group_grid(p: &Product) -> (u32, u32) {
    grid(groups(p))
}

/// Grid of a product of `pairs` pairs of a row and an expert.
pub(crate) fn expert_grid(p: &Product, pairs: u32) -> (u32, u32) {
    (groups(p), pairs)
}

/// Workgroups that have something to compute.
fn groups(p: &Product) -> u32 {
    p.rows.div_ceil(p.tile.rows_per_workgroup()) * parts(p)
}

/// Parts of the activation rows.
fn parts(p: &Product) -> u32 {
    p.batch.div_ceil(MAX_BATCH)
}

/// Activation rows of a workgroup.
fn own_rows(p: &Product) -> u32 {
    p.batch.min(MAX_BATCH)
}

/// Grid of at least `groups` workgroups; kernels number them `y * GRID_X + x`.
pub(crate) fn grid(groups: u32) -> (u32, u32) {
    if groups <= GRID_X { (groups, 1) } else { (GRID_X, groups.div_ceil(GRID_X)) }
}

/// Bytes of workgroup memory.
pub(crate) fn workgroup_bytes(p: &Product, subgroup: Option<u32>) -> u32 {
    4 * partial_sums(p, subgroup) + if p.format.levels().is_some() { 1024 } else { 0 }
}

fn partial_sums(p: &Product, subgroup: Option<u32>) -> u32 {
    let sums = p.tile.rows * own_rows(p);
    match subgroup {
        Some(size) if size == p.tile.lanes => 0,
        Some(size) => sums * p.tile.threads() / size,
        None => sums * p.tile.threads(),
    }
}

struct Emitter<'a> {
    code: &'a mut Code,
    p: &'a Product,
    /// Matrices of experts instead of one matrix.
    stack: Option<&'a ExpertStack>,
    weights: Weights,
    target: Target,
}

pub(super) fn emit(code: &mut Code, p: &Product, stack: Option<&ExpertStack>, target: Target) {
    let mut e = Emitter { code, p, stack, weights: Weights::new(p.format, target), target };
    e.head();
    e.helpers();
    e.entry();
    e.steps();
    if target.subgroup.is_some() {
        e.reduce_subgroups();
    } else {
        e.reduce_tree();
    }
    e.code.line("}");
}

impl Emitter<'_> {
    fn head(&mut self) {
        let p = self.p;
        let mut next = self.weights.declare(self.code, p.rows, p.cols);
        let inputs: &[_] = match p.format {
            Format::F16 => &[("x", "vec4<f32>")],
            _ => &[("x", "vec4<u32>"), ("x_scales", "vec2<u32>")],
        };
        for (name, element) in inputs.iter().chain(self.stack.map(|_| &("experts", "u32"))) {
            self.code.binding(next, "read", name, element);
            next += 1;
        }
        self.code.binding(next, "read_write", "y", "f32");
        let sums = partial_sums(p, self.target.subgroup);
        if sums > 0 {
            self.code.line(format!("var<workgroup> partial: array<f32, {sums}>;"));
        }
    }

    fn helpers(&mut self) {
        if self.p.format == Format::F16 {
            add8(self.code);
        } else {
            Weights::dot16(self.code);
        }
        if let Some(size) = self.target.subgroup {
            subgroup_sum(self.code, size);
        }
    }

    fn entry(&mut self) {
        let tile = self.p.tile;
        entry(self.code, tile.threads(), self.target.subgroup, "");
        self.weights.prepare(self.code, tile.threads());
        self.code.line(format!("let lane = thread % {0}u;\nlet team = thread / {0}u;", tile.lanes));
        match self.stack {
            Some(stack) => self.code.line(format!(
                "let index = group.x;
                let expert_row = min(experts[group.y], {}u) * ROWS;
                let words = group.y / {sharing}u * 2u * STEPS;
                let groups = group.y / {sharing}u * STEPS;",
                stack.experts - 1,
                sharing = stack.sharing
            )),
            None => self.code.line(format!("let index = group.y * {GRID_X}u + group.x;")),
        }
        let index = match parts(self.p) {
            1 => "index".to_owned(),
            parts => {
                self.code.line(format!(
                    "let first_x = index % {parts}u * {MAX_BATCH}u;
                    let words = first_x * 2u * STEPS;
                    let groups = first_x * STEPS;"
                ));
                format!("(index / {parts}u)")
            }
        };
        self.code.line(format!(
            "let first = ({index} * {teams}u + team) * {rows}u;",
            teams = tile.teams,
            rows = tile.rows
        ));
        for r in 0..tile.rows {
            let row =
                if self.ragged() { format!("min(first + {r}u, ROWS - 1u)") } else { format!("first + {r}u") };
            let expert = if self.stack.is_some() { "expert_row + " } else { "" };
            self.code.line(format!("let row{r} = ({expert}{row}) * STEPS;"));
        }
        for (r, b) in self.sums() {
            self.code.line(format!("var sum{r}_{b} = 0.0;"));
        }
    }

    /// True if some weight rows of the grid do not exist.
    fn ragged(&self) -> bool {
        let (x, y) = if self.stack.is_some() { expert_grid(self.p, 1) } else { group_grid(self.p) };
        !self.p.rows.is_multiple_of(self.p.tile.rows_per_workgroup()) || x * y > groups(self.p)
    }

    fn sums(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let (rows, batch) = (self.p.tile.rows, own_rows(self.p));
        (0..rows).flat_map(move |r| (0..batch).map(move |b| (r, b)))
    }

    fn steps(&mut self) {
        let (steps, lanes) = (self.p.steps_per_row(), self.p.tile.lanes);
        let (full, rest) = (steps / lanes, steps % lanes);
        let unroll = self.p.tile.unroll.min(full).max(1);
        let looped = full / unroll;
        if looped > 1 {
            let end = looped * unroll;
            self.code.line(format!("for (var step = 0u; step < {end}u; step += {unroll}u) {{"));
            self.group(unroll, |u| format!("lane + (step + {u}u) * {lanes}u"));
            self.code.line("}");
        } else if looped == 1 {
            self.code.line("{");
            self.group(unroll, |u| format!("lane + {}u", u * lanes));
            self.code.line("}");
        }
        let done = looped * unroll;
        if full > done {
            self.code.line("{");
            self.group(full - done, |u| format!("lane + {}u", (done + u) * lanes));
            self.code.line("}");
        }
        if rest > 0 {
            self.code.line(format!("if (lane < {rest}u) {{"));
            self.group(1, |_| format!("lane + {}u", full * lanes));
            self.code.line("}");
        }
    }

    /// Some steps: all weight loads, then the arithmetic.
    fn group(&mut self, unroll: u32, index: impl Fn(u32) -> String) {
        for u in 0..unroll {
            self.code.line(format!("let i{u} = {};", index(u)));
        }
        for u in 0..unroll {
            for r in 0..self.p.tile.rows {
                self.weights.load(self.code, u, r);
            }
        }
        for u in 0..unroll {
            for r in 0..self.p.tile.rows {
                self.weights.unpack(self.code, u, r);
            }
            for b in 0..own_rows(self.p) {
                self.load_activations(u, b);
                for r in 0..self.p.tile.rows {
                    let (sum, w, x) = (format!("sum{r}_{b}"), format!("{u}_{r}"), format!("{u}_{b}"));
                    self.weights.accumulate(self.code, &sum, &w, &x);
                }
            }
        }
    }

    /// Words of activations, with the scales and sums of quantized ones.
    fn load_activations(&mut self, u: u32, b: u32) {
        let name = format!("{u}_{b}");
        let at_first = parts(self.p) == 1 && self.stack.is_none();
        let (words, groups) = if at_first { ("", "") } else { ("words + ", "groups + ") };
        if self.p.format == Format::F16 {
            self.code.line(format!(
                "let low{name} = x[{words}{b}u * 2u * STEPS + 2u * i{u}];
                let high{name} = x[{words}{b}u * 2u * STEPS + 2u * i{u} + 1u];"
            ));
            return;
        }
        self.code.line(format!(
            "let low{name} = x[{words}{first}u * STEPS + i{u}];
            let high{name} = x[{words}{second}u * STEPS + i{u}];
            let g{name} = x_scales[{groups}{b}u * STEPS + i{u}];",
            first = 2 * b,
            second = 2 * b + 1
        ));
        self.weights.unpack_scales(self.code, &name);
    }

    fn reduce_subgroups(&mut self) {
        let (tile, batch) = (self.p.tile, own_rows(self.p));
        let size = self.target.subgroup.unwrap_or(tile.lanes);
        let count = tile.rows * batch;
        for (r, b) in self.sums() {
            self.code.line(format!("let total{r}_{b} = subgroup_sum(sum{r}_{b});"));
        }
        if size == tile.lanes {
            self.code.line("if (lane == 0u) {");
            for r in 0..tile.rows {
                if self.ragged() {
                    self.code.line(format!("if (first + {r}u < ROWS) {{"));
                }
                for b in 0..batch {
                    self.code.line(format!(
                        "{} = total{r}_{b};",
                        self.out(&format!("{b}u"), &format!("first + {r}u"))
                    ));
                }
                if self.ragged() {
                    self.code.line("}");
                }
            }
            self.code.line("}");
            return;
        }
        self.code.line("if (invocation == 0u) {");
        for (r, b) in self.sums() {
            self.code.line(format!("partial[subgroup * {count}u + {}u] = total{r}_{b};", r * batch + b));
        }
        self.code.line("}\nworkgroupBarrier();");
        self.code.line(format!("for (var o = lane; o < {count}u; o += {}u) {{", tile.lanes));
        let per_team = tile.lanes / size;
        self.code.line(format!("let at = team * {}u + o;\nvar sum = partial[at];", per_team * count));
        for s in 1..per_team {
            self.code.line(format!("sum += partial[at + {}u];", s * count));
        }
        self.store_total("sum");
        self.code.line("}");
    }

    fn reduce_tree(&mut self) {
        let (tile, batch) = (self.p.tile, own_rows(self.p));
        let (threads, count) = (tile.threads(), tile.rows * batch);
        for (r, b) in self.sums() {
            self.code.line(format!("partial[{}u + thread] = sum{r}_{b};", (r * batch + b) * threads));
        }
        self.code.line("workgroupBarrier();");
        let mut stride = tile.lanes / 2;
        while stride > 0 {
            self.code.line(format!(
                "if (lane < {stride}u) {{
                for (var o = 0u; o < {count}u; o++) {{
                partial[o * {threads}u + thread] += partial[o * {threads}u + thread + {stride}u];
                }}
                }}
                workgroupBarrier();"
            ));
            stride /= 2;
        }
        self.code.line(format!("for (var o = lane; o < {count}u; o += {}u) {{", tile.lanes));
        self.code.line(format!("let sum = partial[o * {threads}u + team * {}u];", tile.lanes));
        self.store_total("sum");
        self.code.line("}");
    }

    /// The output value of an activation row of the workgroup and a weight row.
    fn out(&self, b: &str, row: &str) -> String {
        let b = match self.stack {
            Some(_) => "group.y".to_owned(),
            None if parts(self.p) == 1 => b.to_owned(),
            None => format!("(first_x + {b})"),
        };
        match (self.p.width, self.p.first) {
            (width, 0) => format!("y[{b} * {width}u + {row}]"),
            (width, first) => format!("y[{b} * {width}u + {first}u + {row}]"),
        }
    }

    /// Stores the sum of output `o` of the team's `rows * batch`.
    fn store_total(&mut self, value: &str) {
        let batch = own_rows(self.p);
        self.code.line(format!("let row = first + o / {batch}u;"));
        let store = format!("{} = {value};", self.out(&format!("(o % {batch}u)"), "row"));
        if self.ragged() {
            self.code.line(format!("if (row < ROWS) {{\n{store}\n}}"));
        } else {
            self.code.line(store);
        }
    }
}
