//! Low-rank updates: components of rows, and their expansion into outputs.
//!
//! Shrink: a workgroup has one or four components of one or four rows of a list's entry. Thread `t`
//! adds the 4-value words `t`, `t + 256`, ... of a row of `A`; the threads' sums are added by a
//! binary tree. Expand: a thread has a word of 4 outputs of one or four rows and adds the
//! components in their order. A row has the same sums in every division.

use super::Code;
use super::output::entry;
use crate::low_rank_key::{LowRankKernel, LowRankRoom, LowRankStep};

/// Threads of a workgroup of the first half; they share the columns.
const SHRINK_THREADS: u32 = 256;

/// Threads of a workgroup of the second half.
const EXPAND_THREADS: u32 = 64;

/// Words whose loads a thread issues together.
const UNROLL: u32 = 4;

/// Grid for `rows` rows.
pub(crate) fn low_rank_grid(key: &LowRankKernel, rows: u32) -> (u32, u32) {
    let LowRankRoom { width, components, .. } = key.room;
    let tiles = rows.div_ceil(key.tile);
    match key.step {
        LowRankStep::Shrink { .. } => (components.div_ceil(own_components(key)), tiles * key.terms),
        LowRankStep::Expand => (width.div_ceil(4 * EXPAND_THREADS), tiles),
    }
}

/// Bytes of workgroup memory.
pub(crate) fn low_rank_bytes(key: &LowRankKernel) -> u32 {
    match key.step {
        LowRankStep::Shrink { .. } => 4 * own_components(key) * key.tile * SHRINK_THREADS,
        LowRankStep::Expand => 0,
    }
}

/// Components of a workgroup.
fn own_components(key: &LowRankKernel) -> u32 {
    if key.tile == 1 { 1 } else { 4 }
}

pub(super) fn emit(code: &mut Code, key: &LowRankKernel) {
    let LowRankRoom { cols, components, words, f16, .. } = key.room;
    code.line(format!(
        "const NONE: u32 = 0xffffffffu; // no slot
        const TERMS: u32 = {}u; // entries of a list
        const SHAPE: u32 = {}u; // words that describe a slot
        const SLOT: u32 = {words}u; // words of factors per slot
        const COMPONENTS: u32 = {components}u; // per entry of a row",
        key.terms,
        key.room.shape_words()
    ));
    code.binding(0, "read", "factors", if f16 { "vec2<u32>" } else { "vec4<f32>" });
    code.binding(1, "read", "shapes", "u32");
    code.binding(2, "read", "lists", "vec2<u32>");
    code.line("fn factor(at: u32) -> vec4<f32> {");
    code.line(match f16 {
        true => "let w = factors[at];\nreturn vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y));",
        false => "return factors[at];",
    });
    code.line("}");
    match key.step {
        LowRankStep::Shrink { quantized } => {
            code.line(format!("const WORDS: u32 = {}u; // 4-value words per input row", cols / 4));
            shrink(code, key, quantized);
        }
        LowRankStep::Expand => expand(code, key),
    }
    code.line("}");
}

/// Index of the list of the workgroup's rows.
fn list(key: &LowRankKernel) -> &'static str {
    if key.one_list { "0u" } else { "first_row" }
}

