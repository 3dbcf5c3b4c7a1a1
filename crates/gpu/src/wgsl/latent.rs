//! Latent attention: norms of parts of rows, division of queries, and the write of keys.
//!
//! A norm has one workgroup per row: thread `t` has the values `t`, `t + 64`, ... and adds their
//! squares; the threads' sums are added by a binary tree.

use super::Code;
use super::kv::{quantization, rotation, word_type};
use super::output::entry;
use super::rows::sum_tree;
use crate::kv_format::{KV_BLOCK_TOKENS, KvFormat};
use crate::latent_key::{LatentKeysKernel, LatentQueriesKernel, PartNormKernel};

/// Threads of a workgroup.
const THREADS: u32 = 64;

/// Workgroups per row of [`queries`], which has a thread per value.
pub(crate) fn latent_query_groups(k: &LatentQueriesKernel) -> u32 {
    (k.heads * k.written()).div_ceil(THREADS)
}

/// Bytes of workgroup memory of [`keys`].
pub(crate) fn latent_key_bytes(k: &LatentKeysKernel) -> u32 {
    4 * (k.head_dim() + THREADS)
}

/// `scale`: the factor of a norm of `cols` values of `x` from `origin` on.
fn scale(code: &mut Code, cols: u32, eps_bits: u32) {
    code.line(format!(
        "var sum = 0.0;
        for (var d = thread; d < {cols}u; d += {THREADS}u) {{
        let value = x[origin + d];
        sum = fma(value, value, sum);
        }}"
    ));
    sum_tree(code, THREADS);
    let eps = f32::from_bits(eps_bits);
    code.line(format!("let scale = inverseSqrt(squares[0] / {:?} + {eps:?});", cols as f32));
}

pub(super) fn part_norm(code: &mut Code, k: &PartNormKernel) {
    let PartNormKernel { cols, width, padded, eps_bits } = *k;
    code.binding(0, "read", "x", "f32");
    code.binding(1, "read", "weights", "f32");
    code.binding(2, "read_write", "out", "f32");
    code.line(format!("var<workgroup> squares: array<f32, {THREADS}>;"));
    entry(code, THREADS, None, "");
    code.line(format!("let origin = group.y * {width}u;"));
    scale(code, cols, eps_bits);
    code.line(format!(
        "for (var d = thread; d < {padded}u; d += {THREADS}u) {{
        var value = 0.0;
        if (d < {cols}u) {{
        value = x[origin + d] * scale * weights[d];
        }}
        out[group.y * {padded}u + d] = value;
        }}
        }}"
    ));
}

pub(super) fn queries(code: &mut Code, k: &LatentQueriesKernel) {
    let LatentQueriesKernel { heads, still, rotary, width, padded, .. } = *k;
    code.binding(0, "read", "x", "f32");
    code.binding(1, "read", "angles", "vec2<f32>");
    code.binding(2, "read", "positions", "u32");
    code.binding(3, "read_write", "still", "f32");
    code.binding(4, "read_write", "queries", "f32");
    if k.scaled {
        code.binding(5, "read", "factors", "f32");
    }
    rotation(code, (rotary, k.layout), "x");
    entry(code, THREADS, None, "");
    code.line(format!(
        "let index = group.x * {THREADS}u + thread;
        if (index < {all}u) {{
        let row = group.y;
        let head = index / {each}u;
        let d = index % {each}u;
        let origin = row * {width}u + head * {dim}u;
        let to = row * {heads}u + head;
        if (d < {padded}u) {{
        var value = 0.0;
        if (d < {still}u) {{
        value = x[origin + d]{factor};
        }}
        still[to * {padded}u + d] = value;
        }} else {{
        let turned = rotated(origin + {still}u, d - {padded}u, positions[row]);
        queries[to * {latent}u + d - {padded}u] = turned{factor};
        }}
        }}
        }}",
        all = heads * k.written(),
        each = k.written(),
        dim = still + rotary,
        latent = k.head_dim(),
        factor = if k.scaled { " * factors[positions[row]]" } else { "" },
    ));
}

