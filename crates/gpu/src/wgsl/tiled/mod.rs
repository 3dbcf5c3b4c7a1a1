//! Attention of many queries of one sequence with cooperative matrices (prefill).
//!
//! A workgroup has a tile of queries (rows times query heads that share a KV head) and a split of
//! 512 tokens, counted from token 0; a subgroup has 16 of its queries. Per step of 64 tokens (32
//! with heads above 64 values), aligned to multiples of the step:
//! 1. scores = queries keys^T, in squares, to workgroup memory;
//! 2. the lanes that share a query mask, take the maximum and the exponentials, and write these as
//!    f16 weights; keys and values of the next products follow into workgroup memory;
//! 3. sums += weights values, in squares.
//!
//! Exponentials are relative to a reference, the maximum of a step. A later step replaces it only
//! where its maximum exceeds it by [`THRESHOLD`]; the query's sums are multiplied by the quotient
//! through workgroup memory, those of its neighbours by 1. Tokens that a query does not see add
//! zeros. So a query's bits depend on its position, its keys and values only.
//!
//! Keys and values in Q8 become f16 on their way to workgroup memory.
//!
//! On devices without cooperative matrices the products of the squares are written out, for tests.

mod memory;
mod sums;

use super::Code;
use super::attention::begin_of;
use super::cooperative::square;
use super::output::{Output, entry};
use super::sinks;
use crate::kernel::{AttentionKernel, AttentionOutput, Target, TiledAttentionKernel};
use crate::kv_format::KvFormat;

/// Tokens per split.
pub(crate) const TILED_SPLIT_TOKENS: u32 = 512;
/// Largest head dimension.
pub(crate) const TILED_HEAD_DIM: u32 = 256;
/// Side of the squares.
const SIDE: u32 = 16;
/// Values between the rows of an array in workgroup memory, against bank conflicts.
const GAP: u32 = 8;
/// Excess over the reference from which on a step's maximum replaces it.
const THRESHOLD: f32 = 4.0;
/// Factor of the weights: with the threshold they stay below the largest f16, `2^9 e^4 < 2^15`.
const WEIGHT_SCALE: f32 = 512.0;

/// Tokens per step.
fn step_tokens(head_dim: u32) -> u32 {
    if head_dim <= 64 { 64 } else { 32 }
}

/// Query heads of a tile: the most that queries per tile are a multiple of, at most 8.
pub(crate) fn choose_tile_heads(a: &AttentionKernel) -> u32 {
    let group = a.heads / a.kv_heads;
    [8, 4, 2].into_iter().find(|n| group.is_multiple_of(*n)).unwrap_or(1)
}

/// Workgroups: splits times parts of the query heads, and tiles of rows.
pub(crate) fn tiled_grid(t: &TiledAttentionKernel, rows: u64, tokens: u64) -> (u64, u64) {
    let own = t.attention.workgroup_heads.unwrap_or(1);
    let parts = u64::from(t.attention.heads / own);
    (tokens.div_ceil(TILED_SPLIT_TOKENS.into()) * parts, rows.div_ceil((t.queries / own).into()))
}

/// Bytes of workgroup memory, without those of the output.
pub(crate) fn tiled_bytes(t: &TiledAttentionKernel, target: Target) -> u32 {
    let (dim, step) = (t.attention.head_dim, step_tokens(t.attention.head_dim));
    let lanes = square(target).1 / SIDE;
    let query = if target.cooperative.is_some() { 0 } else { t.queries * (dim + GAP) * 2 };
    2 * step * (dim + GAP) * 2 + query + t.queries * ((step + GAP) * 6 + 4 * lanes + 8) + 16
}

/// Keys or values.
#[derive(Clone, Copy, PartialEq)]
enum Plane {
    Keys,
    Values,
}

impl Plane {
    fn letter(self) -> char {
        match self {
            Self::Keys => 'k',
            Self::Values => 'v',
        }
    }