fn shrink(code: &mut Code, key: &LowRankKernel, quantized: bool) {
    let (own, tile) = (own_components(key), key.tile);
    let sums: Vec<(u32, u32)> = (0..own).flat_map(|c| (0..tile).map(move |r| (c, r))).collect();
    if quantized {
        code.binding(3, "read", "x", "u32");
        code.binding(4, "read", "x_scales", "vec2<u32>");
        code.line(format!("const GROUPS: u32 = {}u; // groups of 32 values per row", key.room.cols / 32));
    } else {
        code.binding(3, "read", "x", "vec4<f32>");
    }
    code.binding(if quantized { 5 } else { 4 }, "read_write", "components", "f32");
    code.line("fn input(row: u32, word: u32) -> vec4<f32> {");
    code.line(match quantized {
        true => {
            "let block = word >> 3u;
            let scale = bitcast<f32>(x_scales[row * GROUPS + block].x);
            let at = ((row * 2u + ((word >> 2u) & 1u)) * GROUPS + block) * 4u + (word & 3u);
            return scale * vec4<f32>(unpack4xI8(x[at]));"
        }
        false => "return x[row * WORDS + word];",
    });
    code.line("}");
    code.line(format!("var<workgroup> partial: array<f32, {}>;", sums.len() as u32 * SHRINK_THREADS));
    entry(code, SHRINK_THREADS, None, "");
    code.line(format!(
        "let term = group.y % TERMS;
        let first_row = group.y / TERMS * {tile}u;
        let entry = lists[{list} * TERMS + term];
        if (entry.x == NONE) {{
        return;
        }}
        let total = shapes[entry.x * SHAPE];
        let first = group.x * {own}u;
        if (first >= total) {{
        return;
        }}",
        list = list(key)
    ));
    for c in 0..own {
        code.line(format!("let a{c} = entry.x * SLOT + min(first + {c}u, total - 1u) * WORDS;"));
    }
    for &(c, r) in &sums {
        code.line(format!("var sum{c}_{r} = 0.0;"));
    }
    shrink_steps(code, key);
    for (index, &(c, r)) in sums.iter().enumerate() {
        code.line(format!("partial[{}u + thread] = sum{c}_{r};", index as u32 * SHRINK_THREADS));
    }
    code.line("workgroupBarrier();");
    tree(code, sums.len() as u32);
    code.line(format!(
        "if (thread < {}u) {{
        let component = first + thread / {tile}u;
        if (component < total) {{
        let row = first_row + thread % {tile}u;
        let value = bitcast<f32>(entry.y) * partial[thread * {SHRINK_THREADS}u];
        components[(row * TERMS + term) * COMPONENTS + component] = value;
        }}
        }}",
        sums.len()
    ));
}

/// Adds the threads' sums, `sums` of them.
fn tree(code: &mut Code, sums: u32) {
    let mut stride = SHRINK_THREADS / 2;
    while stride > 0 {
        code.line(format!(
            "if (thread < {stride}u) {{
            for (var o = 0u; o < {sums}u; o++) {{
            partial[o * {SHRINK_THREADS}u + thread] += partial[o * {SHRINK_THREADS}u + thread + {stride}u];
            }}
            }}
            workgroupBarrier();"
        ));
        stride /= 2;
    }
}

fn shrink_steps(code: &mut Code, key: &LowRankKernel) {
    let words = key.room.cols / 4;
    let (full, rest) = (words / SHRINK_THREADS, words % SHRINK_THREADS);
    let unroll = UNROLL.min(full).max(1);
    let looped = full / unroll * unroll;
    if looped > 0 {
        code.line(format!("for (var step = 0u; step < {looped}u; step += {unroll}u) {{"));
        shrink_group(code, key, unroll, |u| format!("thread + (step + {u}u) * {SHRINK_THREADS}u"));
        code.line("}");
    }
    if full > looped {
        code.line("{");
        shrink_group(code, key, full - looped, |u| format!("thread + {}u", (looped + u) * SHRINK_THREADS));
        code.line("}");
    }
    if rest > 0 {
        code.line(format!("if (thread < {rest}u) {{"));
        shrink_group(code, key, 1, |_| format!("thread + {}u", full * SHRINK_THREADS));
        code.line("}");
    }
}

