//! Selective scans against their formula in f64.

use proptest::prelude::*;
use ruvllm_kernels::recurrence::SelectiveScan;
use ruvllm_kernels::rows::MatrixView;
use ruvllm_kernels::{Isa, Kernels};

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
