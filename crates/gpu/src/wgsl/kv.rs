//! RoPE of queries and keys, and the write of keys and values into their blocks.

use super::Code;
use super::output::entry;
use crate::kernel::{KV_BLOCK_TOKENS, RopeKvKernel, RopeLayout};

/// Threads of a workgroup; a thread per 8 values of a row.
const THREADS: u32 = 64;

/// Workgroups per row.
pub(crate) fn rope_kv_groups(k: &RopeKvKernel) -> u32 {
    ((k.rope.heads + 2 * k.kv_heads) * k.rope.head_dim / 8).div_ceil(THREADS)
}

pub(super) fn rope_kv(code: &mut Code, k: &RopeKvKernel) {
    let (heads, kv_heads, dim, half) = (k.rope.heads, k.kv_heads, k.rope.head_dim, k.rope.rotary_dim / 2);
    let (all, words) = (heads + 2 * kv_heads, dim / 8);
    code.binding(0, "read", "qkv", "f32");
    code.binding(1, "read", "angles", "vec2<f32>");
    code.binding(2, "read", "positions", "u32");
    code.binding(3, "read", "slots", "u32");
    code.binding(4, "read_write", "queries", "vec4<f32>");
    code.binding(5, "read_write", "keys", "vec4<u32>");
    code.binding(6, "read_write", "values", "vec4<u32>");
    let (pair, first, distance, second) = match k.rope.layout {
        RopeLayout::Halves => (format!("d % {half}u"), "pair", half, format!("d >= {half}u")),
        RopeLayout::Interleaved => ("d / 2u".to_owned(), "2u * pair", 1, "(d & 1u) == 1u".to_owned()),
    };
    code.line(format!(
        "fn rotated(head: u32, d: u32, position: u32) -> f32 {{
        if (d >= {rotary}u) {{
        return qkv[head + d];
        }}
        let pair = {pair};
        let turn = angles[position * {half}u + pair]; // cosine, sine
        let a = qkv[head + {first}];
        let b = qkv[head + {first} + {distance}u];
        return select(fma(-b, turn.y, a * turn.x), fma(a, turn.y, b * turn.x), {second});
        }}
        fn halves(a: vec4<f32>, b: vec4<f32>) -> vec4<u32> {{
        return vec4<u32>(pack2x16float(a.xy), pack2x16float(a.zw), pack2x16float(b.xy), pack2x16float(b.zw));
        }}",
        rotary = 2 * half
    ));
    entry(code, THREADS, None, "");
    let four = |call: &dyn Fn(u32) -> String, from: u32| {
        let list: Vec<_> = (from..from + 4).map(call).collect();
        format!("vec4<f32>({})", list.join(", "))
    };
    let plain = |i: u32| format!("qkv[at + d + {i}u]");
    let rotated = |i: u32| format!("rotated(at, d + {i}u, position)");
    code.line(format!(
        "let index = group.x * {THREADS}u + thread;
        if (index < {total}u) {{
        let row = group.y;
        let head = index / {words}u;
        let word = index % {words}u;
        let at = (row * {all}u + head) * {dim}u;
        let d = word * 8u;
        let slot = slots[row];
        let block = slot / {KV_BLOCK_TOKENS}u * {kv_heads}u;
        let offset = slot % {KV_BLOCK_TOKENS}u;
        if (head >= {values}u) {{
        let a = {value_a};
        let b = {value_b};
        values[((block + head - {values}u) * {KV_BLOCK_TOKENS}u + offset) * {words}u + word] = halves(a, b);
        }} else {{
        let position = positions[row];
        let a = {rotated_a};
        let b = {rotated_b};
        if (head >= {heads}u) {{
        keys[((block + head - {heads}u) * {words}u + word) * {KV_BLOCK_TOKENS}u + offset] = halves(a, b);
        }} else {{
        let to = ((row * {heads}u + head) * {words}u + word) * 2u;
        queries[to] = a;
        queries[to + 1u] = b;
        }}
        }}
        }}
        }}",
        total = all * words,
        values = heads + kv_heads,
        value_a = four(&plain, 0),
        value_b = four(&plain, 4),
        rotated_a = four(&rotated, 0),
        rotated_b = four(&rotated, 4),
    ));
}
