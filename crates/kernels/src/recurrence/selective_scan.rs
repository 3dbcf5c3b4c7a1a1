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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Isa;

    /// Numbers of a head.
    #[derive(Debug, Clone)]
    struct Head {
        state_dim: usize,
        head_dim: usize,
        /// Rows of `x`, `B` and `C`, one behind the other: `[tokens, head_dim + 2 state_dim]`.
        rows: Vec<f32>,
        steps: Vec<f32>,
        decays: Vec<f32>,
        skip: f32,
        state: Vec<f32>,
    }

    impl Head {
        fn scan(&self, tokens: std::ops::Range<usize>) -> SelectiveScan<'_> {
            let (state_dim, stride) = (self.state_dim, self.head_dim + 2 * self.state_dim);
            let rows = &self.rows[tokens.start * stride..tokens.end * stride];
            let view = |first: usize, cols| MatrixView::new(&rows[first..], tokens.len(), cols, stride);
            SelectiveScan {
                inputs: view(0, self.head_dim),
                input_weights: view(self.head_dim, state_dim),
                output_weights: view(self.head_dim + state_dim, state_dim),
                steps: &self.steps[tokens.clone()],
                decays: &self.decays[tokens],
                skip: self.skip,
            }
        }

        /// Outputs and state behind steps that end at `ends`, which do not fall.
        fn run(&self, kernels: &Kernels, ends: &[usize]) -> (Vec<f32>, Vec<f32>) {
            let (mut out, mut state, mut start) = (Vec::new(), self.state.clone(), 0);
            for &end in ends {
                if end == start {
                    continue;
                }
                let mut after = vec![f32::NAN; state.len()];
                let mut step = vec![f32::NAN; (end - start) * self.head_dim];
                kernels.selective_scan(&self.scan(start..end), &state, &mut after, &mut step);
                (state, start) = (after, end);
                out.extend(step);
            }
            (out, state)
        }

        /// Outputs and state in f64, as the formula says it; `of` is applied to every number.
        fn naive(&self, of: impl Fn(f64) -> f64) -> (Vec<f64>, Vec<f64>) {
            let scan = self.scan(0..self.steps.len());
            let of = |x: f32| of(f64::from(x));
            let mut state: Vec<f64> = self.state.iter().map(|&x| of(x)).collect();
            let mut out = Vec::new();
            for token in 0..self.steps.len() {
                let (step, decay) = (of(scan.steps[token]), of(scan.decays[token]));
                for (column, &x) in scan.inputs.row(token).iter().enumerate() {
                    let mut sum = of(scan.skip) * of(x);
                    for row in 0..self.state_dim {
                        let value = &mut state[row * self.head_dim + column];
                        *value = decay * *value + of(scan.input_weights.row(token)[row]) * step * of(x);
                        sum += *value * of(scan.output_weights.row(token)[row]);
                    }
                    out.push(sum);
                }
            }
            (out, state)
        }
    }

    fn head() -> impl Strategy<Value = Head> {
        (1usize..9, 1usize..20, 1usize..75).prop_flat_map(|(tokens, state_dim, head_dim)| {
            let values = |n: usize| prop::collection::vec(-2f32..2.0, n);
            let rows = values(tokens * (head_dim + 2 * state_dim));
            let steps = prop::collection::vec(0f32..3.0, tokens);
            let decays = prop::collection::vec(0f32..1.0, tokens);
            let rest = (rows, steps, decays, -2f32..2.0, values(state_dim * head_dim));
            rest.prop_map(move |(rows, steps, decays, skip, state)| Head {
                state_dim,
                head_dim,
                rows,
                steps,
                decays,
                skip,
                state,
            })
        })
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|x| x.to_bits()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100 * ProptestConfig::default().cases / 256, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn heads_follow_the_formula_with_the_same_bits_everywhere(head in head(), cut in 0usize..9) {
            let tokens = head.steps.len();
            let (out, state) = head.run(&Kernels::for_isa(Isa::Scalar).unwrap(), &[tokens]);
            // At most 60 roundings of terms whose absolute values have these sums.
            let ((exact_out, exact_state), (terms, state_terms)) = (head.naive(|x| x), head.naive(f64::abs));
            let found = out.iter().chain(&state).zip(exact_out.iter().chain(&exact_state));
            for ((found, exact), terms) in found.zip(terms.iter().chain(&state_terms)) {
                let error = (f64::from(*found) - exact).abs();
                prop_assert!(error <= 60.0 * f64::from(f32::EPSILON) * terms, "{found}, not {exact}");
            }
            for kernels in Kernels::available() {
                for ends in [vec![tokens], vec![cut.min(tokens), tokens], (1..=tokens).collect()] {
                    let (other_out, other_state) = head.run(&kernels, &ends);
                    prop_assert_eq!(bits(&other_out), bits(&out), "{} {:?}", kernels.isa(), &ends);
                    prop_assert_eq!(bits(&other_state), bits(&state), "{} {:?}", kernels.isa(), &ends);
                }
            }
        }
    }

    /// Without decay, the state sums what its tokens put in.
    #[test]
    fn states_sum_their_inputs() {
        let (both, first, second) = ([1.0, 1.0], [1.0, 0.0], [0.0, 1.0]);
        let row = |x: f32, weights: [f32; 2]| [&[x][..], &weights, &weights].concat();
        let head = Head {
            state_dim: 2,
            head_dim: 1,
            rows: [row(3.0, first), row(5.0, second), row(0.0, both)].concat(),
            steps: vec![1.0, 2.0, 0.5],
            decays: vec![1.0; 3],
            skip: 10.0,
            state: vec![0.0; 2],
        };
        for kernels in Kernels::available() {
            assert_eq!(head.run(&kernels, &[3]), (vec![33.0, 60.0, 13.0], vec![3.0, 10.0]));
        }
    }

    #[test]
    #[should_panic(expected = "selective_scan: 1 tokens of 3 with 2 weights in a state of 5")]
    fn other_shapes_are_refused() {
        let view = |cols| MatrixView::new(&[1.0; 3], 1, cols, cols);
        let scan = SelectiveScan {
            inputs: view(3),
            input_weights: view(2),
            output_weights: view(2),
            steps: &[1.0],
            decays: &[1.0],
            skip: 1.0,
        };
        Kernels::detect().unwrap().selective_scan(&scan, &[0.0; 5], &mut [0.0; 5], &mut [0.0; 3]);
    }
}
