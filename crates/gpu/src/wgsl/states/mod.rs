//! Kernels of layers with a state.
//!
//! Spans and rows are in turn in one binding. A span, the same for all threads of a workgroup: `x`
//! the slot before, `y` the number of rows, `z` the first one, `w` the number of rows up to its
//! first stop. Stops are the rows whose state is kept, and the last one. A row: `x` the slot of the
//! state behind it; of a stop, `y` the number of rows up to the next one.
//!
//! Sequences are computed row by row: a state has the same bits whether it stays in registers or
//! goes through its slot, and a row the same ones whether its state is kept.

mod convolution;
mod delta_rule;
mod gate;
mod matrix;
mod scan;

pub(crate) use convolution::{THREADS as CONVOLUTION_THREADS, TILE_ROWS};
pub(crate) use matrix::MatrixTile;

use super::Code;
use crate::state_keys::StateKernel;

/// Slot of a state of zeros.
pub(crate) const NO_STATE: u32 = u32::MAX;

pub(super) fn emit(code: &mut Code, kernel: &StateKernel) {
    match kernel {
        StateKernel::Convolve(k) => convolution::convolve(code, k),
        StateKernel::DeltaRule(k) => delta_rule::emit(code, k),
        StateKernel::SelectiveScan(k) => scan::emit(code, k),
        StateKernel::Gate(k) => gate::gate(code, k),
        StateKernel::SplitGates(k) => gate::split(code, k),
    }
}

/// Value of a row that a thread reads: name, type and source.
type Operand = (String, &'static str, String);

/// Begins the loops over the stops of a span and over the rows up to each, of its rows `first` to
/// `end`: a row itself does not look for a slot. `i` is a row of the span, `row` one of the launch.
fn begin_rows(code: &mut Code, first: &str, end: &str) {
    let entry = "spans[2u * (span.z + stop) - 1u]";
    code.line(format!(
        "var i = {first};
        var stop = span.w;
        while (stop <= i && i < {end}) {{
        stop = {entry}.y;
        }}
        while (i < {end}) {{
        let kept = {entry};
        let until = min(stop, {end});
        for (; i < until; i++) {{
        let row = span.z + i;"
    ));
}

/// Reads the operands of the span's first row, `(name, type, value)`.
fn begin_ahead(code: &mut Code, operands: &[Operand]) {
    for (name, kind, value) in operands {
        code.line(format!("var next_{name}: {kind} = {value};"));
    }
    code.line("let last = span.z + max(rows, 1u) - 1u;");
}

/// Names the operands of the row, and reads those of row `next` while this one is computed.
fn read_ahead(code: &mut Code, operands: &[Operand]) {
    for (name, ..) in operands {
        code.line(format!("let {name} = next_{name};"));
    }
    code.line("let next = min(row + 1u, last);");
    for (name, _, value) in operands {
        code.line(format!("next_{name} = {value};"));
    }
}

/// Ends both loops; `store` writes the state behind a row that has the slot `kept.x` for it.
fn end_rows(code: &mut Code, store: impl FnOnce(&mut Code)) {
    code.line("}\nif (i == stop && kept.x != NONE) {");
    store(code);
    code.line("}\nstop = kept.y;\n}");
}

/// `ln(1 + exp(x))`. The logarithm is a series in `z = e / (2 + e)`, at most a third: those of
/// drivers have an absolute error near 1, where decays near 1 come from.
const SOFTPLUS: &str = "fn softplus(x: f32) -> f32 {
    let e = exp(-min(abs(x), 80.0));
    let z = e / (2.0 + e);
    let y = z * z;
    let series = fma(y, fma(y, fma(y, fma(y, fma(y, fma(y, 0.07692308, 0.09090909), 0.11111111), 0.14285714), 0.2), 0.33333333), 1.0);
    return fma(2.0 * z, series, max(x, 0.0));
    }";

/// Sigmoid, with an exponent that every driver computes.
const SIGMOID: &str = "fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(min(-x, 80.0)));
    }";
