//! Matrix products of 1 to 8 activation rows (GEMV and small-batch GEMM).
//!
//! A team of `lanes` threads owns `rows` weight rows. Lane `l` takes the steps `l`, `l + lanes`,
//! ... of each row: 32 values of a quantized format, 8 of F16. It adds them in this order; the
//! lanes' sums are added by a butterfly of shuffles within a subgroup, then over subgroups in their
//! order (or by a tree in workgroup memory without subgroups).

use super::Code;
use crate::kernel::{Product, Target};
use crate::repack::Format;

/// Workgroups along x; more go to y.
pub(super) const GRID_X: u32 = 32_768;

/// Grid of a product.
pub(crate) fn group_grid(p: &Product) -> (u32, u32) {
    grid(p.rows.div_ceil(p.tile.rows_per_workgroup()))
}

/// Grid of at least `groups` workgroups; kernels number them `y * GRID_X + x`.
pub(crate) fn grid(groups: u32) -> (u32, u32) {
    if groups <= GRID_X { (groups, 1) } else { (GRID_X, groups.div_ceil(GRID_X)) }
}

/// Bytes of workgroup memory.
pub(crate) fn workgroup_bytes(p: &Product, subgroup: Option<u32>) -> u32 {
    4 * partial_sums(p, subgroup)
}

fn partial_sums(p: &Product, subgroup: Option<u32>) -> u32 {
    let sums = p.tile.rows * p.batch;
    match subgroup {
        Some(size) if size == p.tile.lanes => 0,
        Some(size) => sums * p.tile.threads() / size,
        None => sums * p.tile.threads(),
    }
}

struct Emitter<'a> {
    code: &'a mut Code,
    p: &'a Product,
    target: Target,
}

