//! Causal convolution: a thread has 4 channels of some rows, and the inputs before them in
//! registers.

use super::{NO_STATE, begin_rows, end_rows};
use crate::state_keys::{ConvolutionForm, ConvolutionKernel};
use crate::wgsl::Code;
use crate::wgsl::output::entry;

/// Threads of a workgroup; a thread per 4 channels.
pub(crate) const THREADS: u32 = 64;

/// Rows of a workgroup for the rows of one sequence.
pub(crate) const TILE_ROWS: u32 = 16;

/// Constants, and the function for a row's input.
fn head(code: &mut Code, k: &ConvolutionKernel) {
    code.line(format!(
        "const WORDS: u32 = {}u; // 4-value words per row of channels
        const WIDTH: u32 = {}u; // per input row
        const KEPT: u32 = {}u;
        const NONE: u32 = {NO_STATE}u;",
        k.channels / 4,
        k.width / 4,
        k.taps - 1
    ));
    code.line("fn input(row: u32, word: u32) -> vec4<f32> {\nlet at = row * WIDTH + word;");
    code.line(match k.form {
        ConvolutionForm::Silu { .. } => "return x[at];",
        ConvolutionForm::Gated => "return x[at] * x[at + 2u * WORDS];",
    });
    code.line("}");
}

pub(super) fn convolve(code: &mut Code, k: &ConvolutionKernel) {
    let (kept, biased) = (k.taps - 1, k.form == (ConvolutionForm::Silu { biased: true }));
    code.binding(0, "read", "x", "vec4<f32>");
    code.binding(1, "read", "weights", "vec4<f32>");
    if biased {
        code.binding(2, "read", "bias", "vec4<f32>");
    }
    let next = 2 + u32::from(biased);
    code.binding(next, "read_write", "state", "vec4<f32>");
    code.binding(next + 1, "read", "spans", "vec4<u32>");
    code.binding(next + 2, "read_write", "out", "vec4<f32>");
    head(code, k);
    entry(code, THREADS, None, "");
    let (span, first, end) = match k.one_sequence {
        true => {
            ("0u", format!("group.y * {TILE_ROWS}u"), format!("min(span.y, (group.y + 1u) * {TILE_ROWS}u)"))
        }
        false => ("group.y", "0u".to_owned(), "span.y".to_owned()),
    };
    code.line(format!(
        "let word = group.x * {THREADS}u + thread;
        let span = spans[2u * {span}];
        let first = {first};
        let end = {end};
        if (word < WORDS && first < end) {{"
    ));
    for j in 0..kept {
        // Row `first + j - KEPT` of the span, or what its state has of it.
        code.line(format!("var before{j} = vec4<f32>();"));
        if k.one_sequence {
            code.line(format!(
                "if (first + {j}u >= KEPT) {{
                before{j} = input(span.z + first + {j}u - KEPT, word);
                }} else if (span.x != NONE) {{
                before{j} = state[(span.x * KEPT + first + {j}u) * WORDS + word];
                }}"
            ));
        } else {
            code.line(format!(
                "if (span.x != NONE) {{\nbefore{j} = state[(span.x * KEPT + {j}u) * WORDS + word];\n}}"
            ));
        }
    }
    for j in 0..=kept {
        code.line(format!("let weight{j} = weights[{j}u * WORDS + word];"));
    }
    begin_rows(code, "first", "end");
    code.line("let present = input(row, word);\nvar sum = weight0 * before0;");
    for j in 1..kept {
        code.line(format!("sum = fma(weight{j}, before{j}, sum);"));
    }
    code.line(format!("sum = fma(weight{kept}, present, sum);"));
    if biased {
        code.line("sum += bias[word];");
    }
    code.line(match k.form {
        ConvolutionForm::Silu { .. } => {
            "out[row * WORDS + word] = sum / (1.0 + exp(min(-sum, vec4<f32>(80.0))));"
        }
        ConvolutionForm::Gated => "out[row * WORDS + word] = sum * x[row * WIDTH + WORDS + word];",
    });
    for j in 0..kept - 1 {
        code.line(format!("before{j} = before{};", j + 1));
    }
    code.line(format!("before{} = present;", kept - 1));
    end_rows(code, |code| {
        for j in 0..kept {
            code.line(format!("state[(kept.x * KEPT + {j}u) * WORDS + word] = before{j};"));
        }
    });
    code.line("}\n}");
}
