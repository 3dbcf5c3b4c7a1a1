//! Parts shared by kernels: entry point, sums over a subgroup, output in f32 or 8 bits.

use super::Code;
use crate::kernel::Target;

/// Opens the entry point: `group`, `thread` and, with subgroups, `subgroup` and `invocation`.
///
/// `more`: further parameters, each with a comma.
pub(super) fn entry(code: &mut Code, threads: u32, subgroup: Option<u32>, more: &str) {
    code.line(format!(
        "@compute @workgroup_size({threads})\nfn main(\n@builtin(workgroup_id) group: vec3<u32>,"
    ));
    if !more.is_empty() {
        code.line(more);
    }
    if let Some(size) = subgroup {
        code.line(format!(
            "@builtin(subgroup_id) subgroup: u32,\n@builtin(subgroup_invocation_id) invocation: u32,\n) {{
            let thread = subgroup * {size}u + invocation;"
        ));
    } else {
        code.line("@builtin(local_invocation_index) thread: u32,\n) {");
    }
}

/// A function that adds a value over a subgroup by a butterfly of shuffles.
pub(super) fn subgroup_sum(code: &mut Code, size: u32) {
    code.line("fn subgroup_sum(value: f32) -> f32 {\nvar sum = value;");
    let mut offset = size / 2;
    while offset > 0 {
        code.line(format!("sum += subgroupShuffleXor(sum, {offset}u);"));
        offset /= 2;
    }
    code.line("return sum;\n}");
}

/// A function that adds the products of 8 f16 weights with 8 values, in order.
pub(super) fn add8(code: &mut Code) {
    code.line(
        "fn add8(sum: f32, w: vec4<u32>, low: vec4<f32>, high: vec4<f32>) -> f32 {
        let a = unpack2x16float(w.x);
        let b = unpack2x16float(w.y);
        let c = unpack2x16float(w.z);
        let d = unpack2x16float(w.w);
        let first = fma(b.y, low.w, fma(b.x, low.z, fma(a.y, low.y, fma(a.x, low.x, sum))));
        return fma(d.y, high.w, fma(d.x, high.z, fma(c.y, high.y, fma(c.x, high.x, first))));
        }",
    );
}

/// Rows of `cols` values in f32 or 8 bits, from 4-value words.
#[derive(Debug, Clone, Copy)]
pub(super) struct Output {
    /// Values per row.
    pub(super) cols: u32,
    /// 8 bits instead of f32.
    pub(super) quantize: bool,
    /// Threads of the workgroup.
    pub(super) threads: u32,
    /// The device's features.
    pub(super) target: Target,
}

impl Output {
    /// Bindings from `first` on, constants and workgroup memory.
    pub(super) fn declare(&self, code: &mut Code, first: u32) {
        code.line(format!("const WORDS: u32 = {}u; // 4-value words per row", self.cols / 4));
        if !self.quantize {
            code.binding(first, "read_write", "out", "vec4<f32>");
            return;
        }
        code.binding(first, "read_write", "quants", "u32");
        code.binding(first + 1, "read_write", "scales", "vec2<u32>");
        code.line(format!("const GROUPS: u32 = {}u; // groups of 32 values per row", self.cols / 32));
        if !self.shuffles() {
            code.line(format!(
                "var<workgroup> largest: array<f32, {0}>;\nvar<workgroup> totals: array<i32, {0}>;",
                self.threads
            ));
        }
    }

    /// Number of bindings.
    pub(super) fn bindings(&self) -> u32 {
        if self.quantize { 2 } else { 1 }
    }

    /// Eight threads that share a group of 32 values are in one subgroup.
    fn shuffles(&self) -> bool {
        self.target.subgroup.is_some_and(|size| size >= 8)
    }

    /// Stores `value`, the word `word` of `row`, for words below `WORDS`; in uniform control flow.
    /// Quantized: eight threads from a multiple of eight on share a group.
    /// Repeated stores need no barrier in between.
    pub(super) fn store(&self, code: &mut Code) {
        if !self.quantize {
            code.line("if (word < WORDS) {\nout[row * WORDS + word] = value;\n}");
            return;
        }
        code.line(
            "let magnitude = abs(value);
            var peak = max(max(magnitude.x, magnitude.y), max(magnitude.z, magnitude.w));",
        );
        if self.shuffles() {
            for offset in [1, 2, 4] {
                code.line(format!("peak = max(peak, subgroupShuffleXor(peak, {offset}u));"));
            }
        } else {
            code.line(
                "let head = thread & ~7u;
                largest[thread] = peak;
                workgroupBarrier();
                for (var o = 0u; o < 8u; o++) {
                peak = max(peak, largest[head + o]);
                }",
            );
        }
        code.line(
            "// Groups this small become zero: 127 / peak would overflow.
            let inverse = select(0.0, 127.0 / peak, peak > 4e-37);
            let q = clamp(vec4<i32>(round(value * inverse)), vec4<i32>(-127), vec4<i32>(127));",
        );
        if self.shuffles() {
            code.line(
                "var first = q.x + q.y + q.z + q.w;
                first += subgroupShuffleXor(first, 1u);
                first += subgroupShuffleXor(first, 2u);
                let second = subgroupShuffleXor(first, 4u);",
            );
        } else {
            code.line(
                "totals[thread] = q.x + q.y + q.z + q.w;
                workgroupBarrier();
                let first = totals[head] + totals[head + 1u] + totals[head + 2u] + totals[head + 3u];
                let second = totals[head + 4u] + totals[head + 5u] + totals[head + 6u] + totals[head + 7u];",
            );
        }
        code.line(
            "if (word < WORDS) {
            let block = word >> 3u;
            let part = word & 7u;
            quants[((row * 2u + (part >> 2u)) * GROUPS + block) * 4u + (part & 3u)] = pack4xI8(q);
            if (part == 0u) {
            let unit = select(0.0, peak / 127.0, peak > 4e-37);
            let sums = (bitcast<u32>(first) & 0xffffu) | (bitcast<u32>(second) << 16u);
            scales[row * GROUPS + block] = vec2<u32>(bitcast<u32>(unit), sums);
            }
            }",
        );
    }
}
