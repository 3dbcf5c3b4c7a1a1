//! Operations on rows: norms, activations and quantization to 8 bits.
//!
//! A norm has one workgroup per row: thread `t` holds the 4-value words `t`, `t + 256`, ... and
//! adds their squares, in a layer norm first their values; the threads' sums are added by a
//! butterfly of shuffles within a subgroup, then over subgroups in their order (by a binary tree
//! without subgroups). The others have a thread per word.

use super::Code;
use super::output::{Output, entry, subgroup_sum};
use crate::activation::Activation;
use crate::kernel::{RowKernel, RowOp, Target};

/// Threads of a workgroup.
const ROW_THREADS: u32 = 256;

/// Workgroups per row.
pub(crate) fn workgroups_per_row(r: &RowKernel) -> u32 {
    if normalizes(r) { 1 } else { (r.cols / 4).div_ceil(ROW_THREADS) }
}

fn normalizes(r: &RowKernel) -> bool {
    !matches!(r.op, RowOp::Copy | RowOp::Part(_) | RowOp::Gated(_) | RowOp::GatedPart(..) | RowOp::Join)
}

/// True for norms that subtract the mean and add a bias.
fn centers(r: &RowKernel) -> bool {
    matches!(r.op, RowOp::LayerNorm(_) | RowOp::AddLayerNorm(_))
}

pub(super) fn emit(code: &mut Code, r: &RowKernel, target: Target) {
    let output = Output { cols: r.cols, quantize: r.quantize, threads: ROW_THREADS, target };
    head(code, r, &output);
    if let RowOp::Gated(activation) | RowOp::GatedPart(activation, _) = r.op {
        activate(code, activation);
    }
    let subgroup = target.subgroup.filter(|_| normalizes(r) || r.quantize);
    if normalizes(r)
        && let Some(size) = subgroup
    {
        subgroup_sum(code, size);
    }
    entry(code, ROW_THREADS, subgroup, "");
    code.line("let row = group.y;");
    match r.op {
        RowOp::RmsNorm(eps_bits)
        | RowOp::AddRmsNorm(eps_bits)
        | RowOp::AddScaledRmsNorm { eps_bits, .. }
        | RowOp::LayerNorm(eps_bits)
        | RowOp::AddLayerNorm(eps_bits) => norm(code, r, f32::from_bits(eps_bits), &output),
        RowOp::Copy => single(code, &output, "x[row * WORDS + word]"),
        RowOp::Gated(activation) if !activation.is_gated() => {
            single(code, &output, "activate(x[row * WORDS + word])");
        }
        RowOp::Gated(_) => {
            let value = "activate(x[row * 2u * WORDS + word], x[row * 2u * WORDS + WORDS + word])";
            single(code, &output, value);
        }
        RowOp::Part(part) => {
            let (words, wide, first) = (part.values / 4, part.width / 4, part.first / 4);
            let value = format!("x[row * {wide}u + {first}u + min(word, {}u)]", words - 1);
            single(code, &output, &format!("select(vec4<f32>(), {value}, word < {words}u)"));
        }
        RowOp::GatedPart(_, part) => {
            let (words, wide, first) = (part.values / 4, part.width / 4, part.first / 4);
            let value = format!(
                "activate(x[row * {words}u + min(word, {last}u)], up[row * {wide}u + {first}u + min(word, {last}u)])",
                last = words - 1
            );
            let is_whole = part.values == r.cols;
            let zero = format!("select(vec4<f32>(), {value}, word < {words}u)");
            single(code, &output, if is_whole { &value } else { &zero });
        }
        RowOp::Join => {
            // Indexes of the half that is not taken stay within its rows.
            let half = r.cols / 8;
            let left = format!("x[row * {half}u + min(word, {}u)]", half - 1);
            let right = format!("y[row * {half}u + max(word, {half}u) - {half}u]");
            single(code, &output, &format!("select({right}, {left}, word < {half}u)"));
        }
    }
    code.line("}");
}

fn head(code: &mut Code, r: &RowKernel, output: &Output) {
    let inputs: &[(&str, &str)] = match r.op {
        RowOp::Copy | RowOp::Part(_) | RowOp::Gated(_) => &[("read", "x")],
        RowOp::GatedPart(..) => &[("read", "x"), ("read", "up")],
        RowOp::Join => &[("read", "x"), ("read", "y")],
        RowOp::RmsNorm(_) => &[("read", "x"), ("read", "weight")],
        RowOp::AddRmsNorm(_) | RowOp::AddScaledRmsNorm { .. } => {
            &[("read_write", "x"), ("read", "delta"), ("read", "weight")]
        }
        RowOp::LayerNorm(_) => &[("read", "x"), ("read", "weight"), ("read", "bias")],
        RowOp::AddLayerNorm(_) => {
            &[("read_write", "x"), ("read", "delta"), ("read", "weight"), ("read", "bias")]
        }
    };
    for (index, (access, name)) in (0..).zip(inputs) {
        code.binding(index, access, name, "vec4<f32>");
    }
    output.declare(code, inputs.len() as u32);
    if normalizes(r) {
        let sums = ROW_THREADS / output.target.subgroup.unwrap_or(1);
        code.line(format!("var<workgroup> squares: array<f32, {sums}>;"));
    }
}

