//! Forward and backward pass from final hidden states to the loss, over the candidates of each
//! position.

use ruvllm_kernels::Kernels;

use super::head::OutputHead;
use super::observation::{DRAWS, Observation};
use super::parameters::{MAX_RANK, Shape};
use super::table::RowTable;

/// Probabilities at one position.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
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
    pub(super) fn norm(&self, kernels: &Kernels, shape: &Shape) -> f32 {
        let dense = &self.values[..shape.logits_b().start];
        let dense = kernels.dot(dense, dense);
        let columns = self.touched_places(shape).map(|place| self.values[place] * self.values[place]);
        (dense + columns.sum::<f32>()).sqrt()
    }

    fn touch(&mut self, token: u32) {
        if !std::mem::replace(&mut self.is_touched[token as usize], true) {
            self.touched.push(token);
        }
    }
}

/// A position with its probabilities: without updates, and under the parameters of the last
/// [`forward`](Pass::forward).
#[derive(Debug, Clone, Default)]
pub(super) struct Position {
    /// Target, candidates, draws of the tail.
    tokens: Vec<u32>,
    /// Their rows in the table.
    rows: Vec<u32>,
    /// Numbers that are added to the logits: of the draws, so that each has its share of the tail
    /// without updates; 0 for the others.
    moved: Vec<f32>,
    /// Logits without updates, so moved.
    base_logits: Vec<f32>,
    /// Probabilities without updates.
    base: Vec<f32>,
    /// Log-sum-exp of the logits without updates.
    base_sum: f32,
    /// Probabilities with updates.
    updated: Vec<f32>,
    /// Derivative of each logit behind the soft cap.
    slopes: Vec<f32>,
    /// `A h` and `C h'`.
    shrunk: [[f32; MAX_RANK]; 2],
    /// `h'`, `[model_dim]`.
    hidden: Vec<f32>,
    /// Log-probabilities and divergence.
    score: Score,
}

impl Position {
    /// Takes the rows of a position and computes its probabilities without updates.
    pub(super) fn prepare(&mut self, head: &dyn OutputHead, table: &mut RowTable, at: Observation<'_>) {
        let Self { tokens, rows, moved, base_logits, base, base_sum, .. } = self;
        tokens.clear();
        tokens.push(at.target);
        tokens.extend(at.others.iter().filter(|&&token| token != at.target));
        let known = tokens.len();
        if at.tail.is_finite() {
            tokens.extend_from_slice(at.draws);
        }
        rows.clear();
        rows.extend(tokens.iter().map(|&token| table.row(head, token)));
        let share = at.tail - (DRAWS as f32).ln();
        base_logits.resize(tokens.len(), 0.0);
        let kernels = table.kernels();
        kernels.dots(at.hidden, table.select(rows), base_logits);
        moved.clear();
        for (index, (&token, logit)) in tokens.iter().zip(&mut *base_logits).enumerate() {
            let plain = cap(*logit + head.bias(token), head.soft_cap()).0;
            moved.push(if index < known { 0.0 } else { share - plain });
            *logit = if index < known { plain } else { share };
        }
        *base_sum = kernels.log_sum_exp(base_logits);
        base.clone_from(base_logits);
        kernels.softmax(base);
    }

    /// Score of the last [`forward`](Pass::forward).
    pub(super) fn score(&self) -> &Score {
        &self.score
    }
}

/// A pass over one position at a time.
#[derive(Debug, Clone)]
pub(super) struct Pass {
    shape: Shape,
    kernels: Kernels,
    soft_cap: Option<f32>,
    /// Gradient with respect to each logit before the cap.
    by_logit: Vec<f32>,
    /// Gradient with respect to `h'`, `[model_dim]`.
    hidden_gradient: Vec<f32>,
}

impl Pass {
    pub(super) fn new(shape: Shape, head: &dyn OutputHead) -> Self {
        Self {
            shape,
            kernels: head.kernels(),
            soft_cap: head.soft_cap(),
            by_logit: Vec::new(),
            hidden_gradient: vec![0.0; shape.model_dim],
        }
    }