    fn buffer(self) -> &'static str {
        match self {
            Self::Keys => "keys",
            Self::Values => "values",
        }
    }
}

struct Emitter<'a> {
    code: &'a mut Code,
    t: &'a TiledAttentionKernel,
    output: Output,
    /// Threads of a subgroup.
    subgroup: u32,
    is_cooperative: bool,
    /// Query heads of a tile.
    heads: u32,
    dim: u32,
    /// Tokens per step.
    step: u32,
}

pub(super) fn emit(code: &mut Code, t: &TiledAttentionKernel, target: Target) {
    let (_, subgroup) = square(target);
    let is_cooperative = target.cooperative.is_some();
    let a = &t.attention;
    let output = Output {
        cols: a.heads * a.head_dim,
        quantize: a.output == AttentionOutput::Quantized,
        threads: t.queries / SIDE * subgroup,
        // Written out, subgroups are not those of the device.
        target: if is_cooperative { target } else { Target { subgroup: None, ..target } },
    };
    let (heads, dim) = (a.workgroup_heads.unwrap_or(1), a.head_dim);
    let step = step_tokens(dim);
    let mut e = Emitter { code, t, output, subgroup, is_cooperative, heads, dim, step };
    e.head();
    e.entry();
    e.stage_queries();
    e.steps();
    e.finish();
    e.code.line("}");
}