fn activate(code: &mut Code, activation: Activation) {
    let up = if activation.is_gated() { ", up: vec4<f32>" } else { "" };
    code.line(format!("fn activate(x: vec4<f32>{up}) -> vec4<f32> {{"));
    match activation {
        // Bounds keep exp and tanh within the range that every driver computes.
        Activation::Silu => code.line("return x / (1.0 + exp(min(-x, vec4<f32>(80.0)))) * up;"),
        Activation::GeluTanh => code.line(
            "let inner = 0.7978845608 * fma(0.044715 * x * x, x, x);
            return 0.5 * x * (1.0 + tanh(clamp(inner, vec4<f32>(-15.0), vec4<f32>(15.0)))) * up;",
        ),
        Activation::ClampedSilu { alpha_bits, limit_bits } => code.line(format!(
            "let limit = vec4<f32>({limit:?});
            let gate = min(x, limit);
            let factor = 1.0 + clamp(up, -limit, limit);
            return gate / (1.0 + exp(min(-{alpha:?} * gate, vec4<f32>(80.0)))) * factor;",
            limit = f32::from_bits(limit_bits),
            alpha = f32::from_bits(alpha_bits),
        )),
        Activation::SquaredRelu => code.line("return select(x * x, vec4<f32>(), x < vec4<f32>());"),
    }
    code.line("}");
}

fn single(code: &mut Code, output: &Output, value: &str) {
    code.line(format!(
        "let word = group.x * {ROW_THREADS}u + thread;
        var value = vec4<f32>();
        if (word < WORDS) {{
        value = {value};
        }}"
    ));
    output.store(code);
}

fn norm(code: &mut Code, r: &RowKernel, eps: f32, output: &Output) {
    let words = r.cols / 4;
    let steps = words.div_ceil(ROW_THREADS);
    code.line("var sum = 0.0;");
    for s in 0..steps {
        code.line(format!(
            "let word{s} = {}u + thread;\nvar value{s} = vec4<f32>();\nvar weight{s} = vec4<f32>();",
            s * ROW_THREADS
        ));
        if centers(r) {
            code.line(format!("var bias{s} = vec4<f32>();"));
        }
    }
    for s in 0..steps {
        code.line(format!("if (word{s} < WORDS) {{\nweight{s} = weight[word{s}];"));
        if centers(r) {
            code.line(format!("bias{s} = bias[word{s}];"));
        }
        let (x, delta) = (format!("x[row * WORDS + word{s}]"), format!("delta[row * WORDS + word{s}]"));
        match r.op {
            RowOp::AddRmsNorm(_) | RowOp::AddLayerNorm(_) => {
                code.line(format!("value{s} = {x} + {delta};\n{x} = value{s};"));
            }
            RowOp::AddScaledRmsNorm { scale_bits, .. } => code.line(format!(
                "value{s} = fma(vec4<f32>({:?}), {delta}, {x});\n{x} = value{s};",
                f32::from_bits(scale_bits)
            )),
            _ => code.line(format!("value{s} = {x};")),
        }
        code.line("}");
    }
    if centers(r) {
        center(code, r, output.target);
    }
    for s in 0..steps {
        let v = format!("value{s}");
        code.line(format!(
            "sum = fma({v}.w, {v}.w, fma({v}.z, {v}.z, fma({v}.y, {v}.y, fma({v}.x, {v}.x, sum))));"
        ));
    }
    let sums = sum_threads(code, output.target);
    code.line(format!(
        "var squared = squares[0];
        for (var o = 1u; o < {sums}u; o++) {{
        squared += squares[o];
        }}
        let scale = inverseSqrt(squared / {:?} + {eps:?});",
        r.cols as f32
    ));
    for s in 0..steps {
        let value = match centers(r) {
            true => format!("fma(value{s} * scale, weight{s}, bias{s})"),
            false => format!("value{s} * scale * weight{s}"),
        };
        code.line(format!("{{\nlet word = word{s};\nlet value = {value};"));
        output.store(code);
        code.line("}");
    }
}

/// Subtracts the mean from the values of a row. The threads' sums are added as their squares are
/// later.
fn center(code: &mut Code, r: &RowKernel, target: Target) {
    let steps = (r.cols / 4).div_ceil(ROW_THREADS);
    code.line("var mean = 0.0;\n{");
    for s in 0..steps {
        code.line(format!("sum += (value{s}.x + value{s}.y) + (value{s}.z + value{s}.w);"));
    }
    let sums = sum_threads(code, target);
    code.line(format!(
        "for (var o = 0u; o < {sums}u; o++) {{
        mean += squares[o];
        }}
        mean = mean / {:?};
        workgroupBarrier(); // before the next sums
        }}",
        r.cols as f32
    ));
    for s in 0..steps {
        code.line(format!("value{s} = select(vec4<f32>(), value{s} - mean, word{s} < WORDS);"));
    }
    code.line("sum = 0.0;");
}

/// Leaves sums of the threads' `sum` in `squares`; returns their number.
fn sum_threads(code: &mut Code, target: Target) -> u32 {
    if let Some(size) = target.subgroup {
        code.line(
            "let total = subgroup_sum(sum);
            if (invocation == 0u) {
            squares[subgroup] = total;
            }
            workgroupBarrier();",
        );
        return ROW_THREADS / size;
    }
    sum_tree(code, ROW_THREADS);
    1
}

/// Adds the `sum` of each of `threads` threads in a binary tree, into `squares[0]`.
pub(super) fn sum_tree(code: &mut Code, threads: u32) {
    code.line("squares[thread] = sum;\nworkgroupBarrier();");
    let mut stride = threads / 2;
    while stride > 0 {
        code.line(format!(
            "if (thread < {stride}u) {{
            squares[thread] += squares[thread + {stride}u];
            }}
            workgroupBarrier();"
        ));
        stride /= 2;
    }
}
