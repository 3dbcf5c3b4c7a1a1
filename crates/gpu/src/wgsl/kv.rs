//! RoPE of queries and keys, and the write of keys and values into their blocks.

use super::Code;
use super::output::entry;
use crate::kernel::RopeKvKernel;
use crate::kv_format::{KV_BLOCK_TOKENS, KvFormat};
use crate::rope_layout::RopeLayout;

/// Threads of a workgroup; a thread per 8 values of a row.
const THREADS: u32 = 64;

/// Threads per head. In Q8 eight have the groups of a word of scales, idle ones included.
fn head_threads(k: &RopeKvKernel) -> u32 {
    match k.format {
        KvFormat::F16 => k.stored_dim() / 8,
        KvFormat::Q8 => k.rope.head_dim.div_ceil(64) * 8,
    }
}

/// Workgroups per row.
pub(crate) fn rope_kv_groups(k: &RopeKvKernel) -> u32 {
    ((k.rope.heads + 2 * k.kv_heads) * head_threads(k)).div_ceil(THREADS)
}

pub(super) fn rope_kv(code: &mut Code, k: &RopeKvKernel) {
    let word = word_type(k.format);
    code.binding(0, "read", "qkv", "f32");
    code.binding(1, "read", "angles", "vec2<f32>");
    code.binding(2, "read", "positions", "u32");
    code.binding(3, "read", "slots", "u32");
    code.binding(4, "read_write", "queries", "vec4<f32>");
    code.binding(5, "read_write", "keys", word);
    code.binding(6, "read_write", "values", word);
    if k.scaled {
        code.binding(7, "read", "factors", "f32");
    }
    rotation(code, (k.rope.rotary_dim, k.rope.layout), "qkv");
    match k.format {
        KvFormat::F16 => f16(code, k),
        KvFormat::Q8 => q8(code, k),
    }
}

/// WGSL type of the words of keys and values.
pub(super) fn word_type(format: KvFormat) -> &'static str {
    match format {
        KvFormat::F16 => "vec4<u32>",
        KvFormat::Q8 => "u32",
    }
}

/// A function for a dimension of a head of the buffer `x` after RoPE.
pub(super) fn rotation(code: &mut Code, (rotary_dim, layout): (u32, RopeLayout), x: &str) {
    let half = rotary_dim / 2;
    let (pair, first, distance, second) = match layout {
        RopeLayout::Halves => (format!("d % {half}u"), "pair", half, format!("d >= {half}u")),
        RopeLayout::Interleaved => ("d / 2u".to_owned(), "2u * pair", 1, "(d & 1u) == 1u".to_owned()),
    };
    code.line(format!(
        "fn rotated(head: u32, d: u32, position: u32) -> f32 {{
        if (d >= {rotary}u) {{
        return {x}[head + d];
        }}
        let pair = {pair};
        let turn = angles[position * {half}u + pair]; // cosine, sine
        let a = {x}[head + {first}];
        let b = {x}[head + {first} + {distance}u];
        return select(fma(-b, turn.y, a * turn.x), fma(a, turn.y, b * turn.x), {second});
        }}",
        rotary = 2 * half
    ));
}

/// Functions for a dimension of a head that is filled up with zeros.
fn filling(code: &mut Code, dim: u32) {
    code.line(format!(
        "fn filled(head: u32, d: u32) -> f32 {{
        return select(0.0, qkv[head + d], d < {dim}u);
        }}
        fn turned(head: u32, d: u32, position: u32) -> f32 {{
        return select(0.0, rotated(head, d, position), d < {dim}u);
        }}"
    ));
}

/// Four values of a head from dimension `d + from` on; `is_filled`: by the functions of
/// [`filling`].
fn four(from: u32, is_rotated: bool, is_filled: bool) -> String {
    let value = |i: u32| match (is_rotated, is_filled) {
        (true, false) => format!("rotated(at, d + {i}u, position)"),
        (false, false) => format!("qkv[at + d + {i}u]"),
        (true, true) => format!("turned(at, d + {i}u, position)"),
        (false, true) => format!("filled(at, d + {i}u)"),
    };
    let list: Vec<_> = (from..from + 4).map(value).collect();
    format!("vec4<f32>({})", list.join(", "))
}

/// Factor of queries, if they have one.
fn factor(k: &RopeKvKernel) -> &'static str {
    if k.scaled { " * factors[positions[row]]" } else { "" }
}

fn f16(code: &mut Code, k: &RopeKvKernel) {
    let (heads, kv_heads, dim) = (k.rope.heads, k.kv_heads, k.rope.head_dim);
    let (all, words) = (heads + 2 * kv_heads, k.stored_dim() / 8);
    let is_filled = k.stored_dim() != dim;
    if is_filled {
        filling(code, dim);
    }
    code.line(
        "fn halves(a: vec4<f32>, b: vec4<f32>) -> vec4<u32> {
        return vec4<u32>(pack2x16float(a.xy), pack2x16float(a.zw), pack2x16float(b.xy), pack2x16float(b.zw));
        }",
    );
    entry(code, THREADS, None, "");
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
        queries[to] = a{factor};
        queries[to + 1u] = b{factor};
        }}
        }}
        }}
        }}",
        total = all * words,
        factor = factor(k),
        values = heads + kv_heads,
        value_a = four(0, false, is_filled),
        value_b = four(4, false, is_filled),
        rotated_a = four(0, true, is_filled),
        rotated_b = four(4, true, is_filled),
    ));
}

