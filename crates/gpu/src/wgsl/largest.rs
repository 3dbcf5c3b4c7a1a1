//! The largest values of a row, sorted: lists of 1024 candidates are cut to their best 64, in as
//! many launches as it takes until one list is left.
//!
//! Each workgroup sorts its candidates in runs of 64 with a bitonic network, then halves their
//! number: of two descending runs, the larger of every value and its mirror image are the best 64
//! of both, a bitonic run that six more steps sort.
//!
//! # Source
//! K. E. Batcher, "Sorting networks and their applications", AFIPS 1968.

use super::Code;
use super::elementwise::{ORDER, ORDER_OF_IMPOSSIBLE};
use crate::largest_key::{LARGEST_VALUES, LargestKernel};

/// Threads of a workgroup.
const THREADS: u32 = 256;
/// Candidates of a workgroup.
pub(crate) const LARGEST_CANDIDATES: u32 = 1024;
/// Entry behind all others: the order of no value, an index that no row has.
const NOTHING: &str = "vec2<u32>(0u, 0xffffffffu)";

pub(super) fn emit(code: &mut Code, l: &LargestKernel) {
    let LargestKernel { width, candidates, is_first, is_last } = *l;
    let inputs = [("x", "u32", is_first || is_last), ("before", "vec2<u32>", !is_first)];
    let mut bound = 0;
    for (name, element, _) in inputs.into_iter().filter(|(.., is_read)| *is_read) {
        code.binding(bound, "read", name, element);
        bound += 1;
    }
    code.binding(bound, "read_write", "best", "vec2<u32>");
    if is_first {
        code.line(ORDER);
    }
    code.line(format!(
        "var<workgroup> list: array<vec2<u32>, {LARGEST_CANDIDATES}>; // order, index
        fn is_before(a: vec2<u32>, b: vec2<u32>) -> bool {{
        return a.x > b.x || (a.x == b.x && a.y < b.y);
        }}
        @compute @workgroup_size({THREADS})
        fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{
        for (var i = thread; i < {LARGEST_CANDIDATES}u; i += {THREADS}u) {{
        let at = group.x * {LARGEST_CANDIDATES}u + i;
        var entry = {NOTHING};
        if (at < {candidates}u) {{"
    ));
    code.line(if is_first {
        format!("entry = vec2<u32>(order(x[group.y * {width}u + at]), at);")
    } else {
        format!("entry = before[group.y * {candidates}u + at];")
    });
    code.line("}\nlist[i] = entry;\n}\nworkgroupBarrier();");
    let mut sorted = 2;
    while sorted <= LARGEST_VALUES {
        // The last round sorts all runs the same way.
        let descends = if sorted == LARGEST_VALUES { None } else { Some(sorted) };
        exchange(code, sorted / 2, LARGEST_CANDIDATES, descends);
        sorted *= 2;
    }
    let mut left = LARGEST_CANDIDATES / 2;
    while left >= LARGEST_VALUES {
        code.line(format!(
            "for (var i = thread; i < {left}u; i += {THREADS}u) {{
            let other = list[{left}u + (i ^ {}u)];
            if (is_before(other, list[i])) {{
            list[i] = other;
            }}
            }}
            workgroupBarrier();",
            LARGEST_VALUES - 1
        ));
        exchange(code, LARGEST_VALUES / 2, left, None);
        left /= 2;
    }
    code.line(format!(
        "if (thread < {LARGEST_VALUES}u) {{
        let found = list[thread];"
    ));
    let lists = candidates.div_ceil(LARGEST_CANDIDATES);
    if is_last {
        code.line(format!(
            "var bits = 0xff800000u; // -inf
            if (found.x > {ORDER_OF_IMPOSSIBLE}u) {{
            bits = x[group.y * {width}u + found.y];
            }}
            best[group.y * {LARGEST_VALUES}u + thread] = vec2<u32>(found.y, bits);"
        ));
    } else {
        code.line(format!("best[(group.y * {lists}u + group.x) * {LARGEST_VALUES}u + thread] = found;"));
    }
    code.line("}\n}");
}

/// Steps of a bitonic network over `n` entries: compares those `distance` apart, then half of it,
/// down to neighbours. Runs whose index has the bit `descends` unset descend, others ascend;
/// `None`: all descend.
fn exchange(code: &mut Code, distance: u32, n: u32, descends: Option<u32>) {
    let mut distance = distance;
    while distance > 0 {
        let swaps = match descends {
            Some(bit) => format!("is_before(b, a) == ((i & {bit}u) == 0u)"),
            None => "is_before(b, a)".to_owned(),
        };
        code.line(format!(
            "for (var pair = thread; pair < {}u; pair += {THREADS}u) {{
            let i = pair / {distance}u * {}u + pair % {distance}u;
            let a = list[i];
            let b = list[i + {distance}u];
            if ({swaps}) {{
            list[i] = b;
            list[i + {distance}u] = a;
            }}
            }}
            workgroupBarrier();",
            n / 2,
            2 * distance
        ));
        distance /= 2;
    }
}
