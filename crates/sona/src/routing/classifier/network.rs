//! FastGRNN (Kusupati et al. 2018): forward pass and back-propagation through time.
//!
//! With `a = W x_t + U h_{t-1}`:
//! ```text
//! z_t = sigmoid(a + b_z)        c_t = tanh(a + b_h)
//! h_t = (zeta (1 - z_t) + nu) * c_t + z_t * h_{t-1}
//! ```
//! The gate and the candidate share `W` and `U`; `zeta` and `nu` are sigmoids of two parameters.
//! Outputs are logits `V h_T + b`.

use super::matrix::Matrix;
use crate::random::Random;

/// Shapes and places of the parameters.
#[derive(Debug, Clone)]
pub(super) struct Network {
    pub(super) input: Matrix,
    recurrent: Matrix,
    output: Matrix,
    gate_bias: usize,
    candidate_bias: usize,
    mix: usize,
    output_bias: usize,
    count: usize,
}

/// Values of one time step that the backward pass needs.
#[derive(Default)]
struct Step {
    x: Vec<f64>,
    input_middle: Vec<f64>,
    recurrent_middle: Vec<f64>,
    before: Vec<f64>,
    gate: Vec<f64>,
    candidate: Vec<f64>,
}

/// A forward pass.
pub(super) struct Pass {
    steps: Vec<Step>,
    state: Vec<f64>,
    pub(super) logits: Vec<f64>,
}

pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

impl Network {
    pub(super) fn new(inputs: usize, hidden: usize, outputs: usize, ranks: [Option<usize>; 2]) -> Self {
        let input = Matrix::new(hidden, inputs, ranks[0], 0);
        let recurrent = Matrix::new(hidden, hidden, ranks[1], input.end());
        let output = Matrix::new(outputs, hidden, None, recurrent.end());
        let gate_bias = output.end();
        let candidate_bias = gate_bias + hidden;
        let mix = candidate_bias + hidden;
        let output_bias = mix + 2;
        let count = output_bias + outputs;
        Self { input, recurrent, output, gate_bias, candidate_bias, mix, output_bias, count }
    }

    /// Number of parameters.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Initial parameters: factors normal with variance 1 / columns, gate biases 1, candidate
    /// biases 0, `zeta` 0.73, `nu` 0.02, outputs 0 with probability 1/2.
    pub(super) fn initial(&self, random: &mut Random) -> Vec<f64> {
        let mut parameters = vec![0.0; self.count];
        for matrix in [&self.input, &self.recurrent] {
            for (range, cols) in matrix.factors() {
                let deviation = 1.0 / (cols as f64).sqrt();
                parameters[range].fill_with(|| deviation * random.normal());
            }
        }
        parameters[self.gate_bias..self.candidate_bias].fill(1.0);
        (parameters[self.mix], parameters[self.mix + 1]) = (1.0, -4.0);
        parameters
    }

    /// Runs over the rows of a sequence.
    pub(super) fn forward(&self, parameters: &[f64], rows: impl Iterator<Item = Vec<f64>>) -> Pass {
        let hidden = self.input.rows;
        let (zeta, nu) = (sigmoid(parameters[self.mix]), sigmoid(parameters[self.mix + 1]));
        let mut state = vec![0.0; hidden];
        let mut steps = Vec::new();
        for x in rows {
            let mut step = Step { x, before: state.clone(), ..Step::default() };
            let mut sums = self.input.product(parameters, &step.x, &mut step.input_middle);
            let recurrent = self.recurrent.product(parameters, &state, &mut step.recurrent_middle);
            sums.iter_mut().zip(recurrent).for_each(|(sum, part)| *sum += part);
            let biased = |bias: usize, f: fn(f64) -> f64| -> Vec<f64> {
                sums.iter().zip(&parameters[bias..]).map(|(sum, bias)| f(sum + bias)).collect()
            };
            step.gate = biased(self.gate_bias, sigmoid);
            step.candidate = biased(self.candidate_bias, f64::tanh);
            for ((h, z), c) in state.iter_mut().zip(&step.gate).zip(&step.candidate) {
                *h = (zeta * (1.0 - z) + nu) * c + z * *h;
            }
            steps.push(step);
        }
        let mut logits = self.output.product(parameters, &state, &mut Vec::new());
        logits.iter_mut().zip(&parameters[self.output_bias..]).for_each(|(logit, bias)| *logit += bias);
        Pass { steps, state, logits }
    }