pub(super) fn emit(code: &mut Code, p: &Product, target: Target) {
    let mut e = Emitter { code, p, target };
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
        let half = if self.target.f16 { "f16" } else { "u32" };
        let weights: &[(&str, &str)] = match p.format {
            Format::F16 => &[("quants", "vec4<u32>")],
            Format::Q8_0 | Format::Q4_0 => &[("quants", "vec4<u32>"), ("scales", half)],
            Format::Q4K => &[("quants", "vec4<u32>"), ("headers", "vec4<u32>")],
            Format::Q5K => &[("quants", "vec4<u32>"), ("headers", "vec4<u32>"), ("high", "u32")],
            Format::Q6K => {
                &[("quants", "vec4<u32>"), ("factors", "u32"), ("high", "vec2<u32>"), ("scales", half)]
            }
        };
        let inputs: &[(&str, &str)] = if p.format == Format::F16 {
            &[("x", "vec4<f32>")]
        } else {
            &[("x", "vec4<u32>"), ("x_scales", "vec2<u32>")]
        };
        let buffers: Vec<_> = weights.iter().chain(inputs).collect();
        if buffers.iter().any(|(_, element)| *element == "f16") {
            self.code.line("enable f16;");
        }
        self.code.line(format!(
            "const ROWS: u32 = {}u; // weight rows\nconst STEPS: u32 = {}u; // lane steps per row",
            p.rows,
            p.steps_per_row()
        ));
        for (index, (name, element)) in (0..).zip(&buffers) {
            self.code.binding(index, "read", name, element);
        }
        self.code.binding(buffers.len() as u32, "read_write", "y", "f32");
        let sums = partial_sums(p, self.target.subgroup);
        if sums > 0 {
            self.code.line(format!("var<workgroup> partial: array<f32, {sums}>;"));
        }
    }

    fn helpers(&mut self) {
        match self.p.format {
            Format::F16 => self.code.line(
                "fn add8(sum: f32, w: vec4<u32>, low: vec4<f32>, high: vec4<f32>) -> f32 {
                let a = unpack2x16float(w.x);
                let b = unpack2x16float(w.y);
                let c = unpack2x16float(w.z);
                let d = unpack2x16float(w.w);
                let first = fma(b.y, low.w, fma(b.x, low.z, fma(a.y, low.y, fma(a.x, low.x, sum))));
                return fma(d.y, high.w, fma(d.x, high.z, fma(c.y, high.y, fma(c.x, high.x, first))));
                }",
            ),
            _ => self.code.line(
                "fn dot16(a: vec4<u32>, x: vec4<u32>) -> i32 {
                return dot4I8Packed(a.x, x.x) + dot4I8Packed(a.y, x.y) + dot4I8Packed(a.z, x.z) + dot4I8Packed(a.w, x.w);
                }",
            ),
        }
        if let Some(size) = self.target.subgroup {
            self.code.line("fn subgroup_sum(value: f32) -> f32 {\nvar sum = value;");
            let mut offset = size / 2;
            while offset > 0 {
                self.code.line(format!("sum += subgroupShuffleXor(sum, {offset}u);"));
                offset /= 2;
            }
            self.code.line("return sum;\n}");
        }
    }

    fn entry(&mut self) {
        let tile = self.p.tile;
        self.code.line(format!("@compute @workgroup_size({})\nfn main(", tile.threads()));
        self.code.line("@builtin(workgroup_id) group: vec3<u32>,");
        if let Some(size) = self.target.subgroup {
            self.code.line(
                "@builtin(subgroup_id) subgroup: u32,\n@builtin(subgroup_invocation_id) invocation: u32,\n) {",
            );
            self.code.line(format!("let thread = subgroup * {size}u + invocation;"));
        } else {
            self.code.line("@builtin(local_invocation_index) thread: u32,\n) {");
        }
        self.code.line(format!(
            "let lane = thread % {lanes}u;\nlet team = thread / {lanes}u;\n\
             let first = ((group.y * {GRID_X}u + group.x) * {teams}u + team) * {rows}u;",
            lanes = tile.lanes,
            teams = tile.teams,
            rows = tile.rows
        ));
        for r in 0..tile.rows {
            let row =
                if self.ragged() { format!("min(first + {r}u, ROWS - 1u)") } else { format!("first + {r}u") };
            self.code.line(format!("let row{r} = ({row}) * STEPS;"));
        }
        for (r, b) in self.sums() {
            self.code.line(format!("var sum{r}_{b} = 0.0;"));
        }
    }

    fn ragged(&self) -> bool {
        !self.p.rows.is_multiple_of(self.p.tile.rows_per_workgroup())
    }

    fn sums(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let (rows, batch) = (self.p.tile.rows, self.p.batch);
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
                self.load_weights(u, r);
            }
        }
        for u in 0..unroll {
            for r in 0..self.p.tile.rows {
                self.unpack(u, r);
            }
            for b in 0..self.p.batch {
                self.load_activations(u, b);
                for r in 0..self.p.tile.rows {
                    self.accumulate(u, r, b);
                }
            }
        }
    }

    fn load_weights(&mut self, u: u32, r: u32) {
        let at = format!("row{r} + i{u}");
        let name = format!("{u}_{r}");
        if self.p.format == Format::Q8_0 {
            self.code.line(format!(
                "let a{name} = quants[row{r} * 2u + i{u}];\nlet c{name} = quants[row{r} * 2u + STEPS + i{u}];"
            ));
        } else {
            self.code.line(format!("let w{name} = quants[{at}];"));
        }
        match self.p.format {
            Format::F16 => (),
            Format::Q8_0 | Format::Q4_0 => self.load_half("d", &name, &at),
            Format::Q4K | Format::Q5K => self.code.line(format!("let f{name} = headers[({at}) >> 3u];")),
            Format::Q6K => {
                self.code.line(format!("let f{name} = factors[({at}) >> 1u] >> ((i{u} & 1u) * 16u);"));
                self.load_half("d", &name, &format!("({at}) >> 3u"));
            }
        }
        if matches!(self.p.format, Format::Q5K | Format::Q6K) {
            self.code.line(format!("let h{name} = high[{at}];"));
        }
    }

    /// An f16 of `scales` as f32.
    fn load_half(&mut self, prefix: &str, name: &str, at: &str) {
        self.code.line(if self.target.f16 {
            format!("let {prefix}{name} = f32(scales[{at}]);")
        } else {
            format!("let {prefix}{name} = unpack2x16float(scales[({at}) >> 1u] >> ((({at}) & 1u) * 16u)).x;")
        });
    }

    /// Bytes `a` (values 0 to 15) and `c` (16 to 31) of a group; factors of groups with a minimum.
    fn unpack(&mut self, u: u32, r: u32) {
        let name = format!("{u}_{r}");
        if matches!(self.p.format, Format::F16 | Format::Q8_0) {
            return;
        }
        let (low, high) = match self.p.format {
            // Bit w of each byte belongs to word w of the low half, bit 4 + w to word w of the high
            // half.
            Format::Q5K => (
                format!(" | ((vec4<u32>(h{name}) << vec4<u32>(4u, 3u, 2u, 1u)) & vec4<u32>(0x10101010u))"),
                format!(" | ((vec4<u32>(h{name}) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(0x10101010u))"),
            ),
            // Bits 2 w and 2 w + 1 of each byte belong to word w.
            Format::Q6K => {
                let pairs = |half: &str| {
                    let h = format!("h{name}.{half}");
                    format!(" | (vec4<u32>({h} << 4u, {h} << 2u, {h}, {h} >> 2u) & vec4<u32>(0x30303030u))")
                };
                (pairs("x"), pairs("y"))
            }
            _ => (String::new(), String::new()),
        };
        self.code.line(format!(
            "let a{name} = (w{name} & vec4<u32>(0x0f0f0f0fu)){low};
            let c{name} = ((w{name} >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu)){high};"
        ));
        if self.p.format.has_min() {
            if r == 0 {
                self.code.line(format!("let shift{u} = (i{u} & 7u) * 4u;"));
            }
            self.code.line(format!(
                "let top{name} = f{name}.w >> shift{u};
                let dd{name} = unpack2x16float(f{name}.x);
                let d{name} = dd{name}.x * f32(((f{name}.y >> shift{u}) & 15u) | ((top{name} & 3u) << 4u));
                let m{name} = dd{name}.y * f32(((f{name}.z >> shift{u}) & 15u) | ((top{name} & 12u) << 2u));"
            ));
        }
        if self.p.format == Format::Q6K {
            self.code.line(format!(
                "let p{name} = bitcast<i32>(f{name} << 24u) >> 24u;\nlet q{name} = bitcast<i32>(f{name} << 16u) >> 24u;"
            ));
        }
    }

    /// Words of activations, their scale `s` and the sums of their quants: `t` of all 32, or `k`,
    /// `l` of the halves.
    fn load_activations(&mut self, u: u32, b: u32) {
        let name = format!("{u}_{b}");
        if self.p.format == Format::F16 {
            self.code.line(format!(
                "let low{name} = x[{b}u * 2u * STEPS + 2u * i{u}];\nlet high{name} = x[{b}u * 2u * STEPS + 2u * i{u} + 1u];"
            ));
            return;
        }
        self.code.line(format!(
            "let low{name} = x[{first}u * STEPS + i{u}];
            let high{name} = x[{second}u * STEPS + i{u}];
            let g{name} = x_scales[{b}u * STEPS + i{u}];
            let s{name} = bitcast<f32>(g{name}.x);",
            first = 2 * b,
            second = 2 * b + 1
        ));
        let (first, second) =
            (format!("(bitcast<i32>(g{name}.y << 16u) >> 16u)"), format!("(bitcast<i32>(g{name}.y) >> 16u)"));
        match self.p.format {
            Format::F16 | Format::Q8_0 => (),
            Format::Q6K => {
                self.code.line(format!("let k{name} = 32 * {first};\nlet l{name} = 32 * {second};"));
            }
            _ => self.code.line(format!("let t{name} = {first} + {second};")),
        }
    }

    fn accumulate(&mut self, u: u32, r: u32, b: u32) {
        let (sum, w, x) = (format!("sum{r}_{b}"), format!("{u}_{r}"), format!("{u}_{b}"));
        let (first, second) = (format!("dot16(a{w}, low{x})"), format!("dot16(c{w}, high{x})"));
        let line = match self.p.format {
            Format::F16 => format!("{sum} = add8({sum}, w{w}, low{x}, high{x});"),
            Format::Q8_0 => format!("{sum} = fma(d{w} * s{x}, f32({first} + {second}), {sum});"),
            Format::Q4_0 => format!("{sum} = fma(d{w} * s{x}, f32({first} + {second} - 8 * t{x}), {sum});"),
            Format::Q4K | Format::Q5K => format!(
                "{sum} = fma(d{w} * s{x}, f32({first} + {second}), {sum});
                {sum} = fma(-(m{w} * s{x}), f32(t{x}), {sum});"
            ),
            Format::Q6K => format!(
                "{sum} = fma(d{w} * s{x}, f32(p{w} * ({first} - k{x}) + q{w} * ({second} - l{x})), {sum});"
            ),
        };
        self.code.line(line);
    }

    fn reduce_subgroups(&mut self) {
        let (tile, batch) = (self.p.tile, self.p.batch);
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
                    self.code.line(format!("y[{b}u * ROWS + first + {r}u] = total{r}_{b};"));
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
        let (tile, batch) = (self.p.tile, self.p.batch);
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

    /// Stores the sum of output `o` of the team's `rows * batch`.
    fn store_total(&mut self, value: &str) {
        let batch = self.p.batch;
        self.code.line(format!("let row = first + o / {batch}u;"));
        let store = format!("y[(o % {batch}u) * ROWS + row] = {value};");
        if self.ragged() {
            self.code.line(format!("if (row < ROWS) {{\n{store}\n}}"));
        } else {
            self.code.line(store);
        }
    }
}
