//! Logits of a router.
//!
//! Thread `t` of a workgroup has the 4-value words `t`, `t + 64`, ... of a row; the threads' sums
//! are added by a binary tree. Neither order depends on the rows of a workgroup.

use crate::expert_keys::RouterLogitsKernel;
use crate::wgsl::Code;
use crate::wgsl::output::entry;

/// Threads of a workgroup.
const THREADS: u32 = 64;

/// Input rows of a workgroup for many rows.
pub(crate) const LOGIT_ROWS: u32 = 4;

/// Outputs of a workgroup: more where several input rows share the weights.
pub(crate) fn logit_outputs(k: &RouterLogitsKernel) -> u32 {
    if k.batch == 1 { 1 } else { 4 }
}

pub(in crate::wgsl) fn emit(code: &mut Code, k: &RouterLogitsKernel) {
    let (outputs, batch) = (logit_outputs(k), k.batch);
    let sums = outputs * batch;
    code.line(format!(
        "const OUTPUTS: u32 = {}u;\nconst WORDS: u32 = {}u; // 4-value words per row",
        k.outputs,
        k.cols / 4
    ));
    code.binding(0, "read", "w", "vec4<f32>");
    code.binding(1, "read", "x", "vec4<f32>");
    if k.biased {
        code.binding(2, "read", "bias", "f32");
    }
    code.binding(2 + u32::from(k.biased), "read_write", "y", "f32");
    code.line(format!("var<workgroup> partial: array<f32, {}>;", sums * THREADS));
    entry(code, THREADS, None, "");
    code.line(format!(
        "let first = group.x * {outputs}u;
        let first_row = group.y * {batch}u;
        let rows = arrayLength(&x) / WORDS;"
    ));
    let all = || (0..outputs).flat_map(move |o| (0..batch).map(move |b| (o, b)));
    all().for_each(|(o, b)| code.line(format!("var sum{o}_{b} = 0.0;")));
    code.line(format!("for (var word = thread; word < WORDS; word += {THREADS}u) {{"));
    for o in 0..outputs {
        code.line(format!("let w{o} = w[min(first + {o}u, OUTPUTS - 1u) * WORDS + word];"));
    }
    for b in 0..batch {
        code.line(format!("let x{b} = x[min(first_row + {b}u, rows - 1u) * WORDS + word];"));
    }
    for (o, b) in all() {
        let (sum, w, x) = (format!("sum{o}_{b}"), format!("w{o}"), format!("x{b}"));
        code.line(format!(
            "{sum} = fma({w}.w, {x}.w, fma({w}.z, {x}.z, fma({w}.y, {x}.y, fma({w}.x, {x}.x, {sum}))));"
        ));
    }
    code.line("}");
    for (o, b) in all() {
        code.line(format!("partial[{}u + thread] = sum{o}_{b};", (o * batch + b) * THREADS));
    }
    code.line("workgroupBarrier();");
    let mut stride = THREADS / 2;
    while stride > 0 {
        code.line(format!(
            "if (thread < {stride}u) {{
            for (var o = 0u; o < {sums}u; o++) {{
            partial[o * {THREADS}u + thread] += partial[o * {THREADS}u + thread + {stride}u];
            }}
            }}
            workgroupBarrier();"
        ));
        stride /= 2;
    }
    code.line(format!(
        "if (thread < {sums}u) {{
        let row = first_row + thread % {batch}u;
        let to = first + thread / {batch}u;
        if (row < rows && to < OUTPUTS) {{
        y[row * OUTPUTS + to] = partial[thread * {THREADS}u]{};
        }}
        }}
        }}",
        if k.biased { " + bias[to]" } else { "" }
    ));
}
