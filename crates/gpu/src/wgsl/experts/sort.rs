//! Sort of pairs of a row and an expert by expert, those of one expert by their index.
//!
//! A workgroup per expert: each thread counts the expert's pairs and those of lower experts among
//! its own part of the pairs; sums of the counts before it give each pair its place. Tiles of an
//! expert begin at `offset / tile + expert`, with the number of pairs of lower experts as the
//! offset: no expert has to know how many tiles those before it fill. Tiles without pairs are
//! marked.

use crate::expert_keys::{ExpertStack, SortKernel};
use crate::wgsl::Code;
use crate::wgsl::output::entry;

/// Threads of a workgroup.
const THREADS: u32 = 256;

pub(in crate::wgsl) fn emit(code: &mut Code, k: &SortKernel) {
    let SortKernel { pairs, tile, .. } = *k;
    code.binding(0, "read", "experts", "u32");
    code.binding(1, "read_write", "sorted", "u32");
    code.binding(2, "read_write", "tiles", "vec4<u32>");
    code.line(format!("var<workgroup> counts: array<vec2<u32>, {THREADS}>; // of the expert, of lower ones"));
    entry(code, THREADS, None, "");
    let part = pairs.div_ceil(THREADS);
    code.line(format!(
        "let expert = group.x;
        let begin = min(thread * {part}u, {pairs}u);
        let end = min(begin + {part}u, {pairs}u);
        var count = vec2<u32>();
        for (var i = begin; i < end; i++) {{
        let other = experts[i];
        count += vec2<u32>(select(0u, 1u, other == expert), select(0u, 1u, other < expert));
        }}
        counts[thread] = count;
        workgroupBarrier();"
    ));
    let mut stride = 1;
    while stride < THREADS {
        code.line(format!(
            "{{
            let before = select(vec2<u32>(), counts[max(thread, {stride}u) - {stride}u], thread >= {stride}u);
            workgroupBarrier();
            counts[thread] += before;
            workgroupBarrier();
            }}"
        ));
        stride *= 2;
    }
    let last = THREADS - 1;
    code.line(format!(
        "let total = counts[{last}u].x;
        let offset = counts[{last}u].y;
        var place = offset + counts[thread].x - count.x;
        for (var i = begin; i < end; i++) {{
        if (experts[i] == expert) {{
        sorted[place] = i;
        place++;
        }}
        }}
        let first = offset / {tile}u + expert;
        let behind = (offset + total) / {tile}u + expert + 1u;
        for (var t = first + thread; t < behind; t += {THREADS}u) {{
        let start = (t - first) * {tile}u;
        let n = select(0u, min({tile}u, max(total, start) - start), start < total);
        tiles[t] = vec4<u32>(expert, offset + start, n, 0u);
        }}
        }}"
    ));
}

/// Bindings of sorted pairs from `first` on, and their place in workgroup memory; returns their
/// number.
pub(in crate::wgsl) fn declare_tile(code: &mut Code, first: u32, batch: u32) -> u32 {
    code.binding(first, "read", "sorted", "u32");
    code.binding(first + 1, "read", "tiles", "vec4<u32>");
    code.line(format!("var<workgroup> tile_pairs: array<u32, {batch}>;"));
    2
}

/// Reads the tile of a workgroup, and leaves if it is empty: `expert_row`, its first weight row,
/// `own_pairs`, their number, and the pairs, the first ones again behind the last.
pub(in crate::wgsl) fn fetch_tile(code: &mut Code, stack: &ExpertStack, axis: &str, batch: u32) {
    code.line(format!(
        "let tile = tiles[group.{axis}];
        let own_pairs = tile.z;
        if (own_pairs == 0u) {{
        return;
        }}
        let expert_row = min(tile.x, {}u) * ROWS;
        if (thread < {batch}u) {{
        tile_pairs[thread] = sorted[tile.y + min(thread, own_pairs - 1u)];
        }}
        workgroupBarrier();",
        stack.experts - 1
    ));
}
