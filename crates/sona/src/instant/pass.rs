//! Forward and backward pass from final hidden states to the loss, over the candidates of each
//! position.

use ruvllm_kernels::Kernels;
use ruvllm_kernels::rows::MatrixView;

use super::head::OutputHead;
use super::observation::{DRAWS, Observation};
use super::parameters::{MAX_RANK, Shape};

/// Probabilities at one position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// Log-probability of the target with the updates, in nats.
    pub log_probability: f64,
    /// Log-probability of the target without them.
    pub base_log_probability: f64,
    /// Kullback-Leibler divergence of the distribution with the updates from that of the base
    /// model, KL(base || updated).
    pub divergence: f64,
}

/// Gradient of a loss with respect to all parameters.
#[derive(Debug, Clone)]
pub(super) struct Gradient {
    /// `[parameters]`, in the places of [`Shape`]; zero in the columns of `D` that are not touched.
    values: Vec<f32>,
    /// Tokens whose columns of `D` are touched, in the order of their first use.
    touched: Vec<u32>,
    /// True for these, by token.
    is_touched: Vec<bool>,
}

impl Gradient {
    pub(super) fn new(shape: &Shape) -> Self {
        let tokens = if shape.logits_rank > 0 { shape.vocab_size } else { 0 };
        Self { values: vec![0.0; shape.len()], touched: Vec::new(), is_touched: vec![false; tokens] }
    }

    /// Sets all values to zero, in time proportional to those that are not.
    pub(super) fn clear(&mut self, shape: &Shape) {
        self.values[..shape.logits_b().start].fill(0.0);
        for token in self.touched.drain(..) {
            self.is_touched[token as usize] = false;
            shape.column(token).for_each(|place| self.values[place] = 0.0);
        }
    }

    /// Values, zero in the columns of `D` that are not touched.
    pub(super) fn values(&self) -> &[f32] {
        &self.values
    }

    /// Tokens whose columns of `D` are touched.
    pub(super) fn touched(&self) -> &[u32] {
        &self.touched
    }

    /// Places of the touched columns of `D`.
    pub(super) fn touched_places(&self, shape: &Shape) -> impl Iterator<Item = usize> {
        self.touched.iter().flat_map(|&token| shape.column(token))
    }

    /// Euclidean norm.
    pub(super) fn norm(&self, shape: &Shape) -> f32 {
        let dense = self.values[..shape.logits_b().start].iter().map(|g| g * g).sum::<f32>();
        let columns = self.touched_places(shape).map(|place| self.values[place] * self.values[place]);
        (dense + columns.sum::<f32>()).sqrt()
    }

    fn touch(&mut self, token: u32) {
        if !std::mem::replace(&mut self.is_touched[token as usize], true) {
            self.touched.push(token);
        }
    }
}

/// Buffers of a pass over one position at a time.
#[derive(Debug, Clone)]
pub(super) struct Pass {
    shape: Shape,
    kernels: Kernels,
    soft_cap: Option<f32>,
    /// Rows of the output projection: target, candidates, draws of the tail; `[tokens, model_dim]`.
    rows: Vec<f32>,
    tokens: Vec<u32>,
    /// Logits of these tokens, with those of the draws moved so that each has its share of the tail
    /// without updates; then their probabilities.
    updated: Vec<f32>,
    base: Vec<f32>,
    /// Derivative of each logit behind the soft cap.
    slopes: Vec<f32>,
    /// `A h` and `C h'`.
    shrunk: [[f32; MAX_RANK]; 2],
    /// `h'`, `[model_dim]`.
    hidden: Vec<f32>,
    /// Gradient with respect to `h'`, `[model_dim]`.
    hidden_gradient: Vec<f32>,
}

impl Pass {
    pub(super) fn new(shape: Shape, head: &dyn OutputHead) -> Self {
        Self {
            shape,
            kernels: head.kernels(),
            soft_cap: head.soft_cap(),
            rows: Vec::new(),
            tokens: Vec::new(),
            updated: Vec::new(),
            base: Vec::new(),
            slopes: Vec::new(),
            shrunk: [[0.0; MAX_RANK]; 2],
            hidden: vec![0.0; shape.model_dim],
            hidden_gradient: vec![0.0; shape.model_dim],
        }
    }

