//! Merge of the splits of attention.

use super::Code;
use super::attention::{partial_words, range};
use super::output::{Output, entry};
use super::sinks;
use crate::kernel::{MergeKernel, Target};

/// Threads of a workgroup of [`merge`].
const MERGE_THREADS: u32 = 256;
/// Splits that a thread of [`merge`] loads together.
const MERGE_UNROLL: u32 = 4;

/// Merges a sequence's splits: a workgroup per head. Lane `l` takes the splits `l`, `l + lanes`,
/// ...; lanes are added in order.
pub(super) fn merge(code: &mut Code, m: &MergeKernel, target: Target) {
    let (words, partial) = (m.head_dim / 4, partial_words(m.head_dim));
    let lanes = MERGE_THREADS / words;
    let output = Output { cols: m.heads * m.head_dim, quantize: m.quantize, threads: MERGE_THREADS, target };
    code.binding(0, "read", "partial", "vec4<f32>");
    code.binding(1, "read", "positions", "u32");
    output.declare(code, 2);
    if m.sinks {
        sinks::declare(code, 2 + output.bindings());
    }
    code.line(format!(
        "struct State {{
        value: vec4<f32>,
        peak: f32,
        sum: f32,
        }}
        var<workgroup> states: array<State, {}>;
        fn add(state: State, value: vec4<f32>, peak: f32, sum: f32) -> State {{
        let top = max(state.peak, peak);
        let keep = exp(max(state.peak - top, -80.0));
        let scale = exp(max(peak - top, -80.0));
        return State(fma(value, vec4<f32>(scale), state.value * keep), top, fma(sum, scale, state.sum * keep));
        }}",
        lanes * words
    ));
    let subgroup = target.subgroup.filter(|_| m.quantize);
    entry(code, MERGE_THREADS, subgroup, "@builtin(num_workgroups) groups: vec3<u32>,");
    code.line("let sequence = group.y;");
    range(code, m.window);
    code.line(format!(
        "let splits = (end + {last}u) / {split}u - begin / {split}u;
        let lane = thread / {words}u;
        let part = thread % {words}u;
        var state = State(vec4<f32>(), -3e38, 0.0);
        if (lane < {lanes}u) {{
        for (var split = lane; split < splits; split += {step}u) {{",
        split = m.split_tokens,
        last = m.split_tokens - 1,
        step = lanes * MERGE_UNROLL
    ));
    for u in 0..MERGE_UNROLL {
        code.line(format!(
            "let at{u} = ((min(split + {}u, splits - 1u) * groups.y + sequence) * {}u + group.x) * {partial}u;
            let value{u} = partial[at{u} + part];
            let factors{u} = partial[at{u} + {words}u];",
            u * lanes,
            m.heads
        ));
    }
    for u in 0..MERGE_UNROLL {
        code.line(format!(
            "if (split + {}u < splits) {{\nstate = add(state, value{u}, factors{u}.x, factors{u}.y);\n}}",
            u * lanes
        ));
    }
    code.line("}\nstates[thread] = state;\n}\nworkgroupBarrier();\nif (lane == 0u) {");
    for i in 1..lanes {
        let other = format!("states[part + {}u]", i * words);
        code.line(format!(
            "if (splits > {i}u) {{\nstate = add(state, {other}.value, {other}.peak, {other}.sum);\n}}"
        ));
    }
    code.line("}\nvar value = state.value;");
    sinks::divide(code, m.sinks, "state.peak", "state.sum", "group.x");
    code.line(format!(
        "let row = sequence;
        let word = select(WORDS, group.x * {words}u + part, lane == 0u);"
    ));
    output.store(code);
    code.line("}");
}
