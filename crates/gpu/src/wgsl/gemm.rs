//! Matrix products of many activation rows (prefill), in tiles of workgroup memory.
//!
//! A workgroup of 256 threads has 64 weight rows and up to 64 activation rows; a thread has every
//! 16th of both. Each output adds its steps in their order, so that its bits depend on nothing but
//! its row and its activations.

//!
//! With matrices of experts the activation rows of a workgroup are sorted pairs of a row and an
//! expert, all of one expert.

use super::Code;
use super::experts::{declare_tile, fetch_tile};
use super::output::entry;
use super::weights::Weights;
use crate::expert_keys::ExpertStack;
use crate::kernel::{GemmKernel, Target};
use crate::repack::Format;

/// Weight rows of a workgroup.
const TILE_ROWS: u32 = 64;
/// Threads along each side of a tile.
const SIDE: u32 = 16;
/// Steps between two barriers.
const STAGE: u32 = 2;

/// Workgroups for a batch.
pub(crate) fn gemm_grid(g: &GemmKernel, batch: u32) -> (u32, u32) {
    (g.rows.div_ceil(TILE_ROWS), batch.div_ceil(g.tile_batch))
}

pub(super) fn emit(code: &mut Code, g: &GemmKernel, stack: Option<&ExpertStack>, target: Target) {
    let weights = Weights::new(g.format, target);
    let planes = weights.declare(code, g.rows, g.cols);
    head(code, g, stack, planes);
    entry(code, SIDE * SIDE, None, "");
    weights.prepare(code, SIDE * SIDE);
    match stack {
        Some(stack) => fetch_tile(code, stack, "y", g.tile_batch),
        None => code.line(format!(
            "let batch = arrayLength(&x) / (2u * STEPS);\nlet tile_batch = group.y * {}u;",
            g.tile_batch
        )),
    }
    code.line(format!(
        "let tile_row = group.x * {TILE_ROWS}u;\nlet r = thread % {SIDE}u;\nlet b = thread / {SIDE}u;"
    ));
    let (down, across) = (TILE_ROWS / SIDE, g.tile_batch / SIDE);
    let sums = || (0..down).flat_map(move |i| (0..across).map(move |j| (i, j)));
    for (i, j) in sums() {
        code.line(format!("var sum{i}_{j} = 0.0;"));
    }
    code.line(format!("for (var stage = 0u; stage < STEPS; stage += {STAGE}u) {{"));
    load_weights(code, weights, stack);
    load_activations(code, g, stack);
    code.line("workgroupBarrier();");
    let ragged = !(g.cols / g.format.step_values()).is_multiple_of(STAGE);
    for k in 0..STAGE {
        code.line(if ragged { format!("if (stage + {k}u < STEPS) {{") } else { "{".to_owned() });
        if g.format == Format::F16 {
            step_f32(code, g, k, (down, across));
        } else {
            step_integer(code, g, weights, k, (down, across));
        }
        code.line("}");
    }
    code.line("workgroupBarrier();\n}");
    store(code, g, stack, (down, across));
    code.line("}");
}

/// Bindings behind the weights, workgroup memory and helpers.
fn head(code: &mut Code, g: &GemmKernel, stack: Option<&ExpertStack>, planes: u32) {
    let (rows, batch) = (TILE_ROWS * STAGE, g.tile_batch * STAGE);
    let mut next = planes;
    let mut bind = |code: &mut Code, access: &str, name: &str, element: &str| {
        code.binding(next, access, name, element);
        next += 1;
        next
    };
    let whole = g.format == Format::F16;
    let behind = if whole {
        bind(code, "read", "x", "vec4<f32>")
    } else {
        bind(code, "read", "x", "vec4<u32>");
        bind(code, "read", "x_scales", "vec2<u32>")
    };
    let pairs = stack.map_or(0, |_| declare_tile(code, behind, g.tile_batch));
    code.binding(behind + pairs, "read_write", "y", "f32");
    if whole {
        code.line(format!(
            "var<workgroup> tile_w: array<vec4<f32>, {}>;\nvar<workgroup> tile_x: array<vec4<f32>, {}>;",
            2 * rows,
            2 * batch
        ));
        code.line(
            "fn add4(sum: f32, w: vec4<f32>, x: vec4<f32>) -> f32 {
            return fma(w.w, x.w, fma(w.z, x.z, fma(w.y, x.y, fma(w.x, x.x, sum))));
            }",
        );
    } else {
        code.line(format!(
            "var<workgroup> tile_a: array<vec4<u32>, {rows}>; // first halves of groups
            var<workgroup> tile_c: array<vec4<u32>, {rows}>; // second halves
            var<workgroup> tile_f: array<vec2<u32>, {rows}>; // factors
            var<workgroup> tile_low: array<vec4<u32>, {batch}>;
            var<workgroup> tile_high: array<vec4<u32>, {batch}>;
            var<workgroup> tile_g: array<vec2<u32>, {batch}>;"
        ));
        Weights::dot16(code);
    }
}

