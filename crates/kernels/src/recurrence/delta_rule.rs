//! Gated delta rule: a matrix per head that maps keys to values, corrected at each token.
//!
//! Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks: improving Mamba2 with delta rule",
//! arXiv 2412.06464, equation 10, token by token.

use super::columns::{BROAD, block, block_mut};
use crate::Kernels;
use crate::lanes::{Fused, LANES, Lanes};
use crate::rows::MatrixView;

/// The tokens of one head of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct DeltaRule<'a> {
    /// `[tokens, key_dim]`
    pub queries: MatrixView<'a>,
    /// `[tokens, key_dim]`
    pub keys: MatrixView<'a>,
    /// `[tokens, value_dim]`
    pub values: MatrixView<'a>,
    /// Factor of the state before each token, `[tokens]`.
    pub decays: &'a [f32],
    /// Share of a value's error that each token corrects, `[tokens]`.
    pub rates: &'a [f32],
}

impl Kernels {
    /// Sends tokens through a head: with the state `S`, `[key_dim, value_dim]`, each token computes
    ///
    /// ```text
    /// S = decay * S
    /// S = S + key ⊗ (rate * (value - Sᵀ key))
    /// out = Sᵀ query
    /// ```
    ///
    /// `before` is the state before the first token, `after` becomes the one after the last.
    ///
    /// # Shapes
    /// `before`, `after`: `[key_dim, value_dim]`; `out`: `[tokens, value_dim]`.
    ///
    /// # Numerics
    /// Each column of the state is its own: chains of fused multiply-adds over the rows, in their
    /// order. Bit-identical on every instruction set, and for every cut of a text into calls.
    ///
    /// # Panics
    /// If the shapes disagree, or there are no tokens.
    pub fn delta_rule(&self, rule: &DeltaRule<'_>, before: &[f32], after: &mut [f32], out: &mut [f32]) {
        let DeltaRule { queries, keys, values, decays, rates } = rule;
        let (tokens, key_dim, value_dim) = (decays.len(), keys.cols(), values.cols());
        assert!(
            tokens > 0
                && rates.len() == tokens
                && [queries, keys, values].into_iter().all(|view| view.rows() == tokens)
                && queries.cols() == key_dim
                && out.len() == tokens * value_dim
                && [before.len(), after.len()] == [key_dim * value_dim; 2],
            "delta_rule: {tokens} tokens, keys of {key_dim} and values of {value_dim} in a state of {}",
            after.len()
        );
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.delta_rule)(rule, before, after, out) }
    }
}

#[inline(always)]
pub(crate) fn delta_rule<L: Lanes>(
    l: L,
    rule: &DeltaRule<'_>,
    before: &[f32],
    after: &mut [f32],
    out: &mut [f32],
) {
    let value_dim = rule.values.cols();
    let mut column = 0;
    while column + BROAD * LANES <= value_dim {
        columns::<L, BROAD>(l, rule, column, before, after, out);
        column += BROAD * LANES;
    }
    while column + LANES <= value_dim {
        columns::<L, 1>(l, rule, column, before, after, out);
        column += LANES;
    }
    while column < value_dim {
        single_column(rule, column, before, after, out);
        column += 1;
    }
}

/// All tokens for `W` vectors of columns, from `column` on.
///
/// One pass over the state per token: it corrects the state, reads the result, and already decays
/// the state and reads its value for the key of the next token.
#[inline(always)]
fn columns<L: Lanes, const W: usize>(
    l: L,
    rule: &DeltaRule<'_>,
    column: usize,
    before: &[f32],
    after: &mut [f32],
    out: &mut [f32],
) {
    let DeltaRule { queries, keys, values, decays, rates } = rule;
    let (tokens, width) = (decays.len(), values.cols());
    let mut held = [l.zero(); W];
    let decay = l.splat(decays[0]);
    let rows = before.chunks_exact(width).zip(after.chunks_exact_mut(width));
    for (key, (from, to)) in keys.row(0).iter().zip(rows) {
        let (key, from, to) = (l.splat(*key), block::<W>(from, column), block_mut::<W>(to, column));
        for i in 0..W {
            let state = l.mul(l.load(&from[i]), decay);
            held[i] = l.fma(state, key, held[i]);
            l.store(state, &mut to[i]);
        }
    }
    for token in 0..tokens {
        let (rate, value) = (l.splat(rates[token]), block::<W>(values.row(token), column));
        let mut correction = [l.zero(); W];
        for i in 0..W {
            correction[i] = l.mul(l.sub(l.load(&value[i]), held[i]), rate);
        }
        held = [l.zero(); W];
        let mut result = [l.zero(); W];
        let pairs = queries.row(token).iter().zip(keys.row(token));
        if token + 1 < tokens {
            let decay = l.splat(decays[token + 1]);
            let rows = keys.row(token + 1).iter().zip(after.chunks_exact_mut(width));
            for ((query, key), (next_key, state)) in pairs.zip(rows) {
                let (query, key, next_key) = (l.splat(*query), l.splat(*key), l.splat(*next_key));
                let state = block_mut::<W>(state, column);
                for i in 0..W {
                    let corrected = l.fma(correction[i], key, l.load(&state[i]));
                    result[i] = l.fma(corrected, query, result[i]);
                    let decayed = l.mul(corrected, decay);
                    held[i] = l.fma(decayed, next_key, held[i]);
                    l.store(decayed, &mut state[i]);
                }
            }
        } else {
            for ((query, key), state) in pairs.zip(after.chunks_exact_mut(width)) {
                let (query, key, state) = (l.splat(*query), l.splat(*key), block_mut::<W>(state, column));
                for i in 0..W {
                    let corrected = l.fma(correction[i], key, l.load(&state[i]));
                    result[i] = l.fma(corrected, query, result[i]);
                    l.store(corrected, &mut state[i]);
                }
            }
        }
        let out = block_mut::<W>(&mut out[token * width..][..width], column);
        for i in 0..W {
            l.store(result[i], &mut out[i]);
        }
    }
}

/// All tokens for one column behind the last whole vector.
#[inline(always)]
fn single_column(rule: &DeltaRule<'_>, column: usize, before: &[f32], after: &mut [f32], out: &mut [f32]) {
    let DeltaRule { queries, keys, values, decays, rates } = rule;
    let width = values.cols();
    for (from, to) in before.chunks_exact(width).zip(after.chunks_exact_mut(width)) {
        to[column] = from[column];
    }
    for token in 0..decays.len() {
        let mut held = 0.0_f32;
        for (key, state) in keys.row(token).iter().zip(after.chunks_exact_mut(width)) {
            state[column] *= decays[token];
            held = state[column].fma(*key, held);
        }
        let correction = (values.row(token)[column] - held) * rates[token];
        let mut result = 0.0_f32;
        let pairs = queries.row(token).iter().zip(keys.row(token));
        for ((query, key), state) in pairs.zip(after.chunks_exact_mut(width)) {
            state[column] = correction.fma(*key, state[column]);
            result = state[column].fma(*query, result);
        }
        out[token * width + column] = result;
    }
}
