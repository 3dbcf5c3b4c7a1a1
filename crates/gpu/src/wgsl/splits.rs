//! Sum of the splits of a product with cooperative matrices.

use super::Code;
use super::output::entry;
use crate::split_key::SumSplitsKernel;

/// Threads of a workgroup of [`emit`]; a thread per output.
pub(crate) const SUM_THREADS: u32 = 256;

/// `y[b, r] = (partial[0, b, r] + partial[1, b, r] + ..) scale[b]`.
pub(super) fn emit(code: &mut Code, s: &SumSplitsKernel) {
    let SumSplitsKernel { rows, splits, width, first } = *s;
    code.line(format!("const ROWS: u32 = {rows}u; // weight rows"));
    code.binding(0, "read", "partial", "f32");
    code.binding(1, "read", "row_scales", "f32");
    code.binding(2, "read_write", "y", "f32");
    entry(code, SUM_THREADS, None, "");
    code.line(format!(
        "let row = group.x * {SUM_THREADS}u + thread;
        if (row < ROWS) {{
        let place = group.y * ROWS + row;
        let step = arrayLength(&row_scales) * ROWS; // values of a split
        var sum = partial[place];
        for (var split = 1u; split < {splits}u; split++) {{
        sum += partial[split * step + place];
        }}
        y[group.y * {width}u + {first}u + row] = sum * row_scales[group.y];
        }}
        }}"
    ));
}