/// Some words: all loads, then the arithmetic.
fn shrink_group(code: &mut Code, key: &LowRankKernel, unroll: u32, index: impl Fn(u32) -> String) {
    let (own, tile) = (own_components(key), key.tile);
    for u in 0..unroll {
        code.line(format!("let i{u} = {};", index(u)));
        for c in 0..own {
            code.line(format!("let w{u}_{c} = factor(a{c} + i{u});"));
        }
        for r in 0..tile {
            code.line(format!("let x{u}_{r} = input(first_row + {r}u, i{u});"));
        }
    }
    for u in 0..unroll {
        for c in 0..own {
            for r in 0..tile {
                let (sum, w, x) = (format!("sum{c}_{r}"), format!("w{u}_{c}"), format!("x{u}_{r}"));
                code.line(format!(
                    "{sum} = fma({w}.w, {x}.w, fma({w}.z, {x}.z, fma({w}.y, {x}.y, fma({w}.x, {x}.x, {sum}))));"
                ));
            }
        }
    }
}

fn expand(code: &mut Code, key: &LowRankKernel) {
    let (width, tile) = (key.room.width, key.tile);
    let whole = width.is_multiple_of(4);
    code.binding(3, "read", "components", "f32");
    code.binding(4, "read_write", "y", if whole { "vec4<f32>" } else { "f32" });
    code.line(format!("const WORDS: u32 = {}u; // 4-value words per output row", width.div_ceil(4)));
    entry(code, EXPAND_THREADS, None, "");
    code.line(format!(
        "let word = group.x * {EXPAND_THREADS}u + thread;
        let first_row = group.y * {tile}u;
        if (word >= WORDS || lists[{list} * TERMS].x == NONE) {{
        return;
        }}",
        list = list(key)
    ));
    for r in 0..tile {
        if whole {
            code.line(format!("let at{r} = (first_row + {r}u) * WORDS + word;\nvar y{r} = y[at{r}];"));
        } else {
            code.line(format!("let at{r} = (first_row + {r}u) * {width}u;"));
            let value = |j| format!("y[at{r} + min(4u * word + {j}u, {}u)]", width - 1);
            code.line(format!("var y{r} = vec4<f32>(\n{}\n);", [0, 1, 2, 3].map(value).join(",\n")));
        }
    }
    code.line(format!(
        "for (var term = 0u; term < TERMS; term++) {{
        let slot = lists[{list} * TERMS + term].x;
        if (slot == NONE) {{
        break;
        }}
        let count = shapes[slot * SHAPE + 1u];
        for (var e = 0u; e < count; e++) {{
        let shape = slot * SHAPE + 2u + 5u * e;
        let place = word - shapes[shape + 2u];
        let words = shapes[shape + 3u];
        if (place < words) {{
        let start = slot * SLOT + shapes[shape + 4u] + place;
        let rank = shapes[shape + 1u];
        var i = 0u;
        while (i + {UNROLL}u <= rank) {{",
        list = list(key)
    ));
    for r in 0..tile {
        let start = format!("((first_row + {r}u) * TERMS + term) * COMPONENTS + shapes[shape]");
        code.line(format!("let u{r} = {start} + i;"));
    }
    expand_group(code, tile, UNROLL);
    code.line(format!("i += {UNROLL}u;\n}}\nwhile (i < rank) {{"));
    for r in 0..tile {
        let start = format!("((first_row + {r}u) * TERMS + term) * COMPONENTS + shapes[shape]");
        code.line(format!("let u{r} = {start} + i;"));
    }
    expand_group(code, tile, 1);
    code.line("i += 1u;\n}\n}\n}\n}");
    for r in 0..tile {
        if whole {
            code.line(format!("y[at{r}] = y{r};"));
            continue;
        }
        for (j, part) in ["x", "y", "z", "w"].iter().enumerate() {
            let value = format!("4u * word + {j}u");
            code.line(format!("if ({value} < {width}u) {{\ny[at{r} + {value}] = y{r}.{part};\n}}"));
        }
    }
}

/// Some components: all loads, then the arithmetic.
fn expand_group(code: &mut Code, tile: u32, unroll: u32) {
    for u in 0..unroll {
        code.line(format!("let b{u} = factor(start + (i + {u}u) * words);"));
    }
    for u in 0..unroll {
        for r in 0..tile {
            code.line(format!("y{r} = fma(vec4<f32>(components[u{r} + {u}u]), b{u}, y{r});"));
        }
    }
}
