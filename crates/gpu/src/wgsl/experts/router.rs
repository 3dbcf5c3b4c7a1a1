//! Choice of each row's experts: a workgroup per row.
//!
//! An expert is chosen if fewer than `used` others are before it, by score or as equals of a lower
//! index, and its place is the number of chosen experts of a lower index. Scores are compared as
//! integers, whose order is total even with NaN: exactly `used` experts are chosen.

use crate::expert_keys::{RouterKernel, RouterScoring};
use crate::wgsl::Code;
use crate::wgsl::elementwise::ORDER;
use crate::wgsl::output::entry;

/// Distance from a logit, relative to the larger magnitude, up to which others share its weight.
const SPARSE_MIXER_RANGE: f32 = 0.02;

/// Threads of a workgroup; a thread has every so manyth expert.
fn threads(r: &RouterKernel) -> u32 {
    r.experts.next_power_of_two().clamp(32, 256)
}

pub(in crate::wgsl) fn emit(code: &mut Code, r: &RouterKernel) {
    head(code, r);
    code.line(ORDER);
    code.line(
        "fn sigmoid(x: f32) -> f32 {
        return 1.0 / (1.0 + exp(min(-x, 80.0)));
        }",
    );
    entry(code, threads(r), None, "");
    code.line("let row = group.x;");
    each_expert(code, r, |code| code.line("scores[e] = logits[row * WIDTH + e];"));
    code.line("workgroupBarrier();");
    score(code, r);
    select(code, r);
    each_expert(code, r, |code| {
        code.line(
            "let own = orders[e];
            var rank = 0u;
            for (var o = 0u; o < EXPERTS; o++) {
            let other = orders[o];
            rank += select(0u, 1u, other > own || (other == own && o < e));
            }
            ranks[e] = rank;",
        );
    });
    code.line("workgroupBarrier();");
    each_expert(code, r, |code| place(code, r));
    code.line("workgroupBarrier();\nif (thread == 0u) {");
    weigh(code, r);
    code.line("}\n}");
}

fn head(code: &mut Code, r: &RouterKernel) {
    code.line(format!(
        "const EXPERTS: u32 = {}u;\nconst USED: u32 = {}u;\nconst WIDTH: u32 = {}u; // values per row of logits",
        r.experts, r.used, r.width
    ));
    code.binding(0, "read", "logits", "f32");
    if r.biased {
        code.binding(1, "read", "bias", "f32");
    }
    let first = 1 + u32::from(r.biased);
    code.binding(first, "read_write", "experts", "u32");
    code.binding(first + 1, "read_write", "weights", "f32");
    code.line(
        "var<workgroup> scores: array<f32, EXPERTS>;
        var<workgroup> orders: array<u32, EXPERTS>; // of the scores for the choice
        var<workgroup> ranks: array<u32, EXPERTS>; // experts before each one
        var<workgroup> chosen: array<f32, USED>; // weights",
    );
    if r.scoring == RouterScoring::Softmax {
        code.line(format!("var<workgroup> sums: array<f32, {}>;", threads(r)));
    }
    if let Some((count, _)) = r.groups {
        code.line(format!(
            "const GROUP: u32 = {}u; // experts of a group
            var<workgroup> selection: array<f32, EXPERTS>;
            var<workgroup> groups: array<u32, {count}>; // orders of their scores",
            r.experts / count
        ));
    }
}

/// A loop of each thread over its experts `e`.
fn each_expert(code: &mut Code, r: &RouterKernel, body: impl FnOnce(&mut Code)) {
    code.line(format!("for (var e = thread; e < EXPERTS; e += {}u) {{", threads(r)));
    body(code);
    code.line("}");
}

/// Reduces the threads' values in `sums` to the first by a tree; `joined` is the value of two.
fn tree(code: &mut Code, r: &RouterKernel, joined: &str) {
    code.line("workgroupBarrier();");
    let mut stride = threads(r) / 2;
    while stride > 0 {
        code.line(format!(
            "if (thread < {stride}u) {{
            let a = sums[thread];
            let b = sums[thread + {stride}u];
            sums[thread] = {joined};
            }}
            workgroupBarrier();"
        ));
        stride /= 2;
    }
}

/// From logits to scores.
fn score(code: &mut Code, r: &RouterKernel) {
    match r.scoring {
        RouterScoring::Softmax => {
            code.line("var most = scores[min(thread, EXPERTS - 1u)];");
            each_expert(code, r, |code| code.line("most = max(most, scores[e]);"));
            code.line("sums[thread] = most;");
            tree(code, r, "max(a, b)");
            code.line("let peak = sums[0];\nworkgroupBarrier();\nvar sum = 0.0;");
            each_expert(code, r, |code| {
                code.line(
                    "let value = exp(max(scores[e] - peak, -80.0));\nscores[e] = value;\nsum += value;",
                );
            });
            code.line("sums[thread] = sum;");
            tree(code, r, "a + b");
            each_expert(code, r, |code| code.line("scores[e] = scores[e] / sums[0];"));
        }
        RouterScoring::Sigmoid => {
            each_expert(code, r, |code| code.line("scores[e] = sigmoid(scores[e]);"));
        }
        _ => (),
    }
}

