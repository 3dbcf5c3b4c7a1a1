//! Final norm, logits and log-probabilities, in chunks of scored tokens: logits of a whole batch
//! are never in memory. The gradient of each log-probability with respect to the final hidden state
//! is computed with it; a loss is a weighted sum of these, whatever its weights are.

use ruvllm_kernels::matmul::{Activations, MatmulJob};

use super::{Backprop, LogProbabilities};
use crate::attention::tanh;
use crate::batch::Rows;
use crate::parallel;

/// Logits of a chunk.
const CHUNK_LOGITS: usize = 1 << 21;

/// Memory of the head.
#[derive(Default)]
pub(super) struct Memory {
    normed: Activations,
    logits: Activations,
    /// Gradient of each log-probability with respect to the normed hidden state, `[scored,
    /// model_dim]`; empty without.
    gradients: Vec<f32>,
    /// Scored tokens that `gradients` are of.
    n_gradients: usize,
}

impl Memory {
    /// True if the gradients of `n` scored tokens are there.
    pub(super) fn has_gradients(&self, n: usize) -> bool {
        self.n_gradients == n && n > 0
    }
}

impl Backprop<'_> {
    /// Log-probabilities of all scored tokens from the residual stream, with their gradients if
    /// these are wanted.
    pub(super) fn score(&mut self, rows: &Rows, with_gradients: bool) -> LogProbabilities {
        let (config, weights) = (self.model.config(), self.model.weights());
        let (dim, vocab_size, scored) = (config.model_dim, config.vocab_size, rows.scored());
        let chunk = (CHUNK_LOGITS / vocab_size).clamp(16, 512);
        let mut tokens = vec![0.0; scored.len()];
        self.memory.head.n_gradients = if with_gradients { scored.len() } else { 0 };
        self.memory.head.gradients.resize(self.memory.head.n_gradients * dim, 0.0);
        let output = weights.output.as_ref();
        let (matrix, bias) =
            output.map_or((&weights.embedding, None), |linear| (&linear.weights, linear.bias.as_deref()));
        for (index, (scored, out)) in scored.chunks(chunk).zip(tokens.chunks_mut(chunk)).enumerate() {
            self.norm_rows(scored, matrix.format().uses_q8());
            let super::Memory { head, .. } = &mut self.memory;
            let kernels = &self.compute.kernels;
            head.logits.resize(scored.len(), vocab_size);
            let logits = head.logits.values_mut();
            kernels.matmul(&self.compute.pool, matrix, &head.normed, logits);
            let cap = config.decoder.logits_soft_cap;
            let lines = logits.chunks_exact_mut(vocab_size).zip(out).zip(scored);
            parallel::for_each(&self.compute.pool, lines, |((logits, out), &(_, token))| {
                if let Some(bias) = bias {
                    kernels.add_assign(logits, bias);
                }
                if let Some(cap) = cap {
                    logits.iter_mut().for_each(|logit| {
                        *logit = cap * tanh(f64::from(*logit) / f64::from(cap)) as f32;
                    });
                }
                *out = logits[token as usize] - kernels.log_sum_exp(logits);
                if with_gradients {
                    differentiate(kernels, logits, token as usize, cap);
                }
            });
            if let Some(transposed) = self.transposed.as_ref().filter(|_| with_gradients) {
                if transposed.output.format().uses_q8() {
                    head.logits.quantize(kernels, &self.compute.pool);
                }
                let first = index * chunk * dim;
                let out = &mut head.gradients[first..first + scored.len() * dim];
                let job = MatmulJob { weights: &transposed.output, out };
                kernels.matmul_many(&self.compute.pool, &head.logits, &mut [job]);
            }
        }
        LogProbabilities { tokens, sequences: rows.scored_of().to_vec() }
    }

    /// Final norm of the rows before scored tokens.
    fn norm_rows(&mut self, scored: &[(usize, u32)], q8: bool) {
        let (dim, eps) = (self.model.config().model_dim, self.model.config().norm_eps);
        let weight = &self.model.weights().output_norm;
        let super::Memory { head, hidden, .. } = &mut self.memory;
        let kernels = &self.compute.kernels;
        for ((row, _), out) in scored.iter().zip(head.normed.resize(scored.len(), dim).chunks_exact_mut(dim))
        {
            kernels.rms_norm(&hidden[row * dim..][..dim], weight, eps, out);
        }
        if q8 {
            head.normed.quantize(kernels, &self.compute.pool);
        }
    }

    /// Makes the gradient of the residual stream from coefficients of the scored tokens.
    pub(super) fn scored_gradients(&mut self, rows: &Rows, coefficients: &[f32]) {
        let (dim, eps) = (self.model.config().model_dim, self.model.config().norm_eps);
        let weight = &self.model.weights().output_norm;
        let super::Memory { head, hidden, stream, .. } = &mut self.memory;
        stream.clear();
        stream.resize(hidden.len(), 0.0);
        let scored = rows.scored().iter().zip(head.gradients.chunks_exact_mut(dim)).zip(coefficients);
        for ((&(row, _), gradient), &coefficient) in scored {
            gradient.iter_mut().for_each(|value| *value *= coefficient);
            let range = row * dim..(row + 1) * dim;
            let out = &mut stream[range.clone()];
            self.compute.kernels.add_rms_norm_backward(&hidden[range], weight, eps, gradient, out);
        }
        head.n_gradients = 0;
    }
}

/// Replaces capped logits by the derivatives of a token's log-probability with respect to the
/// logits before their cap: `(1 - p_t) (1 - (z / cap)^2)` for the token, `-p` for the others.
fn differentiate(kernels: &ruvllm_kernels::Kernels, logits: &mut [f32], token: usize, cap: Option<f32>) {
    let slopes: Option<Vec<f32>> =
        cap.map(|cap| logits.iter().map(|logit| 1.0 - (logit / cap) * (logit / cap)).collect());
    kernels.softmax(logits);
    logits.iter_mut().for_each(|p| *p = -*p);
    logits[token] += 1.0;
    if let Some(slopes) = slopes {
        logits.iter_mut().zip(&slopes).for_each(|(gradient, slope)| *gradient *= slope);
    }
}
