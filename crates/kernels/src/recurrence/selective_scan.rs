//! Selective scan (Mamba-2): a matrix per head that decays, and takes up an outer product, at each
//! token.
//!
//! Source: Dao and Gu, "Transformers are SSMs: generalized models and efficient algorithms through
//! structured state space duality", arXiv 2405.21060, token by token.

use super::columns::{BROAD, block, block_mut};
use crate::Kernels;
use crate::lanes::{Fused, LANES, Lanes};
use crate::rows::MatrixView;

/// The tokens of one head of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct SelectiveScan<'a> {
    /// `x`, `[tokens, head_dim]`
    pub inputs: MatrixView<'a>,
    /// `B`, `[tokens, state_dim]`
    pub input_weights: MatrixView<'a>,
    /// `C`, `[tokens, state_dim]`
    pub output_weights: MatrixView<'a>,
    /// Time step `Δ` of each token, `[tokens]`.
    pub steps: &'a [f32],
    /// Factor of the state before each token, `exp(Δ A)`, `[tokens]`.
    pub decays: &'a [f32],
    /// `D`, factor of what goes past the state.
    pub skip: f32,
}

impl Kernels {
    /// Sends tokens through a head: with the state `S`, `[state_dim, head_dim]`, each computes
    ///
    /// ```text
    /// S = decay * S + B ⊗ (step * x)
    /// out = Sᵀ C + skip * x
    /// ```
    ///
    /// `before` is the state before the first token, `after` becomes the one after the last.
    ///
    /// # Shapes
    /// `before`, `after`: `[state_dim, head_dim]`; `out`: `[tokens, head_dim]`.
    ///
    /// # Numerics
    /// A value of the state is rounded twice per token: the decayed one, and a fused multiply-add
    /// to it. An output is a chain of fused multiply-adds over the rows, in their order.
    /// Bit-identical on every instruction set, and for every cut of a text into calls.
    ///
    /// # Panics
    /// If the shapes disagree, or there are no tokens.
    pub fn selective_scan(
        &self,
        scan: &SelectiveScan<'_>,
        before: &[f32],
        after: &mut [f32],
        out: &mut [f32],
    ) {
        let SelectiveScan { inputs, input_weights, output_weights, steps, decays, .. } = scan;
        let (tokens, state_dim, head_dim) = (decays.len(), input_weights.cols(), inputs.cols());
        assert!(
            tokens > 0
                && steps.len() == tokens
                && [inputs, input_weights, output_weights].into_iter().all(|view| view.rows() == tokens)
                && output_weights.cols() == state_dim
                && out.len() == tokens * head_dim
                && [before.len(), after.len()] == [state_dim * head_dim; 2],
            "selective_scan: {tokens} tokens of {head_dim} with {state_dim} weights in a state of {}",
            after.len()
        );
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.selective_scan)(scan, before, after, out) }
    }
}

#[inline(always)]
pub(crate) fn selective_scan<L: Lanes>(
    l: L,
    scan: &SelectiveScan<'_>,
    before: &[f32],
    after: &mut [f32],
    out: &mut [f32],
) {
    let head_dim = scan.inputs.cols();
    let mut column = 0;
    while column + BROAD * LANES <= head_dim {
        columns::<L, BROAD>(l, scan, column, before, after, out);
        column += BROAD * LANES;
    }
    while column + LANES <= head_dim {
        columns::<L, 1>(l, scan, column, before, after, out);
        column += LANES;
    }
    while column < head_dim {
        single_column(scan, column, before, after, out);
        column += 1;
    }
}

/// All tokens for `W` vectors of columns, from `column` on; one pass over the state per token.
#[inline(always)]
fn columns<L: Lanes, const W: usize>(
    l: L,
    scan: &SelectiveScan<'_>,
    column: usize,
    before: &[f32],
    after: &mut [f32],
    out: &mut [f32],
) {
    let width = scan.inputs.cols();
    let skip = l.splat(scan.skip);
    for token in 0..scan.steps.len() {
        let input = block::<W>(scan.inputs.row(token), column);
        let (step, decay) = (l.splat(scan.steps[token]), l.splat(scan.decays[token]));
        let (mut update, mut result) = ([l.zero(); W], [l.zero(); W]);
        for i in 0..W {
            update[i] = l.mul(l.load(&input[i]), step);
        }
        let weights = scan.input_weights.row(token).iter().zip(scan.output_weights.row(token));
        if token == 0 {
            let rows = before.chunks_exact(width).zip(after.chunks_exact_mut(width));
            for ((taken, read), (from, to)) in weights.zip(rows) {
                let (taken, read) = (l.splat(*taken), l.splat(*read));
                let (from, to) = (block::<W>(from, column), block_mut::<W>(to, column));
                for i in 0..W {
                    let state = l.fma(taken, update[i], l.mul(l.load(&from[i]), decay));
                    result[i] = l.fma(state, read, result[i]);
                    l.store(state, &mut to[i]);
                }
            }
        } else {
            for ((taken, read), row) in weights.zip(after.chunks_exact_mut(width)) {
                let (taken, read) = (l.splat(*taken), l.splat(*read));
                let row = block_mut::<W>(row, column);
                for i in 0..W {
                    let state = l.fma(taken, update[i], l.mul(l.load(&row[i]), decay));
                    result[i] = l.fma(state, read, result[i]);
                    l.store(state, &mut row[i]);
                }
            }
        }
        let out = block_mut::<W>(&mut out[token * width..][..width], column);
        for i in 0..W {
            l.store(l.fma(skip, l.load(&input[i]), result[i]), &mut out[i]);
        }
    }
}

/// All tokens for one column behind the last whole vector.
#[inline(always)]
fn single_column(
    scan: &SelectiveScan<'_>,
    column: usize,
    before: &[f32],
    after: &mut [f32],
    out: &mut [f32],
) {
    let width = scan.inputs.cols();
    for (from, to) in before.chunks_exact(width).zip(after.chunks_exact_mut(width)) {
        to[column] = from[column];
    }
    for token in 0..scan.steps.len() {
        let input = scan.inputs.row(token)[column];
        let (update, mut result) = (input * scan.steps[token], 0.0_f32);
        let weights = scan.input_weights.row(token).iter().zip(scan.output_weights.row(token));
        for ((taken, read), row) in weights.zip(after.chunks_exact_mut(width)) {
            row[column] = taken.fma(update, row[column] * scan.decays[token]);
            result = row[column].fma(*read, result);
        }
        out[token * width + column] = scan.skip.fma(input, result);
    }
}