/// Stores the sums of a thread.
fn store(code: &mut Code, g: &GemmKernel, stack: Option<&ExpertStack>, (down, across): (u32, u32)) {
    let first = if g.first == 0 { String::new() } else { format!("{}u + ", g.first) };
    for j in 0..across {
        let to = format!("b + {}u", j * SIDE);
        let (exists, row) = match stack {
            Some(_) => (format!("{to} < own_pairs"), format!("tile_pairs[{to}]")),
            None => (format!("tile_batch + {to} < batch"), format!("(tile_batch + {to})")),
        };
        code.line(format!("if ({exists}) {{"));
        for i in 0..down {
            code.line(format!(
                "if (tile_row + r + {at}u < ROWS) {{
                y[{row} * {width}u + {first}tile_row + r + {at}u] = sum{i}_{j};
                }}",
                at = i * SIDE,
                width = g.width
            ));
        }
        code.line("}");
    }
}

/// The first threads unpack a step of a row each.
fn load_weights(code: &mut Code, weights: Weights, stack: Option<&ExpertStack>) {
    let rows = TILE_ROWS;
    let expert = if stack.is_some() { "expert_row + " } else { "" };
    code.line(format!(
        "if (thread < {}u) {{
        let i0 = min(stage + thread / {rows}u, STEPS - 1u);
        let row0 = ({expert}min(tile_row + thread % {rows}u, ROWS - 1u)) * STEPS;",
        rows * STAGE
    ));
    weights.load(code, 0, 0);
    weights.unpack(code, 0, 0);
    if weights.format == Format::F16 {
        // Layout: [stage, half, row].
        code.line(format!("let to = thread / {rows}u * {}u + thread % {rows}u;", 2 * rows));
        for (half, pair) in ["xy", "zw"].iter().enumerate() {
            let value = |part: usize| weights.values("0_0", "w", &pair[part..=part]);
            code.line(format!(
                "tile_w[to + {}u] = vec4<f32>({}, {});",
                half as u32 * rows,
                value(0),
                value(1)
            ));
        }
    } else {
        let factors = match weights.format {
            Format::Q4K | Format::Q5K => "vec2<u32>(bitcast<u32>(d0_0), bitcast<u32>(m0_0))",
            Format::Q6K => "vec2<u32>(bitcast<u32>(d0_0), f0_0)",
            _ => "vec2<u32>(bitcast<u32>(d0_0), 0u)",
        };
        code.line(format!("tile_a[thread] = a0_0;\ntile_c[thread] = c0_0;\ntile_f[thread] = {factors};"));
    }
    code.line("}");
}

/// The last threads load a step of an activation row each.
fn load_activations(code: &mut Code, g: &GemmKernel, stack: Option<&ExpertStack>) {
    let n = g.tile_batch;
    let before = SIDE * SIDE - n * STAGE;
    let row = match stack {
        Some(stack) => format!("tile_pairs[at % {n}u] / {}u", stack.sharing),
        None => format!("min(tile_batch + at % {n}u, batch - 1u)"),
    };
    code.line(format!(
        "if (thread >= {before}u) {{
        let at = thread - {before}u;
        let i = min(stage + at / {n}u, STEPS - 1u);
        let row = {row};"
    ));
    if g.format == Format::F16 {
        code.line(format!(
            "let to = at / {n}u * {}u + at % {n}u;
            tile_x[to] = x[(row * STEPS + i) * 2u];
            tile_x[to + {n}u] = x[(row * STEPS + i) * 2u + 1u];",
            2 * n
        ));
    } else {
        code.line(
            "tile_low[at] = x[row * 2u * STEPS + i];
            tile_high[at] = x[(row * 2u + 1u) * STEPS + i];
            tile_g[at] = x_scales[row * STEPS + i];",
        );
    }
    code.line("}");
}

fn step_f32(code: &mut Code, g: &GemmKernel, k: u32, (down, across): (u32, u32)) {
    for half in 0..2 {
        for i in 0..down {
            let at = (2 * k + half) * TILE_ROWS + i * SIDE;
            code.line(format!("let w{half}_{i} = tile_w[{at}u + r];"));
        }
        for j in 0..across {
            let at = (2 * k + half) * g.tile_batch + j * SIDE;
            code.line(format!("let x{half}_{j} = tile_x[{at}u + b];"));
            for i in 0..down {
                code.line(format!("sum{i}_{j} = add4(sum{i}_{j}, w{half}_{i}, x{half}_{j});"));
            }
        }
    }
}

fn step_integer(code: &mut Code, g: &GemmKernel, weights: Weights, k: u32, (down, across): (u32, u32)) {
    for i in 0..down {
        let at = format!("{}u + r", k * TILE_ROWS + i * SIDE);
        code.line(format!(
            "let a{i} = tile_a[{at}];\nlet c{i} = tile_c[{at}];\nlet f{i} = tile_f[{at}].y;
            let d{i} = bitcast<f32>(tile_f[{at}].x);"
        ));
        weights.unpack_factors(code, &i.to_string());
    }
    for j in 0..across {
        let at = format!("{}u + b", k * g.tile_batch + j * SIDE);
        code.line(format!(
            "let low{j} = tile_low[{at}];\nlet high{j} = tile_high[{at}];\nlet g{j} = tile_g[{at}];"
        ));
        weights.unpack_scales(code, &j.to_string());
        for i in 0..down {
            weights.accumulate(code, &format!("sum{i}_{j}"), &i.to_string(), &j.to_string());
        }
    }
}