pub(super) fn keys(code: &mut Code, k: &LatentKeysKernel) {
    let LatentKeysKernel { rotary, rank, width, first, .. } = *k;
    code.binding(0, "read", "x", "f32");
    code.binding(1, "read", "angles", "vec2<f32>");
    code.binding(2, "read", "positions", "u32");
    code.binding(3, "read", "slots", "u32");
    code.binding(4, "read", "weights", "f32");
    code.binding(5, "read_write", "keys", word_type(k.format));
    code.line(format!(
        "var<workgroup> squares: array<f32, {THREADS}>;
        var<workgroup> key: array<f32, {}>;",
        k.head_dim()
    ));
    rotation(code, (rotary, k.layout), "x");
    if k.format == KvFormat::Q8 {
        quantization(code);
    }
    entry(code, THREADS, None, "");
    code.line(format!("let row = group.y;\nlet origin = row * {width}u + {first}u;"));
    scale(code, rank, k.eps_bits);
    code.line(format!(
        "for (var d = thread; d < {rank}u; d += {THREADS}u) {{
        key[{rotary}u + d] = x[origin + d] * scale * weights[d];
        }}
        for (var d = thread; d < {rotary}u; d += {THREADS}u) {{
        key[d] = rotated(origin + {rank}u, d, positions[row]);
        }}
        workgroupBarrier();
        let block = slots[row] / {KV_BLOCK_TOKENS}u;
        let offset = slots[row] % {KV_BLOCK_TOKENS}u;"
    ));
    match k.format {
        KvFormat::F16 => store_f16(code, k),
        KvFormat::Q8 => store_q8(code, k),
    }
    code.line("}");
}

/// A thread per 8 values.
fn store_f16(code: &mut Code, k: &LatentKeysKernel) {
    let halves: Vec<String> = (0..4)
        .map(|pair| format!("pack2x16float(vec2<f32>(key[d + {}u], key[d + {}u]))", 2 * pair, 2 * pair + 1))
        .collect();
    code.line(format!(
        "for (var word = thread; word < {words}u; word += {THREADS}u) {{
        let d = word * 8u;
        keys[(block * {words}u + word) * {KV_BLOCK_TOKENS}u + offset] = vec4<u32>(
        {},
        {},
        {},
        {}
        );
        }}",
        halves[0],
        halves[1],
        halves[2],
        halves[3],
        words = k.head_dim() / 8,
    ));
}

/// A thread per 64 values: two groups, whose scales are one word.
fn store_q8(code: &mut Code, k: &LatentKeysKernel) {
    let dim = k.head_dim();
    let quants = k.format.quants_words(dim) * 4;
    code.line(format!(
        "let plane = block * {plane}u;
        for (var pair = thread; pair < {pairs}u; pair += {THREADS}u) {{
        var scales = 0u;
        for (var half = 0u; half < 2u; half++) {{
        let start = pair * 64u + half * 32u;
        if (start < {dim}u) {{
        var peak = 0u;
        for (var d = start; d < start + 32u; d++) {{
        peak = max(peak, bitcast<u32>(key[d]) & 0x7fffffffu);
        }}
        let bits = scale_of(peak);
        let inverse = inverse_of(bits);
        scales |= bits << (16u * half);
        for (var d = start; d < start + 32u; d += 4u) {{
        let four = vec4<f32>(key[d], key[d + 1u], key[d + 2u], key[d + 3u]);
        let to = plane + (d / 16u * {KV_BLOCK_TOKENS}u + offset) * 4u + d / 4u % 4u;
        keys[to] = quants(four, inverse);
        }}
        }}
        }}
        keys[plane + {quants}u + pair * {KV_BLOCK_TOKENS}u + offset] = scales;
        }}",
        plane = quants + k.format.scale_words(dim) * 4,
        pairs = dim.div_ceil(64),
    ));
}
