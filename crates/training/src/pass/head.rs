//! Final norm, logits and scores of the scored tokens, in chunks: logits of a whole batch are never
//! in memory. The gradient of each score with respect to the final hidden state is computed with
//! it; a loss is a weighted sum of these, whatever its weights are.

use std::ops::Range;

use ruvllm_kernels::Kernels;
use ruvllm_kernels::matmul::{Activations, MatmulJob};
use ruvllm_kernels::quant::PackedMatrix;
use ruvllm_models::{Compute, Model};

use super::{Backprop, LogProbabilities};
use crate::attention::tanh;
use crate::batch::Rows;
use crate::parallel;

/// Logits of a chunk.
const CHUNK_LOGITS: usize = 1 << 21;

/// Memory of the head.
#[derive(Default)]
pub(super) struct Memory {
    student: Chunk,
    teacher: Chunk,
    /// Gradient of each score with respect to the normed hidden state, `[scored, model_dim]`; empty
    /// without.
    gradients: Vec<f32>,
    /// Scored tokens that `gradients` are of.
    n_gradients: usize,
}

/// Normed hidden states of some scored tokens, and their logits.
#[derive(Default)]
struct Chunk {
    normed: Activations,
    logits: Activations,
}

/// Final hidden states of a teacher at the scored tokens of a batch, behind its final norm.
///
/// They are a fraction of its logits: the head makes those chunk by chunk, beside the student's.
pub(crate) struct TeacherStates<'t> {
    pub(super) model: &'t Model,
    /// `[scored, model_dim]`.
    pub(super) normed: Vec<f32>,
}

/// Output projection of a model.
struct Output<'m> {
    weights: &'m PackedMatrix,
    bias: Option<&'m [f32]>,
    soft_cap: Option<f32>,
}

/// Logits of one scored token, behind bias and soft cap.
pub(super) struct Logits<'l> {
    /// Logits of the model; where gradients are wanted, they are replaced by the derivatives of the
    /// score with respect to them.
    pub(super) student: &'l mut [f32],
    /// Logits of the teacher; empty without one.
    pub(super) teacher: &'l mut [f32],
    /// The token.
    pub(super) token: usize,
}

impl Memory {
    /// True if the gradients of `n` scored tokens are there.
    pub(super) fn has_gradients(&self, n: usize) -> bool {
        self.n_gradients == n && n > 0
    }
}

impl Chunk {
    /// Computes the logits of the `n` states in `normed`, without bias and soft cap.
    fn project(&mut self, output: &Output<'_>, compute: &Compute, (n, vocab_size): (usize, usize)) {
        if output.weights.format().uses_q8() {
            self.normed.quantize(&compute.kernels, &compute.pool);
        }
        self.logits.resize(n, vocab_size);
        let logits = self.logits.values_mut();
        compute.kernels.matmul(&compute.pool, output.weights, &self.normed, logits);
    }
}

impl TeacherStates<'_> {
    /// States of some scored tokens.
    fn rows(&self, scored: Range<usize>) -> &[f32] {
        let dim = self.model.config().model_dim;
        &self.normed[scored.start * dim..scored.end * dim]
    }
}

impl<'m> Output<'m> {
    fn of(model: &'m Model) -> Self {
        let weights = model.weights();
        let output = weights.output.as_ref();
        let (weights, bias) =
            output.map_or((&weights.embedding, None), |linear| (&linear.weights, linear.bias.as_deref()));
        Self { weights, bias, soft_cap: model.config().decoder.logits_soft_cap }
    }

    /// Applies bias and soft cap to a row of logits.
    fn finish(&self, kernels: &Kernels, logits: &mut [f32]) {
        if let Some(bias) = self.bias {
            kernels.add_assign(logits, bias);
        }
        if let Some(cap) = self.soft_cap {
            logits.iter_mut().for_each(|logit| {
                *logit = cap * tanh(f64::from(*logit) / f64::from(cap)) as f32;
            });
        }
    }

    /// Derivatives of capped logits with respect to those before the cap, `1 - (z / cap)^2`; `None`
    /// without a cap.
    fn slopes(&self, logits: &[f32]) -> Option<Vec<f32>> {
        let slope = |cap: f32| logits.iter().map(move |logit| 1.0 - (logit / cap) * (logit / cap)).collect();
        self.soft_cap.map(slope)
    }
}