    /// Computes the probabilities at a position under `parameters`.
    pub(super) fn forward(
        &self,
        (head, table): (&dyn OutputHead, &RowTable),
        parameters: &[f32],
        at: Observation<'_>,
        position: &mut Position,
    ) {
        let Self { shape, kernels, .. } = self;
        let Position { tokens, rows, moved, base_logits, base, base_sum, .. } = position;
        let Position { updated, slopes, shrunk, hidden, score, .. } = position;
        let dim = shape.model_dim;
        let row = |range: std::ops::Range<usize>, index: usize, width: usize| {
            &parameters[range.start + index * width..][..width]
        };
        hidden.clear();
        hidden.extend_from_slice(at.hidden);
        for (component, by) in shrunk[0][..shape.hidden_rank].iter_mut().enumerate() {
            *by = kernels.dot(row(shape.hidden_a(), component, dim), at.hidden);
            add_scaled(hidden, *by, row(shape.hidden_b(), component, dim));
        }
        for (component, by) in shrunk[1][..shape.logits_rank].iter_mut().enumerate() {
            *by = kernels.dot(row(shape.logits_a(), component, dim), hidden);
        }

        updated.resize(tokens.len(), 0.0);
        kernels.dots(hidden, table.select(rows), updated);
        slopes.clear();
        let places = shape.logits_b();
        for ((&token, logit), moved) in tokens.iter().zip(&mut *updated).zip(&*moved) {
            let mut sum = *logit + head.bias(token);
            for (component, by) in shrunk[1][..shape.logits_rank].iter().enumerate() {
                sum += by * parameters[places.start + component * shape.vocab_size + token as usize];
            }
            let (capped, slope) = cap(sum, self.soft_cap);
            *logit = capped + moved;
            slopes.push(slope);
        }
        let sum = kernels.log_sum_exp(updated);
        let pairs = base_logits.iter().zip(&*updated).zip(&*base);
        let divergence = pairs.map(|((plain, logit), p)| {
            f64::from(*p) * (f64::from(plain - *base_sum) - f64::from(logit - sum))
        });
        *score = Score {
            log_probability: f64::from(updated[0]) - f64::from(sum),
            base_log_probability: f64::from(base_logits[0]) - f64::from(*base_sum),
            divergence: divergence.sum::<f64>().max(0.0),
        };
        kernels.softmax(updated);
    }

    /// Adds the gradient of `-target_weight * ln p(target) + base_weight * KL(base || updated)` at
    /// a position behind its [`forward`](Self::forward) with the same parameters.
    pub(super) fn backward(
        &mut self,
        table: &RowTable,
        parameters: &[f32],
        (at, position): (Observation<'_>, &Position),
        (target_weight, base_weight): (f32, f32),
        gradient: &mut Gradient,
    ) {
        let Self { shape, kernels, by_logit, hidden_gradient, .. } = self;
        let Position { tokens, rows, base, updated, slopes, shrunk, hidden, .. } = position;
        let dim = shape.model_dim;
        by_logit.clear();
        by_logit.extend(updated.iter().zip(base).zip(slopes).enumerate().map(
            |(index, ((p, plain), slope))| {
                let label = if index == 0 { 1.0 } else { 0.0 };
                (target_weight * (p - label) + base_weight * (p - plain)) * slope
            },
        ));
        hidden_gradient.fill(0.0);
        kernels.add_rows(hidden_gradient, by_logit, table.select(rows));

        if shape.logits_rank > 0 {
            let places = shape.logits_b();
            tokens.iter().for_each(|&token| gradient.touch(token));
            for (component, &by) in shrunk[1][..shape.logits_rank].iter().enumerate() {
                let column = places.start + component * shape.vocab_size;
                let mut sum = 0.0;
                for (&token, g) in tokens.iter().zip(&*by_logit) {
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
