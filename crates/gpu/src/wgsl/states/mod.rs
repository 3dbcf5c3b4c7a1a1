//! Kernels of layers with a state.
//!
//! A span (`x` the slot before, `z` the number of rows, `w` the first one) is the same for all
//! threads of a workgroup; `y` of an entry is the slot of the state behind the row of that number.
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