/// Writes the final norm of the rows before scored tokens: `[scored, model_dim]`.
pub(super) fn norm_rows(
    (model, kernels): (&Model, &Kernels),
    hidden: &[f32],
    scored: &[(usize, u32)],
    out: &mut [f32],
) {
    let (dim, eps) = (model.config().model_dim, model.config().norm_eps);
    for ((row, _), out) in scored.iter().zip(out.chunks_exact_mut(dim)) {
        kernels.rms_norm(&hidden[row * dim..][..dim], &model.weights().output_norm, eps, out);
    }
}

impl Backprop<'_> {
    /// Log-probabilities of all scored tokens from the residual stream, with their gradients if
    /// these are wanted.
    pub(super) fn score(&mut self, rows: &Rows, with_gradients: bool) -> LogProbabilities {
        let tokens = self.score_with(rows, None, with_gradients, |kernels, Logits { student, token, .. }| {
            let log_probability = student[token] - kernels.log_sum_exp(student);
            if with_gradients {
                differentiate(kernels, student, token);
            }
            log_probability
        });
        LogProbabilities { tokens, sequences: rows.scored_of().to_vec() }
    }

    /// Scores of all scored tokens from the residual stream, and their gradients if these are
    /// wanted: `score` then replaces the logits by its derivatives. `teacher` has states of the
    /// same scored tokens.
    pub(super) fn score_with<V: Clone + Default + Send>(
        &mut self,
        rows: &Rows,
        teacher: Option<&TeacherStates<'_>>,
        with_gradients: bool,
        score: impl Fn(&Kernels, Logits<'_>) -> V + Sync,
    ) -> Vec<V> {
        let (model, compute, scored) = (self.model, self.compute, rows.scored());
        let (dim, vocab_size) = (model.config().model_dim, model.config().vocab_size);
        let chunk = (CHUNK_LOGITS / vocab_size).clamp(16, 512);
        let output = Output::of(model);
        let mut scores = vec![V::default(); scored.len()];
        let super::Memory { head, hidden, .. } = &mut self.memory;
        head.n_gradients = if with_gradients { scored.len() } else { 0 };
        head.gradients.resize(head.n_gradients * dim, 0.0);
        for (index, (scored, out)) in scored.chunks(chunk).zip(scores.chunks_mut(chunk)).enumerate() {
            let (first, kernels) = (index * chunk, &compute.kernels);
            norm_rows((model, kernels), hidden, scored, head.student.normed.resize(scored.len(), dim));
            head.student.project(&output, compute, (scored.len(), vocab_size));
            let teacher = teacher.map(|teacher| {
                let states = teacher.rows(first..first + scored.len());
                head.teacher.normed.resize(scored.len(), states.len() / scored.len()).copy_from_slice(states);
                let output = Output::of(teacher.model);
                head.teacher.project(&output, compute, (scored.len(), vocab_size));
                (output, head.teacher.logits.values_mut())
            });
            let (teacher_output, teacher_logits) = teacher.unzip();
            let mut teachers = teacher_logits.unwrap_or_default().chunks_exact_mut(vocab_size);
            // Without a teacher each token has an empty row of it.
            let teachers = std::iter::from_fn(move || Some(teachers.next().unwrap_or_default()));
            let students = head.student.logits.values_mut().chunks_exact_mut(vocab_size);
            let lines = students.zip(teachers).zip(out).zip(scored);
            parallel::for_each(&compute.pool, lines, |(((student, teacher), out), &(_, token))| {
                output.finish(kernels, student);
                if let Some(output) = &teacher_output {
                    output.finish(kernels, teacher);
                }
                let slopes = if with_gradients { output.slopes(student) } else { None };
                *out = score(kernels, Logits { student: &mut *student, teacher, token: token as usize });
                for (gradient, slope) in student.iter_mut().zip(slopes.iter().flatten()) {
                    *gradient *= slope;
                }
            });
            if let Some(transposed) = self.transposed.as_ref().filter(|_| with_gradients) {
                let logits = &mut head.student.logits;
                if transposed.output.format().uses_q8() {
                    logits.quantize(kernels, &compute.pool);
                }
                let out = &mut head.gradients[first * dim..][..scored.len() * dim];
                let job = MatmulJob { weights: &transposed.output, out };
                kernels.matmul_many(&compute.pool, logits, &mut [job]);
            }
        }
        scores
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

/// Replaces logits by the derivatives of a token's log-probability with respect to them: `1 - p`
/// for the token, `-p` for the others.
pub(super) fn differentiate(kernels: &Kernels, logits: &mut [f32], token: usize) {
    kernels.softmax(logits);
    logits.iter_mut().for_each(|p| *p = -*p);
    logits[token] += 1.0;
}
