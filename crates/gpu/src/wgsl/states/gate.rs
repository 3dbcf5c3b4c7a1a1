//! Values times activated gates, a workgroup per group of a row, and the copy of rows without
//! gates.

use super::convolution::THREADS as COPY_THREADS;
use crate::state_keys::{GateKernel, GateNorm, SplitGatesKernel};
use crate::wgsl::Code;
use crate::wgsl::output::entry;
use crate::wgsl::rows::sum_tree;

/// Threads of a workgroup.
const THREADS: u32 = 64;

pub(super) fn gate(code: &mut Code, k: &GateKernel) {
    let normed = match k.norm {
        GateNorm::None => None,
        GateNorm::Before(eps) | GateNorm::Behind(eps) => Some(f32::from_bits(eps)),
    };
    code.binding(0, "read", "x", "vec4<f32>");
    code.binding(1, "read", "gates", "vec4<f32>");
    if normed.is_some() {
        code.binding(2, "read", "weights", "vec4<f32>");
    }
    code.binding(2 + u32::from(normed.is_some()), "read_write", "out", "vec4<f32>");
    if normed.is_some() {
        code.line(format!("var<workgroup> squares: array<f32, {THREADS}>;"));
    }
    let activated = if k.silu { "gate / " } else { "1.0 / " };
    code.line(format!(
        "fn activate(gate: vec4<f32>) -> vec4<f32> {{
        return {activated}(1.0 + exp(min(-gate, vec4<f32>(80.0))));
        }}"
    ));
    entry(code, THREADS, None, "");
    code.line(format!(
        "let first = (group.y * {}u + group.x) * {words}u;
        let gate = group.y * {}u + {}u + group.x * {}u;",
        k.groups,
        k.width / 4,
        k.first / 4,
        k.step / 4,
        words = k.dim / 4
    ));
    let each = format!("for (var word = thread; word < {}u; word += {THREADS}u) {{", k.dim / 4);
    let gated = "x[first + word] * activate(gates[gate + word])";
    if let Some(eps) = normed {
        let value = if matches!(k.norm, GateNorm::Before(_)) { "x[first + word]" } else { gated };
        code.line(format!(
            "var sum = 0.0;
            {each}
            let v = {value};
            sum = fma(v.w, v.w, fma(v.z, v.z, fma(v.y, v.y, fma(v.x, v.x, sum))));
            }}"
        ));
        sum_tree(code, THREADS);
        code.line(format!("let scale = inverseSqrt(squares[0] / {:?} + {eps:?});", k.dim as f32));
    }
    let factor = match k.norm {
        GateNorm::None => String::new(),
        GateNorm::Before(_) => " * scale * weights[word]".to_owned(),
        GateNorm::Behind(_) => format!(" * scale * weights[group.x * {}u + word]", k.dim / 4),
    };
    code.line(format!("{each}\nout[first + word] = {gated}{factor};\n}}\n}}"));
}

pub(super) fn split(code: &mut Code, k: &SplitGatesKernel) {
    let SplitGatesKernel { heads, kv_heads, head_dim } = *k;
    code.binding(0, "read", "x", "vec4<f32>");
    code.binding(1, "read_write", "qkv", "vec4<f32>");
    entry(code, COPY_THREADS, None, "");
    code.line(format!(
        "let index = group.x * {COPY_THREADS}u + thread;
        if (index < {total}u) {{
        let head = index / {words}u;
        let source = select(head + {heads}u, 2u * head, head < {heads}u);
        let at = (group.y * {wide}u + source) * {words}u + index % {words}u;
        qkv[group.y * {total}u + index] = x[at];
        }}
        }}",
        words = head_dim / 4,
        total = (heads + 2 * kv_heads) * head_dim / 4,
        wide = 2 * heads + 2 * kv_heads
    ));
}
