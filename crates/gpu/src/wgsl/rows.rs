//! Operations on rows: norms, gated activations and quantization to 8 bits.
//!
//! A norm has one workgroup per row: thread `t` adds the squares of the 4-value words `t`, `t +
//! 256`, ...; a binary tree adds the threads. The others have a thread per word.

use super::Code;
use crate::kernel::{Activation, RowKernel, RowOp};

/// Threads of a workgroup.
const ROW_THREADS: u32 = 256;

/// Workgroups per row.
pub(crate) fn workgroups_per_row(r: &RowKernel) -> u32 {
    if normalizes(r) { 1 } else { (r.cols / 4).div_ceil(ROW_THREADS) }
}

fn normalizes(r: &RowKernel) -> bool {
    matches!(r.op, RowOp::RmsNorm(_) | RowOp::AddRmsNorm(_))
}

pub(super) fn emit(code: &mut Code, r: &RowKernel) {
    head(code, r);
    if let RowOp::Gated(activation) = r.op {
        activate(code, activation);
    }
    code.line(format!(
        "@compute @workgroup_size({ROW_THREADS})
        fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{
        let row = group.y;"
    ));
    match r.op {
        RowOp::RmsNorm(eps) | RowOp::AddRmsNorm(eps) => norm(code, r, f32::from_bits(eps)),
        RowOp::Copy => single(code, r, "x[row * WORDS + word]"),
        RowOp::Gated(_) => {
            single(code, r, "activate(x[row * 2u * WORDS + word]) * x[row * 2u * WORDS + WORDS + word]");
        }
    }
    code.line("}");
}

fn head(code: &mut Code, r: &RowKernel) {
    code.line(format!("const WORDS: u32 = {}u; // 4-value words per row", r.cols / 4));
    let mut next = 0;
    let mut bind = |code: &mut Code, access: &str, name: &str, element: &str| {
        code.binding(next, access, name, element);
        next += 1;
    };
    match r.op {
        RowOp::Copy | RowOp::Gated(_) => bind(code, "read", "x", "vec4<f32>"),
        RowOp::RmsNorm(_) => {
            bind(code, "read", "x", "vec4<f32>");
            bind(code, "read", "weight", "vec4<f32>");
        }
        RowOp::AddRmsNorm(_) => {
            bind(code, "read_write", "x", "vec4<f32>");
            bind(code, "read", "delta", "vec4<f32>");
            bind(code, "read", "weight", "vec4<f32>");
        }
    }
    if r.quantize {
        bind(code, "read_write", "quants", "u32");
        bind(code, "read_write", "scales", "vec2<u32>");
        code.line(format!(
            "const GROUPS: u32 = {}u; // groups of 32 values per row
            var<workgroup> largest: array<f32, {ROW_THREADS}>;
            var<workgroup> totals: array<i32, {ROW_THREADS}>;",
            r.cols / 32
        ));
    } else {
        bind(code, "read_write", "out", "vec4<f32>");
    }
    if normalizes(r) {
        code.line(format!("var<workgroup> squares: array<f32, {ROW_THREADS}>;"));
    }
}

fn activate(code: &mut Code, activation: Activation) {
    code.line("fn activate(x: vec4<f32>) -> vec4<f32> {");
    match activation {
        // Bounds keep exp and tanh within the range that every driver computes.
        Activation::Silu => code.line("return x / (1.0 + exp(min(-x, vec4<f32>(80.0))));"),
        Activation::GeluTanh => code.line(
            "let inner = 0.7978845608 * fma(0.044715 * x * x, x, x);
            return 0.5 * x * (1.0 + tanh(clamp(inner, vec4<f32>(-15.0), vec4<f32>(15.0))));",
        ),
    }
    code.line("}");
}

fn single(code: &mut Code, r: &RowKernel, value: &str) {
    code.line(format!(
        "let word = group.x * {ROW_THREADS}u + thread;
        var value = vec4<f32>();
        if (word < WORDS) {{
        value = {value};
        }}"
    ));
    store(code, r, false);
}

fn norm(code: &mut Code, r: &RowKernel, eps: f32) {
    code.line(format!(
        "var sum = 0.0;
        for (var word = thread; word < WORDS; word += {ROW_THREADS}u) {{"
    ));
    if matches!(r.op, RowOp::AddRmsNorm(_)) {
        code.line(
            "let v = x[row * WORDS + word] + delta[row * WORDS + word];
            x[row * WORDS + word] = v;",
        );
    } else {
        code.line("let v = x[row * WORDS + word];");
    }
    code.line(
        "sum = fma(v.w, v.w, fma(v.z, v.z, fma(v.y, v.y, fma(v.x, v.x, sum))));
        }
        squares[thread] = sum;
        workgroupBarrier();",
    );
    let mut stride = ROW_THREADS / 2;
    while stride > 0 {
        code.line(format!(
            "if (thread < {stride}u) {{
            squares[thread] += squares[thread + {stride}u];
            }}
            workgroupBarrier();"
        ));
        stride /= 2;
    }
    code.line(format!(
        "let scale = inverseSqrt(squares[0] / {:?} + {eps:?});
        for (var step = 0u; step < {}u; step++) {{
        let word = thread + step * {ROW_THREADS}u;
        var value = vec4<f32>();
        if (word < WORDS) {{
        value = x[row * WORDS + word] * scale * weight[word];
        }}",
        r.cols as f32,
        (r.cols / 4).div_ceil(ROW_THREADS)
    ));
    store(code, r, true);
    code.line("}");
}

/// Stores `value`, the word `word` of `row`. Quantized: eight threads share a group of 32 values.
fn store(code: &mut Code, r: &RowKernel, repeated: bool) {
    if !r.quantize {
        code.line("if (word < WORDS) {\nout[row * WORDS + word] = value;\n}");
        return;
    }
    code.line(
        "let magnitude = abs(value);
        largest[thread] = max(max(magnitude.x, magnitude.y), max(magnitude.z, magnitude.w));
        workgroupBarrier();
        let head = thread & ~7u;
        var peak = largest[head];
        for (var o = 1u; o < 8u; o++) {
        peak = max(peak, largest[head + o]);
        }
        // Groups this small become zero: 127 / peak would overflow.
        let inverse = select(0.0, 127.0 / peak, peak > 4e-37);
        let q = clamp(vec4<i32>(round(value * inverse)), vec4<i32>(-127), vec4<i32>(127));
        totals[thread] = q.x + q.y + q.z + q.w;
        workgroupBarrier();
        if (word < WORDS) {
        let block = word >> 3u;
        let part = word & 7u;
        quants[((row * 2u + (part >> 2u)) * GROUPS + block) * 4u + (part & 3u)] = pack4xI8(q);
        if (part == 0u) {
        let first = totals[head] + totals[head + 1u] + totals[head + 2u] + totals[head + 3u];
        let second = totals[head + 4u] + totals[head + 5u] + totals[head + 6u] + totals[head + 7u];
        let unit = select(0.0, peak / 127.0, peak > 4e-37);
        let sums = (bitcast<u32>(first) & 0xffffu) | (bitcast<u32>(second) << 16u);
        scales[row * GROUPS + block] = vec2<u32>(bitcast<u32>(unit), sums);
        }
        }",
    );
    if repeated {
        code.line("workgroupBarrier();");
    }
}
