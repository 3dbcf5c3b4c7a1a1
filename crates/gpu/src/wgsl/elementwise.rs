//! RoPE, addition, argmax.

use super::Code;
use super::product::GRID_X;
use crate::kernel::{AddKernel, RopeKernel};
use crate::largest_key::ArgmaxKernel;
use crate::rope_layout::RopeLayout;

/// Threads of a workgroup of [`rope`]; a thread per pair of values.
pub(crate) const ROPE_THREADS: u32 = 64;
/// Threads of a workgroup of [`add`] and [`copy_row`]; a thread per 4 values.
pub(crate) const ADD_THREADS: u32 = 256;
/// Threads of a workgroup of [`argmax`].
const ARGMAX_THREADS: u32 = 256;
/// Words of 16 bytes that a workgroup of [`read`] reads.
pub(crate) const READ_WORDS: u32 = 1024;
/// Values that a workgroup of [`argmax`] reads.
pub(crate) const ARGMAX_VALUES: u32 = 4 * ARGMAX_THREADS;

pub(super) fn rope(code: &mut Code, r: &RopeKernel) {
    let half = r.rotary_dim / 2;
    code.binding(0, "read_write", "x", "f32");
    code.binding(1, "read", "angles", "vec2<f32>");
    code.binding(2, "read", "positions", "u32");
    code.line(format!(
        "@compute @workgroup_size({ROPE_THREADS})
        fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{
        let pair = group.x * {ROPE_THREADS}u + thread;
        if (pair < {pairs}u) {{
        let head = pair / {half}u;
        let j = pair % {half}u;
        let turn = angles[positions[group.y] * {half}u + j]; // cosine, sine",
        pairs = r.heads * half
    ));
    let (first, distance) = match r.layout {
        RopeLayout::Halves => ("j", half),
        RopeLayout::Interleaved => ("2u * j", 1),
    };
    code.line(format!(
        "let at = (group.y * {}u + head) * {}u + {first};
        let a = x[at];
        let b = x[at + {distance}u];
        x[at] = fma(-b, turn.y, a * turn.x);
        x[at + {distance}u] = fma(a, turn.y, b * turn.x);
        }}
        }}",
        r.heads, r.head_dim
    ));
}

pub(super) fn add(code: &mut Code, a: &AddKernel) {
    code.binding(0, "read_write", "x", "vec4<f32>");
    code.binding(1, "read", "y", "vec4<f32>");
    if a.scaled {
        code.binding(2, "read", "factor", "f32");
    }
    let repeated = if a.period == a.values { String::new() } else { format!(" % {}u", a.period / 4) };
    code.line(format!(
        "@compute @workgroup_size({ADD_THREADS})
        fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{
        let word = group.x * {ADD_THREADS}u + thread;
        if (word < {}u) {{
        {}
        }}
        }}",
        a.values.div_ceil(4),
        match a.scaled {
            true => format!("x[word] = (x[word] + y[word{repeated}]) * factor[0];"),
            false => format!("x[word] += y[word{repeated}];"),
        }
    ));
}

pub(super) fn copy_row(code: &mut Code, values: u32) {
    code.binding(0, "read", "x", "vec4<f32>");
    code.binding(1, "read", "row", "u32");
    code.binding(2, "read_write", "out", "vec4<f32>");
    code.line(format!(
        "@compute @workgroup_size({ADD_THREADS})
        fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{
        let word = group.x * {ADD_THREADS}u + thread;
        if (word < {words}u) {{
        out[word] = x[row[0] * {words}u + word];
        }}
        }}",
        words = values / 4
    ));
}

/// Loads of 16 bytes, four per thread. The store depends on all of them and does not happen for
/// random data.
pub(super) fn read(code: &mut Code, words: u32) {
    code.binding(0, "read", "x", "vec4<u32>");
    code.binding(1, "read_write", "out", "u32");
    code.line(format!(
        "@compute @workgroup_size(256)
        fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{
        let start = (group.y * {GRID_X}u + group.x) * {READ_WORDS}u + thread;
        if (start < {words}u) {{
        let v = x[start] ^ x[start + 256u] ^ x[start + 512u] ^ x[start + 768u];
        if (all(v == vec4<u32>(0x9e3779b9u))) {{
        out[0] = start;
        }}
        }}
        }}"
    ));
}