/// Functions for scales and quants. Magnitudes are compared as integers: those of values that are
/// not finite are the largest, and drivers may assume that no float is NaN.
pub(super) fn quantization(code: &mut Code) {
    code.line(
        "fn scale_of(peak: u32) -> u32 {
        let scale = bitcast<f32>(min(peak, 0x7f7fffffu)) / 127.0;
        // Scales beyond half precision are NaN, as those of infinite values.
        return select(pack2x16float(vec2<f32>(min(scale, 65504.0), 0.0)), 0x7e00u, scale >= 65520.0);
        }
        fn inverse_of(scale: u32) -> f32 {
        return select(0.0, 1.0 / unpack2x16float(scale).x, scale > 0u && scale < 0x7c00u);
        }
        fn quants(v: vec4<f32>, inverse: f32) -> u32 {
        return pack4xI8(clamp(vec4<i32>(round(v * inverse)), vec4<i32>(-127), vec4<i32>(127)));
        }",
    );
}

/// Functions for scales of groups of 32 values that four threads have.
fn group_scales(code: &mut Code) {
    code.line(format!(
        "var<workgroup> peaks: array<u32, {THREADS}>;
        fn magnitude(v: vec4<f32>) -> u32 {{
        let m = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
        return max(max(m.x, m.y), max(m.z, m.w));
        }}
        fn scale_bits(first: u32) -> u32 {{
        let left = max(peaks[first], peaks[first + 1u]);
        return scale_of(max(left, max(peaks[first + 2u], peaks[first + 3u])));
        }}"
    ));
}

/// Four threads have a group of 32 values.
fn q8(code: &mut Code, k: &RopeKvKernel) {
    let (heads, kv_heads, dim) = (k.rope.heads, k.kv_heads, k.rope.head_dim);
    let (all, words, threads) = (heads + 2 * kv_heads, dim / 8, head_threads(k));
    let quants = k.format.quants_words(dim) * 4;
    quantization(code);
    group_scales(code);
    entry(code, THREADS, None, "");
    code.line(format!(
        "let index = group.x * {THREADS}u + thread;
        let row = group.y;
        let head = index / {threads}u;
        let word = index % {threads}u;
        let is_own = head < {all}u && word < {words}u;
        let at = (row * {all}u + head) * {dim}u;
        let d = word * 8u;
        var a = vec4<f32>();
        var b = vec4<f32>();
        if (is_own) {{
        if (head >= {values}u) {{
        a = {value_a};
        b = {value_b};
        }} else {{
        let position = positions[row];
        a = {rotated_a};
        b = {rotated_b};
        }}
        if (head < {heads}u) {{
        let to = ((row * {heads}u + head) * {words}u + word) * 2u;
        queries[to] = a{factor};
        queries[to + 1u] = b{factor};
        }}
        }}
        peaks[thread] = max(magnitude(a), magnitude(b));
        workgroupBarrier();
        if (is_own && head >= {heads}u) {{
        let scale = scale_bits(thread & ~3u);
        let inverse = inverse_of(scale);
        let first = quants(a, inverse);
        let second = quants(b, inverse);
        // Of two scales, where this thread is the first of both groups.
        let scales = scale | (scale_bits((thread & ~7u) + 4u) << 16u);
        let slot = slots[row];
        let block = slot / {KV_BLOCK_TOKENS}u * {kv_heads}u;
        let offset = slot % {KV_BLOCK_TOKENS}u;
        let at_scales = {quants}u + word / 8u * {KV_BLOCK_TOKENS}u + offset;
        if (head >= {values}u) {{
        let plane = (block + head - {values}u) * {plane}u;
        let to = plane + (offset * {words}u + word) * 2u;
        values[to] = first;
        values[to + 1u] = second;
        if (word % 8u == 0u) {{
        values[plane + at_scales] = scales;
        }}
        }} else {{
        let plane = (block + head - {heads}u) * {plane}u;
        let to = plane + (word / 2u * {KV_BLOCK_TOKENS}u + offset) * 4u + word % 2u * 2u;
        keys[to] = first;
        keys[to + 1u] = second;
        if (word % 8u == 0u) {{
        keys[plane + at_scales] = scales;
        }}
        }}
        }}
        }}",
        values = heads + kv_heads,
        factor = factor(k),
        plane = quants + k.format.scale_words(dim) * 4,
        value_a = four(0, false, false),
        value_b = four(4, false, false),
        rotated_a = four(0, true, false),
        rotated_b = four(4, true, false),
    ));
}