    /// Computes the probabilities at a position, which [`backward`](Self::backward) uses.
    pub(super) fn forward(
        &mut self,
        head: &dyn OutputHead,
        parameters: &[f32],
        at: Observation<'_>,
    ) -> Score {
        let Self { shape, kernels, rows, tokens, updated, base, slopes, shrunk, hidden, .. } = self;
        let dim = shape.model_dim;
        let row = |range: std::ops::Range<usize>, index: usize, width: usize| {
            &parameters[range.start + index * width..][..width]
        };
        hidden.copy_from_slice(at.hidden);
        for (component, by) in shrunk[0][..shape.hidden_rank].iter_mut().enumerate() {
            *by = kernels.dot(row(shape.hidden_a(), component, dim), at.hidden);
            for (out, value) in hidden.iter_mut().zip(row(shape.hidden_b(), component, dim)) {
                *out += *by * value;
            }
        }
        for (component, by) in shrunk[1][..shape.logits_rank].iter_mut().enumerate() {
            *by = kernels.dot(row(shape.logits_a(), component, dim), hidden);
        }

        tokens.clear();
        tokens.push(at.target);
        tokens.extend(at.others.iter().filter(|&&token| token != at.target));
        let known = tokens.len();
        if at.tail.is_finite() {
            tokens.extend_from_slice(at.draws);
        }
        let share = at.tail - (DRAWS as f32).ln();
        rows.resize(tokens.len() * dim, 0.0);
        updated.clear();
        base.clear();
        slopes.clear();
        let places = shape.logits_b();
        for (index, (&token, row)) in tokens.iter().zip(rows.chunks_exact_mut(dim)).enumerate() {
            head.row(token, row);
            let bias = head.bias(token);
            let mut logit = kernels.dot(row, hidden) + bias;
            for (component, by) in shrunk[1][..shape.logits_rank].iter().enumerate() {
                logit += by * parameters[places.start + component * shape.vocab_size + token as usize];
            }
            let plain = kernels.dot(row, at.hidden) + bias;
            let (logit, slope) = cap(logit, self.soft_cap);
            let plain = cap(plain, self.soft_cap).0;
            let moved = if index < known { 0.0 } else { share - plain };
            updated.push(logit + moved);
            slopes.push(slope);
            base.push(plain + moved);
        }
        let (target, plain_target) = (updated[0], base[0]);
        let (sum, plain_sum) = (kernels.log_sum_exp(updated), kernels.log_sum_exp(base));
        let divergence = base.iter().zip(&*updated).map(|(plain, logit)| {
            let (from, to) = (f64::from(plain - plain_sum), f64::from(logit - sum));
            from.exp() * (from - to)
        });
        let score = Score {
            log_probability: f64::from(target) - f64::from(sum),
            base_log_probability: f64::from(plain_target) - f64::from(plain_sum),
            divergence: divergence.sum::<f64>().max(0.0),
        };
        kernels.softmax(updated);
        kernels.softmax(base);
        score
    }

    /// Adds the gradient of `-target_weight * ln p(target) + base_weight * KL(base || updated)` at
    /// the position of the last [`forward`](Self::forward).
    pub(super) fn backward(
        &mut self,
        parameters: &[f32],
        at: Observation<'_>,
        (target_weight, base_weight): (f32, f32),
        gradient: &mut Gradient,
    ) {
        let Self {
            shape, kernels, rows, tokens, updated, base, slopes, shrunk, hidden, hidden_gradient, ..
        } = self;
        let dim = shape.model_dim;
        // From here on `updated` holds the gradient with respect to each logit before the cap.
        for (index, ((p, plain), slope)) in updated.iter_mut().zip(&*base).zip(&*slopes).enumerate() {
            let label = if index == 0 { 1.0 } else { 0.0 };
            *p = (target_weight * (*p - label) + base_weight * (*p - plain)) * slope;
        }
        let by_logit = &updated[..];
        hidden_gradient.fill(0.0);
        let weights = MatrixView::new(by_logit, 1, tokens.len(), tokens.len());
        kernels.add_product(hidden_gradient, weights, MatrixView::new(rows, tokens.len(), dim, dim));

        if shape.logits_rank > 0 {
            let places = shape.logits_b();
            tokens.iter().for_each(|&token| gradient.touch(token));
            for (component, &by) in shrunk[1][..shape.logits_rank].iter().enumerate() {
                let column = places.start + component * shape.vocab_size;
                let mut sum = 0.0;
                for (&token, g) in tokens.iter().zip(by_logit) {
                    gradient.values[column + token as usize] += by * g;
                    sum += g * parameters[column + token as usize];
                }
                let a = shape.logits_a().start + component * dim;
                add_scaled(&mut gradient.values[a..][..dim], sum, hidden);
                add_scaled(hidden_gradient, sum, &parameters[a..][..dim]);
            }
        }
        for (component, &by) in shrunk[0][..shape.hidden_rank].iter().enumerate() {
            let (a, b) = (shape.hidden_a().start + component * dim, shape.hidden_b().start + component * dim);
            let back = kernels.dot(&parameters[b..][..dim], hidden_gradient);
            add_scaled(&mut gradient.values[b..][..dim], by, hidden_gradient);
            add_scaled(&mut gradient.values[a..][..dim], back, at.hidden);
        }
    }
}

/// Logit behind the soft cap, and its derivative.
fn cap(logit: f32, cap: Option<f32>) -> (f32, f32) {
    match cap {
        None => (logit, 1.0),
        Some(cap) => {
            let share = 1.0 - 2.0 / ((2.0 * f64::from(logit) / f64::from(cap)).exp() + 1.0);
            ((f64::from(cap) * share) as f32, (1.0 - share * share) as f32)
        }
    }
}

fn add_scaled(sum: &mut [f32], by: f32, values: &[f32]) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum += by * value;
    }
}