/// Order of an f32 among others, as an unsigned integer: both zeros are equal, NaN is below all.
/// Integers, because a driver may assume that no value is NaN.
pub(super) const ORDER: &str = "fn order(bits: u32) -> u32 {
    let magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
    return 0u;
    }
    return select(0x80000000u + magnitude, 0x80000000u - magnitude, bits > magnitude);
    }";

/// [`ORDER`] of `-inf`.
pub(super) const ORDER_OF_IMPOSSIBLE: u32 = 0x8000_0000 - 0x7f80_0000;

/// Argmax of each 1024 values of a row: order and index.
pub(super) fn argmax(code: &mut Code, a: &ArgmaxKernel) {
    let ArgmaxKernel { width, values } = *a;
    code.binding(0, "read", "x", "u32");
    code.binding(1, "read_write", "best", "vec2<u32>");
    code.line(ORDER);
    argmax_entry(code);
    code.line(format!(
        "let start = group.x * {ARGMAX_VALUES}u + thread;
        var value = order(x[group.y * {width}u + min(start, {last}u)]);
        var index = min(start, {last}u);
        for (var i = start + {ARGMAX_THREADS}u; i < min({values}u, (group.x + 1u) * {ARGMAX_VALUES}u); i += {ARGMAX_THREADS}u) {{
        let candidate = order(x[group.y * {width}u + i]);
        if (candidate > value) {{
        value = candidate;
        index = i;
        }}
        }}",
        last = values - 1
    ));
    argmax_tree(code);
    code.line(format!(
        "best[group.y * {}u + group.x] = vec2<u32>(top[0], at[0]);\n}}\n}}",
        values.div_ceil(ARGMAX_VALUES)
    ));
}

/// Argmax of a row's candidates.
pub(super) fn argmax_merge(code: &mut Code, candidates: u32) {
    code.binding(0, "read", "best", "vec2<u32>");
    code.binding(1, "read_write", "out", "u32");
    argmax_entry(code);
    code.line(format!(
        "let first = best[group.y * {candidates}u + min(thread, {last}u)];
        var value = first.x;
        var index = first.y;
        for (var i = thread + {ARGMAX_THREADS}u; i < {candidates}u; i += {ARGMAX_THREADS}u) {{
        let candidate = best[group.y * {candidates}u + i];
        if (candidate.x > value) {{
        value = candidate.x;
        index = candidate.y;
        }}
        }}",
        last = candidates - 1
    ));
    argmax_tree(code);
    code.line(format!("out[group.y] = select(0xffffffffu, at[0], top[0] > {ORDER_OF_IMPOSSIBLE}u);\n}}\n}}"));
}

fn argmax_entry(code: &mut Code) {
    code.line(format!(
        "var<workgroup> top: array<u32, {ARGMAX_THREADS}>;
        var<workgroup> at: array<u32, {ARGMAX_THREADS}>;
        @compute @workgroup_size({ARGMAX_THREADS})
        fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{"
    ));
}

/// Reduces the threads' `value` and `index`, then opens a block for thread 0. The lower index wins
/// among equals.
fn argmax_tree(code: &mut Code) {
    code.line("top[thread] = value;\nat[thread] = index;\nworkgroupBarrier();");
    let mut stride = ARGMAX_THREADS / 2;
    while stride > 0 {
        code.line(format!(
            "if (thread < {stride}u) {{
            let other = top[thread + {stride}u];
            let other_at = at[thread + {stride}u];
            if (other > top[thread] || (other == top[thread] && other_at < at[thread])) {{
            top[thread] = other;
            at[thread] = other_at;
            }}
            }}
            workgroupBarrier();"
        ));
        stride /= 2;
    }
    code.line("if (thread == 0u) {");
}
