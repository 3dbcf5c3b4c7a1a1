//! Outputs of experts: biases, weights, and their sum.

use super::PAIR_THREADS;
use crate::expert_keys::{ExpertAffineKernel, ExpertScaleKernel, ExpertSumKernel, SumStart};
use crate::wgsl::Code;
use crate::wgsl::output::entry;

/// `y = factor y + bias`, a thread per word.
pub(in crate::wgsl) fn affine(code: &mut Code, k: &ExpertAffineKernel) {
    let ExpertAffineKernel { experts, cols, weighted, biased } = *k;
    code.line(format!("const WORDS: u32 = {}u; // 4-value words per pair", cols / 4));
    code.binding(0, "read_write", "y", "vec4<f32>");
    let mut next = 1;
    if weighted {
        code.binding(next, "read", "weights", "f32");
        next += 1;
    }
    if biased {
        code.binding(next, "read", "experts", "u32");
        code.binding(next + 1, "read", "bias", "vec4<f32>");
    }
    entry(code, PAIR_THREADS, None, "");
    code.line(format!(
        "let pair = group.y;
        let word = group.x * {PAIR_THREADS}u + thread;
        if (word < WORDS) {{"
    ));
    let value = "y[pair * WORDS + word]";
    let bias = format!("bias[min(experts[pair], {}u) * WORDS + word]", experts - 1);
    code.line(match (weighted, biased) {
        (true, true) => format!("{value} = fma(vec4<f32>(weights[pair]), {value}, {bias});"),
        (true, false) => format!("{value} *= weights[pair];"),
        _ => format!("{value} += {bias};"),
    });
    code.line("}\n}");
}

/// The weight of each pair times the factor of its expert; a thread per pair.
pub(in crate::wgsl) fn scale(code: &mut Code, k: &ExpertScaleKernel) {
    code.binding(0, "read", "experts", "u32");
    code.binding(1, "read", "scales", "f32");
    code.binding(2, "read_write", "weights", "f32");
    entry(code, PAIR_THREADS, None, "");
    code.line(format!(
        "let pair = group.x * {PAIR_THREADS}u + thread;
        if (pair < {}u) {{
        weights[pair] *= scales[min(experts[pair], {}u)];
        }}
        }}",
        k.pairs,
        k.experts - 1
    ));
}

/// The sum of a row's outputs, in the order of its experts; a thread per word.
pub(in crate::wgsl) fn sum(code: &mut Code, k: &ExpertSumKernel) {
    let ExpertSumKernel { cols, used, weighted, start } = *k;
    code.line(format!("const WORDS: u32 = {}u; // 4-value words per row", cols / 4));
    code.binding(0, "read", "y", "vec4<f32>");
    let mut next = 1;
    if weighted {
        code.binding(next, "read", "weights", "f32");
        next += 1;
    }
    if matches!(start, SumStart::GatedOutput { .. }) {
        code.binding(next, "read", "gates", "f32");
        next += 1;
    }
    code.binding(next, "read_write", "out", "vec4<f32>");
    entry(code, PAIR_THREADS, None, "");
    code.line(format!(
        "let row = group.y;
        let word = group.x * {PAIR_THREADS}u + thread;
        if (word < WORDS) {{"
    ));
    match start {
        SumStart::Zero => code.line("var sum = vec4<f32>();"),
        SumStart::Output => code.line("var sum = out[row * WORDS + word];"),
        SumStart::GatedOutput { width, at } => code.line(format!(
            "let gate = 1.0 / (1.0 + exp(min(-gates[row * {width}u + {at}u], 80.0)));
            var sum = out[row * WORDS + word] * gate;"
        )),
    }
    for i in 0..used {
        let output = format!("y[(row * {used}u + {i}u) * WORDS + word]");
        code.line(if weighted {
            format!("sum = fma(vec4<f32>(weights[row * {used}u + {i}u]), {output}, sum);")
        } else {
            format!("sum += {output};")
        });
    }
    code.line("out[row * WORDS + word] = sum;\n}\n}");
}