/// Orders of the scores for the choice; those of excluded groups are 0.
fn select(code: &mut Code, r: &RouterKernel) {
    let value = if r.biased { "scores[e] + bias[e]" } else { "scores[e]" };
    let Some((count, used)) = r.groups else {
        each_expert(code, r, |code| code.line(format!("orders[e] = order(bitcast<u32>({value}));")));
        code.line("workgroupBarrier();");
        return;
    };
    each_expert(code, r, |code| code.line(format!("selection[e] = {value};")));
    let (len, threads) = (r.experts / count, threads(r));
    code.line(format!(
        "workgroupBarrier();
        for (var g = thread; g < {count}u; g += {threads}u) {{
        var best = selection[g * GROUP];"
    ));
    // Of a group of one expert there is no second.
    let sums_two = r.biased && len > 1;
    if sums_two {
        code.line(
            "var second = selection[g * GROUP + 1u];
            if (second > best) {
            best = second;
            second = selection[g * GROUP];
            }",
        );
    }
    code.line(format!(
        "for (var i = {}u; i < GROUP; i++) {{\nlet value = selection[g * GROUP + i];",
        if sums_two { 2 } else { 1 }
    ));
    code.line(if sums_two {
        "if (value > best) {
        second = best;
        best = value;
        } else {
        second = max(second, value);
        }"
    } else {
        "best = max(best, value);"
    });
    code.line(format!(
        "}}
        groups[g] = order(bitcast<u32>(best{}));
        }}
        workgroupBarrier();",
        if sums_two { " + second" } else { "" }
    ));
    each_expert(code, r, |code| {
        code.line(format!(
            "let g = e / GROUP;
            let own = groups[g];
            var rank = 0u;
            for (var o = 0u; o < {count}u; o++) {{
            rank += select(0u, 1u, groups[o] > own || (groups[o] == own && o < g));
            }}
            orders[e] = select(0u, order(bitcast<u32>(selection[e])), rank < {used}u);"
        ));
    });
    code.line("workgroupBarrier();");
}

/// Stores expert `e`, if it is chosen, and its weight so far.
fn place(code: &mut Code, r: &RouterKernel) {
    code.line(
        "if (ranks[e] < USED) {
        var to = 0u;
        for (var o = 0u; o < e; o++) {
        to += select(0u, 1u, ranks[o] < USED);
        }
        experts[row * USED + to] = e;",
    );
    match r.scoring {
        RouterScoring::ChosenSigmoid => code.line("chosen[to] = sigmoid(scores[e]);"),
        RouterScoring::SparseMixer => code.line(format!(
            "let most = scores[e];
            var near = 0.0;
            for (var o = 0u; o < EXPERTS; o++) {{
            let logit = scores[o];
            if (ranks[o] >= ranks[e] && most - logit <= {SPARSE_MIXER_RANGE:?} * max(abs(logit), most)) {{
            near += exp(max(logit - most, -80.0));
            }}
            }}
            chosen[to] = 1.0 / near;"
        )),
        _ => code.line("chosen[to] = scores[e];"),
    }
    code.line("}");
}

/// Final weights, by one thread.
fn weigh(code: &mut Code, r: &RouterKernel) {
    let softmax = r.scoring == RouterScoring::ChosenSoftmax;
    if softmax {
        code.line(
            "var most = chosen[0];
            for (var i = 1u; i < USED; i++) {
            most = max(most, chosen[i]);
            }
            for (var i = 0u; i < USED; i++) {
            chosen[i] = exp(max(chosen[i] - most, -80.0));
            }",
        );
    }
    let scale = f32::from_bits(r.scale_bits);
    let factor = if scale == 1.0 { String::new() } else { format!(" * {scale:?}") };
    if softmax || r.renormalize {
        code.line(
            "var sum = 0.0;
            for (var i = 0u; i < USED; i++) {
            sum += chosen[i];
            }
            // Where all underflow, the weights stay zeros.
            let divisor = select(1.0, sum, sum > 0.0);",
        );
    }
    let quotient = if softmax || r.renormalize { " / divisor" } else { "" };
    code.line(format!(
        "for (var i = 0u; i < USED; i++) {{
        weights[row * USED + i] = chosen[i]{quotient}{factor};
        }}"
    ));
}
