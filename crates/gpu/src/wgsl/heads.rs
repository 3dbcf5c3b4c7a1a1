//! `RMSNorm` of heads: a workgroup per head.
//!
//! Thread `t` has the 4-value words `t`, `t + 64`, ... and adds their squares; the threads' sums
//! are added by a binary tree.

use super::Code;
use super::output::entry;
use super::rows::sum_tree;
use crate::kernel::HeadNormKernel;

/// Threads of a workgroup.
const THREADS: u32 = 64;

pub(super) fn head_norm(code: &mut Code, h: &HeadNormKernel) {
    let (words, eps) = (h.head_dim / 4, f32::from_bits(h.eps_bits));
    let all = h.heads + 2 * h.kv_heads;
    code.binding(0, "read_write", "qkv", "vec4<f32>");
    code.binding(1, "read", "weights", "vec4<f32>");
    code.line(format!("var<workgroup> squares: array<f32, {THREADS}>;"));
    entry(code, THREADS, None, "");
    code.line(format!(
        "let first = (group.y * {all}u + group.x) * {words}u;
        let weight = select(0u, {words}u, group.x >= {}u);
        var sum = 0.0;
        for (var word = thread; word < {words}u; word += {THREADS}u) {{
        let v = qkv[first + word];
        sum = fma(v.w, v.w, fma(v.z, v.z, fma(v.y, v.y, fma(v.x, v.x, sum))));
        }}",
        h.heads
    ));
    sum_tree(code, THREADS);
    code.line(format!(
        "let scale = inverseSqrt(squares[0] / {:?} + {eps:?});
        for (var word = thread; word < {words}u; word += {THREADS}u) {{
        qkv[first + word] = qkv[first + word] * scale * weights[weight + word];
        }}
        }}",
        h.head_dim as f32
    ));
}
