//! The gated delta rule against its formula in f64.

use proptest::prelude::*;
use ruvllm_kernels::recurrence::DeltaRule;
use ruvllm_kernels::rows::MatrixView;
use ruvllm_kernels::{Isa, Kernels};

/// Numbers of a head, and how they are cut.
#[derive(Debug, Clone)]
struct Head {
    tokens: usize,
    key_dim: usize,
    value_dim: usize,
    /// Rows of queries, keys and values, one behind the other: `[tokens, 2 key_dim +
    /// value_dim]`.
    rows: Vec<f32>,
    decays: Vec<f32>,
    rates: Vec<f32>,
    state: Vec<f32>,
}

impl Head {
    fn rule(&self, tokens: std::ops::Range<usize>) -> DeltaRule<'_> {
        let (key_dim, stride) = (self.key_dim, 2 * self.key_dim + self.value_dim);
        let rows = &self.rows[tokens.start * stride..tokens.end * stride];
        let view = |first: usize, cols| MatrixView::new(&rows[first..], tokens.len(), cols, stride);
        DeltaRule {
            queries: view(0, key_dim),
            keys: view(key_dim, key_dim),
            values: view(2 * key_dim, self.value_dim),
            decays: &self.decays[tokens.clone()],
            rates: &self.rates[tokens],
        }
    }

    /// Outputs and state behind steps that end at `ends`.
    fn run(&self, kernels: &Kernels, ends: &[usize]) -> (Vec<f32>, Vec<f32>) {
        let (mut out, mut state, mut start) = (Vec::new(), self.state.clone(), 0);
        for &end in ends.iter().filter(|&&end| end > 0) {
            if end == start {
                continue;
            }
            let mut after = vec![f32::NAN; state.len()];
            let mut step = vec![0.0; (end - start) * self.value_dim];
            kernels.delta_rule(&self.rule(start..end), &state, &mut after, &mut step);
            (state, start) = (after, end);
            out.extend(step);
        }
        (out, state)
    }

    /// The same in f64, as the formula says it.
    fn naive(&self) -> (Vec<f64>, Vec<f64>) {
        let rule = self.rule(0..self.tokens);
        let mut state: Vec<f64> = self.state.iter().map(|&x| f64::from(x)).collect();
        let mut out = Vec::new();
        let wide = |row: &[f32]| row.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        for t in 0..self.tokens {
            let (query, key, value) =
                (wide(rule.queries.row(t)), wide(rule.keys.row(t)), wide(rule.values.row(t)));
            state.iter_mut().for_each(|x| *x *= f64::from(rule.decays[t]));
            let mapped = |state: &[f64], by: &[f64], column: usize| {
                by.iter().enumerate().map(|(i, by)| by * state[i * self.value_dim + column]).sum::<f64>()
            };
            for column in 0..self.value_dim {
                let error = value[column] - mapped(&state, &key, column);
                for (i, key) in key.iter().enumerate() {
                    state[i * self.value_dim + column] += key * error * f64::from(rule.rates[t]);
                }
                out.push(mapped(&state, &query, column));
            }
        }
        (out, state)
    }
}

fn head() -> impl Strategy<Value = Head> {
    (1usize..9, 1usize..20, 1usize..75).prop_flat_map(|(tokens, key_dim, value_dim)| {
        let unit = prop::collection::vec(-1f32..1.0, tokens * (2 * key_dim + value_dim));
        let state = prop::collection::vec(-1f32..1.0, key_dim * value_dim);
        let share = || prop::collection::vec(0f32..1.0, tokens);
        (unit, share(), share(), state).prop_map(move |(mut rows, decays, rates, state)| {
            // Keys of unit length, as in models: longer ones let the state grow.
            for row in rows.chunks_exact_mut(2 * key_dim + value_dim) {
                let key = &mut row[key_dim..2 * key_dim];
                let norm = key.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-3);
                key.iter_mut().for_each(|x| *x /= norm);
            }
            Head { tokens, key_dim, value_dim, rows, decays, rates, state }
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
        let (out, state) = head.run(&Kernels::for_isa(Isa::Scalar).unwrap(), &[head.tokens]);
        let (exact_out, exact_state) = head.naive();
        for (found, exact) in out.iter().zip(&exact_out).chain(state.iter().zip(&exact_state)) {
            prop_assert!((f64::from(*found) - exact).abs() < 1e-4, "{found}, not {exact}");
        }
        for kernels in Kernels::available() {
            for ends in [vec![head.tokens], vec![cut.min(head.tokens), head.tokens], (1..=head.tokens).collect()] {
                let (other_out, other_state) = head.run(&kernels, &ends);
                prop_assert_eq!(bits(&other_out), bits(&out), "{} {:?}", kernels.isa(), &ends);
                prop_assert_eq!(bits(&other_state), bits(&state), "{} {:?}", kernels.isa(), &ends);
            }
        }
    }
}

/// With the rate 1 and without decay, the last value of a key is what it reads.
#[test]
fn a_key_reads_the_value_that_was_written_last() {
    let (key, values) = ([0.6, 0.8], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]);
    let head = Head {
        tokens: 2,
        key_dim: 2,
        value_dim: 3,
        rows: values.iter().flat_map(|value| [&key[..], &key, value].concat()).collect(),
        decays: vec![1.0; 2],
        rates: vec![1.0; 2],
        state: vec![0.0; 6],
    };
    for kernels in Kernels::available() {
        let (out, _) = head.run(&kernels, &[2]);
        assert!(out.iter().zip(values.as_flattened()).all(|(a, b)| (a - b).abs() < 1e-6), "{out:?}");
    }
}

#[test]
#[should_panic(expected = "delta_rule: 1 tokens, keys of 2 and values of 3 in a state of 5")]
fn other_shapes_are_refused() {
    let view = |cols| MatrixView::new(&[1.0; 3], 1, cols, cols);
    let rule = DeltaRule { queries: view(2), keys: view(2), values: view(3), decays: &[1.0], rates: &[1.0] };
    Kernels::detect().unwrap().delta_rule(&rule, &[0.0; 5], &mut [0.0; 5], &mut [0.0; 3]);
}