    /// Gradient of the parameters for the gradient of the logits.
    pub(super) fn backward(&self, parameters: &[f64], pass: &Pass, dlogits: &[f64]) -> Vec<f64> {
        let mut gradient = vec![0.0; self.count];
        gradient[self.output_bias..].copy_from_slice(dlogits);
        let mut dstate = self.output.gradient(parameters, &mut gradient, (&pass.state, &[]), dlogits);
        let (zeta, nu) = (sigmoid(parameters[self.mix]), sigmoid(parameters[self.mix + 1]));
        let (mut dzeta, mut dnu) = (0.0, 0.0);
        for step in pass.steps.iter().rev() {
            let mut dsums = vec![0.0; dstate.len()];
            for (i, dh) in dstate.iter_mut().enumerate() {
                let (z, c) = (step.gate[i], step.candidate[i]);
                dzeta += *dh * (1.0 - z) * c;
                dnu += *dh * c;
                let dcandidate = *dh * (zeta * (1.0 - z) + nu) * (1.0 - c * c);
                let dgate = *dh * (step.before[i] - zeta * c) * z * (1.0 - z);
                gradient[self.gate_bias + i] += dgate;
                gradient[self.candidate_bias + i] += dcandidate;
                dsums[i] = dgate + dcandidate;
                *dh *= z;
            }
            self.input.gradient(parameters, &mut gradient, (&step.x, &step.input_middle), &dsums);
            let context: (&[f64], &[f64]) = (&step.before, &step.recurrent_middle);
            let dbefore = self.recurrent.gradient(parameters, &mut gradient, context, &dsums);
            dstate.iter_mut().zip(dbefore).for_each(|(dh, part)| *dh += part);
        }
        gradient[self.mix] = dzeta * zeta * (1.0 - zeta);
        gradient[self.mix + 1] = dnu * nu * (1.0 - nu);
        gradient
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sum of the logits' squares, and its gradient by the logits.
    fn loss(logits: &[f64]) -> (f64, Vec<f64>) {
        (logits.iter().map(|v| v * v).sum(), logits.iter().map(|v| 2.0 * v).collect())
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for ranks in [[None, None], [Some(2), None], [None, Some(3)], [Some(3), Some(2)]] {
            let mut random = Random::new(11);
            let network = Network::new(5, 4, 3, ranks);
            let mut parameters = network.initial(&mut random);
            parameters.iter_mut().for_each(|v| *v += 0.3 * random.normal());
            let rows: Vec<Vec<f64>> = (0..6).map(|_| (0..5).map(|_| random.normal()).collect()).collect();
            let value = |p: &[f64]| loss(&network.forward(p, rows.iter().cloned()).logits).0;
            let pass = network.forward(&parameters, rows.iter().cloned());
            let gradient = network.backward(&parameters, &pass, &loss(&pass.logits).1);
            for (i, found) in gradient.iter().enumerate() {
                let at = |offset: f64| {
                    let mut moved = parameters.clone();
                    moved[i] += offset;
                    value(&moved)
                };
                let expected = (at(1e-5) - at(-1e-5)) / 2e-5;
                assert!((found - expected).abs() < 1e-7 * (1.0 + expected.abs()), "{ranks:?} {i}");
            }
            assert!(gradient.iter().filter(|v| v.abs() > 1e-6).count() > network.count() / 2);
        }
    }
}
