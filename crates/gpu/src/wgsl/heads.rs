//! `RMSNorm` of heads: a workgroup per head, or one for all query heads and one for all key heads.
//! Copies of the first values of heads, a thread per value.
//!
//! In a norm thread `t` has the 4-value words `t`, `t + 64`, ... and adds their squares; the
//! threads' sums are added by a binary tree.

use super::Code;
use super::output::entry;
use super::rows::sum_tree;
use crate::head_key::{CutHeadsKernel, stored_head_dim};
use crate::kernel::HeadNormKernel;
use crate::layer_keys::HeadValues;

/// Threads of a workgroup.
const THREADS: u32 = 64;

/// Workgroups per row with a norm for each head. Values that are keys are written by the workgroups
/// of the keys.
pub(crate) fn head_norm_groups(h: &HeadNormKernel) -> u32 {
    h.heads + if h.values == HeadValues::Normed { 2 * h.kv_heads } else { h.kv_heads }
}

pub(super) fn head_norm(code: &mut Code, h: &HeadNormKernel) {
    let (head, eps) = (h.head_dim / 4, f32::from_bits(h.eps_bits));
    let all = h.heads + 2 * h.kv_heads;
    code.binding(0, "read_write", "qkv", "vec4<f32>");
    code.binding(1, "read", "weights", "vec4<f32>");
    code.line(format!("var<workgroup> squares: array<f32, {THREADS}>;"));
    entry(code, THREADS, None, "");
    let (words, values) = if h.together {
        let (queries, keys) = (h.heads * head, h.kv_heads * head);
        code.line(format!(
            "let weight = group.x * {queries}u;
            let first = group.y * {}u + weight;
            let words = select({queries}u, {keys}u, group.x == 1u);",
            all * head
        ));
        ("words".to_owned(), "f32(4u * words)".to_owned())
    } else {
        code.line(format!(
            "let first = (group.y * {all}u + group.x) * {head}u;
            let weight = select(0u, {head}u, group.x >= {}u);",
            h.heads
        ));
        (format!("{head}u"), format!("{:?}", h.head_dim as f32))
    };
    code.line(format!(
        "var sum = 0.0;
        for (var word = thread; word < {words}; word += {THREADS}u) {{
        let v = qkv[first + word];
        sum = fma(v.w, v.w, fma(v.z, v.z, fma(v.y, v.y, fma(v.x, v.x, sum))));
        }}"
    ));
    sum_tree(code, THREADS);
    code.line(format!(
        "let scale = inverseSqrt(squares[0] / {values} + {eps:?});
        for (var word = thread; word < {words}; word += {THREADS}u) {{"
    ));
    let heads = h.heads;
    match h.values {
        HeadValues::Kept => {
            code.line("qkv[first + word] = qkv[first + word] * scale * weights[weight + word];");
        }
        HeadValues::Normed => code.line(format!(
            "let normed = qkv[first + word] * scale;
            let is_value = group.x >= {}u;
            qkv[first + word] = select(normed * weights[weight + word], normed, is_value);",
            heads + h.kv_heads
        )),
        HeadValues::Keys => code.line(format!(
            "let normed = qkv[first + word] * scale;
            if (group.x >= {heads}u) {{
            qkv[first + {}u + word] = normed;
            }}
            qkv[first + word] = normed * weights[weight + word];",
            h.kv_heads * head
        )),
    }
    code.line("}\n}");
}

/// Workgroups per row of [`cut_heads`].
pub(crate) fn cut_heads_groups(k: &CutHeadsKernel) -> u32 {
    (k.heads * k.head_dim).div_ceil(THREADS)
}

pub(super) fn cut_heads(code: &mut Code, k: &CutHeadsKernel) {
    let CutHeadsKernel { heads, head_dim } = *k;
    code.binding(0, "read", "x", "f32");
    code.binding(1, "read_write", "out", "f32");
    entry(code, THREADS, None, "");
    code.line(format!(
        "let index = group.x * {THREADS}u + thread;
        if (index < {all}u) {{
        let head = group.y * {heads}u + index / {head_dim}u;
        out[group.y * {all}u + index] = x[head * {stored}u + index % {head_dim}u];
        }}
        }}",
        all = heads * head_dim,
        stored = stored_head_dim(head_dim),
    ));
}
