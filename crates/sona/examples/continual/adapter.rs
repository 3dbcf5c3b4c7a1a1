//! Low-rank updates behind the last layer, with exact gradients.

use std::sync::Arc;

use ruvllm_sona::Result;
use ruvllm_sona::continual::{Learner, ParameterLayout, SampledGradient};

use crate::data::{DIM, Data, Token, dot};

/// Rank of both updates.
pub(crate) const RANK: usize = 4;

/// Logits `W (h + B A h) + C (D h)`: groups `final.A [RANK, DIM]`, `final.B [DIM, RANK]`,
/// `logits.D [RANK, DIM]` and `logits.C [vocabulary, RANK]`.
#[derive(Clone)]
pub(crate) struct Adapter {
    data: Arc<Data>,
    layout: ParameterLayout,
    parameters: Vec<f32>,
    /// `W B` beside `C`, `[vocabulary, 2 RANK]`.
    columns: Vec<[f32; 2 * RANK]>,
    logits: Vec<f32>,
    /// Sum of `g (A h, D h)` of a batch, `[vocabulary, 2 RANK]`.
    outer: Vec<[f32; 2 * RANK]>,
}

/// Distribution that a gradient is towards.
pub(crate) enum Target<'t> {
    /// The token that follows.
    Observed,
    /// A token drawn from the model itself.
    Sampled(&'t mut dyn FnMut() -> f64),
    /// Distribution of another adapter.
    Of(&'t mut Adapter),
}

const A: usize = 0;
const B: usize = RANK * DIM;
const D: usize = 2 * RANK * DIM;
const C: usize = 3 * RANK * DIM;

impl Adapter {
    /// Updates that change nothing yet: `A` and `D` uniform in `±1/sqrt(DIM)`, `B` and `C` zero.
    pub(crate) fn new(data: &Arc<Data>, mut uniform: impl FnMut() -> f64) -> Result<Self> {
        let vocabulary = data.vocabulary;
        let layout = ParameterLayout::new([
            ("final.A", RANK * DIM),
            ("final.B", DIM * RANK),
            ("logits.D", RANK * DIM),
            ("logits.C", vocabulary * RANK),
        ])?;
        let mut parameters = vec![0.0; layout.len()];
        for range in [A..B, D..C] {
            let bound = 1.0 / (DIM as f64).sqrt();
            parameters[range].fill_with(|| ((2.0 * uniform() - 1.0) * bound) as f32);
        }
        let zeros = vec![[0.0; 2 * RANK]; vocabulary];
        let (columns, outer, logits) = (zeros.clone(), zeros, vec![0.0; vocabulary]);
        Ok(Self { data: Arc::clone(data), layout, parameters, columns, logits, outer })
    }

    /// `A h` and `D h`.
    fn inputs(&self, state: &[f32]) -> [f32; 2 * RANK] {
        std::array::from_fn(|index| {
            let start = if index < RANK { A + index * DIM } else { D + (index - RANK) * DIM };
            dot(&self.parameters[start..start + DIM], state)
        })
    }

    /// Writes the distribution of a token into `logits`; returns the log of its normalizer.
    fn distribution(&mut self, token: Token) -> (f64, [f32; 2 * RANK]) {
        let set = &self.data.sets[token.set];
        let inputs = self.inputs(set.state(token.index));
        let base = set.logits(token.index, self.data.vocabulary);
        let mut largest = f32::NEG_INFINITY;
        for ((logit, base), columns) in self.logits.iter_mut().zip(base).zip(&self.columns) {
            let mut sum = *base;
            for (column, input) in columns.iter().zip(&inputs) {
                sum += column * input;
            }
            *logit = sum;
            largest = largest.max(sum);
        }
        let mut sum = 0.0_f64;
        for chunk in self.logits.chunks_mut(64) {
            let mut part = 0.0_f32;
            for logit in chunk {
                *logit = exp(*logit - largest);
                part += *logit;
            }
            sum += f64::from(part);
        }
        let scale = (1.0 / sum) as f32;
        self.logits.iter_mut().for_each(|logit| *logit *= scale);
        (sum.ln() + f64::from(largest), inputs)
    }

    /// Mean gradient over tokens, and the mean of `-log p` of the observed tokens.
    pub(crate) fn batch_gradient(
        &mut self,
        tokens: &[Token],
        mut target: Target<'_>,
        gradient: &mut [f32],
    ) -> Result<f64> {
        self.layout.check("gradient", gradient)?;
        gradient.fill(0.0);
        self.outer.fill([0.0; 2 * RANK]);
        let data = Arc::clone(&self.data);
        let weight = 1.0 / tokens.len() as f32;
        let mut loss = 0.0;
        for &token in tokens {
            let (_, inputs) = self.distribution(token);
            let observed = data.sets[token.set].targets[token.index] as usize;
            loss -= f64::from(self.logits[observed].max(f32::MIN_POSITIVE)).ln();
            match &mut target {
                Target::Observed => self.logits[observed] -= 1.0,
                Target::Sampled(uniform) => {
                    let mut rest = uniform() as f32;
                    let drawn = self.logits.iter().position(|p| {
                        rest -= p;
                        rest < 0.0
                    });
                    self.logits[drawn.unwrap_or(observed)] -= 1.0;
                }
                Target::Of(anchor) => {
                    anchor.distribution(token);
                    self.logits.iter_mut().zip(&anchor.logits).for_each(|(p, q)| *p -= q);
                }
            }
            // Gradient of the inputs, and outer products.
            let mut back = [0.0_f32; 2 * RANK];
            for ((&g, columns), outer) in self.logits.iter().zip(&self.columns).zip(&mut self.outer) {
                for (back, column) in back.iter_mut().zip(columns) {
                    *back += g * column;
                }
                for (outer, input) in outer.iter_mut().zip(&inputs) {
                    *outer += g * input;
                }
            }
            let state = data.sets[token.set].state(token.index);
            for (index, back) in back.iter().enumerate() {
                let start = if index < RANK { A + index * DIM } else { D + (index - RANK) * DIM };
                let row = &mut gradient[start..start + DIM];
                row.iter_mut().zip(state).for_each(|(row, x)| *row += weight * back * x);
            }
        }
        self.finish_outer(gradient, weight);
        Ok(loss / tokens.len() as f64)
    }

    /// Gradients of `C`, and of `B` by `W^T`.
    fn finish_outer(&self, gradient: &mut [f32], weight: f32) {
        let mut transposed = vec![0.0_f32; RANK * DIM];
        let (before_c, c) = gradient.split_at_mut(C);
        for ((outer, row), c) in
            self.outer.iter().zip(self.data.head.chunks_exact(DIM)).zip(c.chunks_exact_mut(RANK))
        {
            for (rank, sum) in transposed.chunks_exact_mut(DIM).enumerate() {
                let factor = outer[rank];
                sum.iter_mut().zip(row).for_each(|(sum, w)| *sum += factor * w);
            }
            c.iter_mut().zip(&outer[RANK..]).for_each(|(c, outer)| *c = weight * outer);
        }
        for (index, value) in before_c[B..D].iter_mut().enumerate() {
            *value = weight * transposed[index % RANK * DIM + index / RANK];
        }
    }

    /// Mean loss of tokens.
    pub(crate) fn mean_loss(&mut self, tokens: &[Token]) -> Result<f64> {
        let mut sum = 0.0;
        for token in tokens {
            sum += self.loss(token)?;
        }
        Ok(sum / tokens.len() as f64)
    }
}

impl Learner for Adapter {
    type Example = Token;

    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    fn set_parameters(&mut self, parameters: &[f32]) -> Result<()> {
        self.layout.check_finite("parameters", parameters)?;
        self.parameters.copy_from_slice(parameters);
        let b = &self.parameters[B..D];
        let transposed: Vec<f32> = (0..RANK * DIM).map(|i| b[i % DIM * RANK + i / DIM]).collect();
        let rows = self.data.head.chunks_exact(DIM).zip(self.parameters[C..].chunks_exact(RANK));
        for (columns, (row, c)) in self.columns.iter_mut().zip(rows) {
            for (column, b) in columns.iter_mut().zip(transposed.chunks_exact(DIM)) {
                *column = dot(row, b);
            }
            columns[RANK..].copy_from_slice(c);
        }
        Ok(())
    }

    fn loss(&mut self, token: &Token) -> Result<f64> {
        self.distribution(*token);
        let observed = self.data.sets[token.set].targets[token.index] as usize;
        Ok(-f64::from(self.logits[observed].max(f32::MIN_POSITIVE)).ln())
    }

    fn gradient(&mut self, token: &Token, gradient: &mut [f32]) -> Result<f64> {
        self.batch_gradient(&[*token], Target::Observed, gradient)
    }
}

impl SampledGradient for Adapter {
    fn sampled_gradient(
        &mut self,
        token: &Token,
        uniform: &mut dyn FnMut() -> f64,
        gradient: &mut [f32],
    ) -> Result<()> {
        self.batch_gradient(&[*token], Target::Sampled(uniform), gradient).map(|_| ())
    }
}

/// `e^x` for `x <= 0` within 2 units in the last place or so, without branches: the compiler
/// vectorizes it.
fn exp(x: f32) -> f32 {
    let x = x.max(-87.0) * std::f32::consts::LOG2_E;
    let whole = (x + 12_582_912.0) - 12_582_912.0;
    let part = (x - whole) * std::f32::consts::LN_2;
    let series = 1.0
        + part
            * (1.0
                + part
                    * (0.5 + part * (1.0 / 6.0 + part * (1.0 / 24.0 + part * (1.0 / 120.0 + part / 720.0)))));
    series * f32::from_bits(((whole as i32 + 127) << 23) as u32)
}