impl Emitter<'_> {
    fn threads(&self) -> u32 {
        self.output.threads
    }

    /// Lanes that share a query.
    fn lanes(&self) -> u32 {
        self.subgroup / SIDE
    }

    /// Squares of the sums of a subgroup.
    fn squares(&self) -> u32 {
        self.dim / SIDE
    }

    /// Parts of a square that a thread holds where products are written out.
    fn parts(&self) -> u32 {
        SIDE * SIDE / self.subgroup
    }

    /// Opens a loop over the values of `squares` squares that a thread computes where products are
    /// written out: `at_row`, `at_column` and their index `i` from `first` squares on.
    fn open_values(&mut self, first: u32, squares: u32) {
        let (parts, lanes) = (self.parts(), self.lanes());
        self.code.line(format!(
            "for (var i = {}u; i < {}u; i++) {{
            let at_row = strip + invocation / {SIDE}u + i % {parts}u * {lanes}u;
            let at_column = invocation % {SIDE}u + (i / {parts}u - {first}u) * {SIDE}u;",
            first * parts,
            (first + squares) * parts
        ));
    }

    fn head(&mut self) {
        if self.is_cooperative {
            self.code.line("enable wgpu_cooperative_matrix;");
        }
        self.code.line("enable f16;");
        let word = match self.t.attention.format {
            KvFormat::F16 => {
                self.code.line("struct Eight {\na: vec4<f16>,\nb: vec4<f16>,\n}");
                "Eight"
            }
            KvFormat::Q8 => "vec4<u32>",
        };
        self.code.binding(0, "read", "queries", "vec4<f32>");
        self.code.binding(1, "read", "keys", word);
        self.code.binding(2, "read", "values", word);
        self.code.binding(3, "read", "positions", "u32");
        self.code.binding(4, "read", "table", "u32");
        if self.t.attention.output == AttentionOutput::Partial {
            self.code.binding(5, "read_write", "partial", "vec4<f32>");
        } else {
            self.output.declare(self.code, 5);
            if self.t.attention.sinks {
                sinks::declare(self.code, 5 + self.output.bindings());
            }
        }
        let (row, step) = ((self.dim + GAP) / 4, (self.step + GAP) / 4);
        // Each array is a whole number of 16 bytes: drivers place one array after the other, and
        // matrix instructions give wrong results at addresses that are not a multiple of 16.
        self.code.line(format!(
            "var<workgroup> tile: array<array<vec4<f16>, {row}>, {}>; // keys, then values
            var<workgroup> scores: array<array<vec4<f32>, {step}>, {queries}>;
            var<workgroup> weights: array<array<vec4<f16>, {step}>, {queries}>;
            var<workgroup> factors: array<f32, {queries}>;
            var<workgroup> references: array<f32, {queries}>;
            var<workgroup> row_sums: array<f32, {}>;
            var<workgroup> grown: array<u32, 4>; // one per subgroup, at most 4",
            2 * self.step,
            self.t.queries * self.lanes(),
            queries = self.t.queries,
        ));
        if !self.is_cooperative {
            self.code
                .line(format!("var<workgroup> query: array<array<vec4<f16>, {row}>, {}>;", self.t.queries));
        }
    }

    /// The tile's place, its tokens, and the query of each thread.
    fn entry(&mut self) {
        let a = &self.t.attention;
        let subgroup = self.is_cooperative.then_some(self.subgroup);
        entry(self.code, self.threads(), subgroup, "@builtin(num_workgroups) groups: vec3<u32>,");
        if !self.is_cooperative {
            let size = self.subgroup;
            self.code.line(format!("let subgroup = thread / {size}u;\nlet invocation = thread % {size}u;"));
        }
        let (parts, tile_rows) = (a.heads / self.heads, self.t.queries / self.heads);
        self.code.line(format!(
            "let tile_row = (groups.y - 1u - group.y) * {tile_rows}u; // long ones begin first
            let split = group.x / {parts}u;
            let first_head = (group.x % {parts}u) * {}u;
            let kv_head = first_head / {}u;
            let rows = arrayLength(&queries) / {}u;",
            self.heads,
            a.heads / a.kv_heads,
            // Exact, unlike the lengths of buffers of 4-byte values.
            a.heads * self.dim / 4
        ));
        for i in 0..tile_rows {
            self.code.line(format!("let end{i} = positions[min(tile_row + {i}u, rows - 1u)] + 1u;"));
        }
        // Constants, not variables: bounds of the loop that are the same for all threads.
        self.code.line(format!("let low0 = {};\nlet high0 = end0;", begin_of("end0", a.window)));
        for i in 1..tile_rows {
            let (begin, before) = (begin_of(&format!("end{i}"), a.window), i - 1);
            self.code.line(format!(
                "let low{i} = min(low{before}, {begin});\nlet high{i} = max(high{before}, end{i});"
            ));
        }
        let last = tile_rows - 1;
        self.code.line(format!("let low = low{last};\nlet high = high{last};"));
        self.code.line(format!(
            "let until = min(high, (split + 1u) * {TILED_SPLIT_TOKENS}u);
            let beginning = max(low / {step}u * {step}u, split * {TILED_SPLIT_TOKENS}u);
            if (beginning >= until) {{
            return;
            }}
            let strip = subgroup * {SIDE}u;
            let own = strip + invocation / {lanes}u;
            let lane = invocation % {lanes}u;
            let own_row = min(tile_row + own / {heads}u, rows - 1u);
            let own_end = positions[own_row] + 1u;
            let own_begin = {};",
            begin_of("own_end", a.window),
            step = self.step,
            lanes = self.lanes(),
            heads = self.heads,
        ));
    }

    /// Queries as f16, each times a power of two as activations are, to matrices in registers.
    fn stage_queries(&mut self) {
        let (words, lanes) = (self.dim / 4, self.lanes());
        let target = if self.is_cooperative { "tile" } else { "query" };
        self.code.line(format!(
            "let own_query = (own_row * {}u + first_head + own % {}u) * {words}u;
            var largest_value = 0.0;
            for (var word = 0u; word < {words}u; word += 4u) {{",
            self.t.attention.heads, self.heads
        ));
        for i in 0..4 {
            self.code.line(format!("let v{i} = abs(queries[own_query + word + {i}u]);"));
        }
        self.code.line(format!(
            "let v = max(max(v0, v1), max(v2, v3));
            largest_value = max(largest_value, max(max(v.x, v.y), max(v.z, v.w)));
            }}
            // Biased exponents of the largest magnitude, the factor and its inverse.
            let exponent = clamp(bitcast<u32>(largest_value) >> 23u, 15u, 254u);
            let factor = bitcast<f32>((268u - exponent) << 23u);
            let unit = bitcast<f32>((exponent - 14u) << 23u) * {:?};
            for (var word = lane; word < {words}u; word += {lanes}u) {{
            {target}[own][word] = vec4<f16>(queries[own_query + word] * factor);
            }}
            workgroupBarrier();",
            f32::from_bits(self.t.attention.scale_bits)
        ));
        if self.is_cooperative {
            let stride = (self.dim + GAP) / 4;
            for k in 0..self.squares() {
                self.code.line(format!(
                    "let query{k} = coopLoadT<coop_mat16x16<f16, A>>(&tile[strip][{}], {stride}u);",
                    k * SIDE / 4
                ));
            }
            self.code.line("workgroupBarrier();");
        }
        for j in 0..self.squares() {
            if self.is_cooperative {
                self.code.line(format!("var sum{j} = coop_mat16x16<f32, C>();"));
            }
        }
        if !self.is_cooperative {
            self.code.line(format!("var sums = array<f32, {}>();", self.squares() * self.parts()));
        }
        self.code.line("var reference = -3e38;\nvar total = 0.0;");
    }

    fn steps(&mut self) {
        let step = self.step;
        if !self.is_cooperative {
            self.code.line(format!("for (var start = beginning; start < until; start += {step}u) {{"));
            self.copy(Plane::Keys);
            self.code.line("workgroupBarrier();");
            self.scores();
            self.code.line("workgroupBarrier();");
            self.exponentials();
            self.copy(Plane::Values);
            self.code.line("workgroupBarrier();");
            self.rescale();
            self.products();
            self.code.line("}");
            return;
        }
        self.declare_items();
        self.load(Plane::Keys, "var ", "beginning");
        self.keep(Plane::Keys);
        self.load(Plane::Values, "var ", "beginning");
        self.code.line(format!(
            "workgroupBarrier();
            for (var start = beginning; start < until; start += {step}u) {{
            let following = select(beginning, start + {step}u, start + {step}u < until);"
        ));
        self.scores();
        self.load(Plane::Keys, "", "following");
        self.code.line("workgroupBarrier();");
        self.exponentials();
        self.keep(Plane::Values);
        self.keep(Plane::Keys);
        self.code.line("workgroupBarrier();");
        self.rescale();
        self.load(Plane::Values, "", "following");
        self.products();
        self.code.line("}");
    }

    fn scores(&mut self) {
        let (stride, step) = ((self.dim + GAP) / 4, (self.step + GAP) / 4);
        if !self.is_cooperative {
            self.open_values(0, self.step / SIDE);
            self.code.line(format!(
                "var score = 0.0;
                for (var k = 0u; k < {}u; k++) {{
                let q4 = vec4<f32>(query[at_row][k]);
                let k4 = vec4<f32>(tile[at_column][k]);
                score = fma(q4.w, k4.w, fma(q4.z, k4.z, fma(q4.y, k4.y, fma(q4.x, k4.x, score))));
                }}
                scores[at_row][at_column / 4u][at_column % 4u] = score;
                }}",
                self.dim / 4,
            ));
            return;
        }
        for j in 0..self.step / SIDE {
            self.code.line("{\nvar score = coop_mat16x16<f32, C>();");
            for k in 0..self.squares() {
                self.code.line(format!(
                    "let key{k} = coopLoad<coop_mat16x16<f16, B>>(&tile[{}][{}], {stride}u);
                    score = coopMultiplyAdd(query{k}, key{k}, score);",
                    j * SIDE,
                    k * SIDE / 4
                ));
            }
            self.code.line(format!("coopStoreT(score, &scores[strip][{}], {step}u);\n}}", j * SIDE / 4));
        }
    }

    /// Scores become weights; `keep` is the factor of the query's earlier sums.
    fn exponentials(&mut self) {
        let (words, lanes) = (self.step / 4 / self.lanes(), self.lanes());
        self.code.line("var peak = -3e38;");
        for i in 0..words {
            self.code.line(format!(
                "let tokens{i} = vec4<u32>(start + (lane + {}u) * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
                let visible{i} = tokens{i} - own_begin < vec4<u32>(own_end - own_begin);
                let score{i} = select(vec4<f32>(-3e38), {}, visible{i});
                peak = max(peak, max(max(score{i}.x, score{i}.y), max(score{i}.z, score{i}.w)));",
                i * lanes,
                self.capped(&format!("scores[own][lane + {}u] * unit", i * lanes)),
            ));
        }
        self.shared_peak();
        self.code.line(format!(
            "let grows = peak > reference + {THRESHOLD:?};
            let former = reference;
            reference = select(reference, peak, grows);
            // The bounds keep exp within the range that every driver computes.
            let keep = select(1.0, exp(max(former - reference, -80.0)), grows);
            total *= keep;"
        ));
        for i in 0..words {
            self.code.line(format!(
                "let weight{i} = select(vec4<f32>(), exp(max(score{i} - reference, vec4<f32>(-80.0))), visible{i});
                total += (weight{i}.x + weight{i}.y) + (weight{i}.z + weight{i}.w);
                weights[own][lane + {}u] = vec4<f16>(weight{i} * {WEIGHT_SCALE:?});",
                i * lanes
            ));
        }
        self.code.line(if self.is_cooperative {
            // Without a reference the sums are zero.
            "let needs = subgroupAny(grows && former > -1e38);
            if (invocation == 0u) {
            grown[subgroup] = u32(needs);
            }"
        } else {
            "if (lane == 0u) {\nfactors[own] = keep;\n}"
        });
    }

    fn capped(&self, score: &str) -> String {
        match self.t.attention.soft_cap_bits.map(f32::from_bits) {
            Some(cap) => {
                format!("{cap:?} * tanh(clamp({score} / {cap:?}, vec4<f32>(-15.0), vec4<f32>(15.0)))")
            }
            None => score.to_owned(),
        }
    }

    /// Maximum over the lanes of a query.
    fn shared_peak(&mut self) {
        let lanes = self.lanes();
        if self.is_cooperative {
            let mut offset = 1;
            while offset < lanes {
                self.code.line(format!("peak = max(peak, subgroupShuffleXor(peak, {offset}u));"));
                offset *= 2;
            }
            return;
        }
        self.code.line(format!("row_sums[own * {lanes}u + lane] = peak;\nworkgroupBarrier();"));
        for i in 0..lanes {
            self.code.line(format!("peak = max(peak, row_sums[own * {lanes}u + {i}u]);"));
        }
    }

    /// Adds weights times values.
    fn products(&mut self) {
        let (stride, step) = ((self.dim + GAP) / 4, (self.step + GAP) / 4);
        if !self.is_cooperative {
            self.open_values(0, self.squares());
            self.code.line(format!(
                "for (var k = 0u; k < {steps}u; k++) {{
                let weight = f32(weights[at_row][k / 4u][k % 4u]);
                sums[i] = fma(weight, f32(tile[{steps}u + k][at_column / 4u][at_column % 4u]), sums[i]);
                }}
                }}",
                steps = self.step,
            ));
            return;
        }
        for k in 0..self.step / SIDE {
            self.code.line(format!(
                "{{\nlet weight = coopLoadT<coop_mat16x16<f16, A>>(&weights[strip][{}], {step}u);",
                k * SIDE / 4
            ));
            for j in 0..self.squares() {
                self.code.line(format!(
                    "let value{j} = coopLoadT<coop_mat16x16<f16, B>>(&tile[{}][{}], {stride}u);
                    sum{j} = coopMultiplyAdd(weight, value{j}, sum{j});",
                    self.step + k * SIDE,
                    j * SIDE / 4
                ));
            }
            self.code.line("}");
        }
    }
}
