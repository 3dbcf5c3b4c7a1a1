//! One layer of an encoder: attention, then the feed-forward network, each added to its input and
//! normed.

use std::mem;
use std::ops::Range;

use ruvllm_kernels::matmul::{Activations, MatmulJob};
use ruvllm_kernels::rows::Activation;

use super::attention::TextAttention;
use super::config::EncoderConfig;
use super::linear::{LayerNorm, Linear};
use super::weights::LayerWeights;
use crate::compute::Compute;
use crate::error::Result;
use crate::projection::{finish, project};
use crate::rows;
use crate::workspace::resize;

/// Reusable memory of an encoder's forward passes; one per concurrent caller. It grows to the
/// largest pass seen.
#[derive(Default)]
pub struct EncoderWorkspace {
    /// The states between layers and branches, `[tokens, model_dim]`.
    states: Activations,
    /// Output states of the step, `[tokens, model_dim]`; swapped with `states`.
    next: Activations,
    /// Output of a branch, then its sum with the states, `[tokens, model_dim]`.
    update: Vec<f32>,
    /// `[tokens, model_dim]` each.
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Attention output, `[tokens, model_dim]`.
    attended: Activations,
    /// `[tokens, ffn_dim]`
    inner: Activations,
    attention: TextAttention,
}

impl EncoderWorkspace {
    /// A workspace without any memory yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sizes the buffers for `n_tokens` rows, of which the longest text has `longest`.
    pub(super) fn prepare(&mut self, config: &EncoderConfig, n_tokens: usize, longest: usize) -> Result<()> {
        let n_values = n_tokens.saturating_mul(config.model_dim);
        for buffer in [&mut self.update, &mut self.queries, &mut self.keys, &mut self.values] {
            resize(buffer, n_values, "hidden states")?;
        }
        for states in [&mut self.states, &mut self.next, &mut self.attended] {
            states.resize(n_tokens, config.model_dim);
        }
        self.inner.resize(n_tokens, config.ffn_dim);
        self.attention.prepare(config, longest)
    }

    /// Rows for sums of embeddings, and the states that they become, `[tokens, model_dim]` each.
    pub(super) fn embedding_buffers(&mut self) -> (&mut [f32], &mut [f32]) {
        (&mut self.update, self.states.values_mut())
    }

    /// The states, `[tokens, model_dim]`.
    pub(super) fn states(&self) -> &[f32] {
        self.states.values()
    }
}

impl std::fmt::Debug for EncoderWorkspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EncoderWorkspace").field("tokens", &self.states.tokens()).finish_non_exhaustive()
    }
}

/// One layer and what it runs with.
pub(super) struct Layer<'a> {
    pub(super) config: &'a EncoderConfig,
    pub(super) weights: &'a LayerWeights,
    pub(super) compute: &'a Compute,
}

impl Layer<'_> {
    /// Replaces the states of all texts, which are at `spans`, by the layer's output.
    pub(super) fn forward(&self, workspace: &mut EncoderWorkspace, spans: &[Range<usize>]) {
        let Layer { config, weights, compute } = self;
        let EncoderWorkspace { states, next, update, queries, keys, values, attended, inner, attention } =
            workspace;
        let mut jobs = [
            MatmulJob { weights: &weights.query.weights, out: &mut *queries },
            MatmulJob { weights: &weights.key.weights, out: &mut *keys },
            MatmulJob { weights: &weights.value.weights, out: &mut *values },
        ];
        project(compute, states, &mut jobs);
        let [query_rows, key_rows, value_rows] =
            [&mut *queries, &mut *keys, &mut *values].map(|rows| rows.chunks_exact_mut(config.model_dim));
        rows::for_each(&compute.pool, query_rows.zip(key_rows).zip(value_rows), |((query, key), value)| {
            for (row, linear) in [(query, &weights.query), (key, &weights.key), (value, &weights.value)] {
                compute.kernels.add_assign(row, &linear.bias);
            }
        });
        let out = attended.values_mut();
        for span in spans {
            let range = span.start * config.model_dim..span.end * config.model_dim;
            let [queries, keys, values] = [&*queries, &*keys, &*values].map(|rows| &rows[range.clone()]);
            attention.attend(compute, config, [queries, keys, values], &mut out[range]);
        }
        self.add_and_norm(&weights.attention_output, &weights.attention_norm, attended, update, states, next);
        mem::swap(states, next);

        let up = &weights.up;
        project(compute, states, &mut [MatmulJob { weights: &up.weights, out: inner.values_mut() }]);
        finish(compute, inner, weights.down.weights.format().uses_q8(), &|_, rows| {
            for row in rows.chunks_exact_mut(config.ffn_dim) {
                compute.kernels.add_assign(row, &up.bias);
            }
            compute.kernels.activate(Activation::GeluErf, rows);
        });
        self.add_and_norm(&weights.down, &weights.ffn_norm, inner, update, states, next);
        mem::swap(states, next);
    }

    /// The norm of the states plus the projection of `input`.
    fn add_and_norm(
        &self,
        linear: &Linear,
        norm: &LayerNorm,
        input: &mut Activations,
        update: &mut [f32],
        states: &Activations,
        next: &mut Activations,
    ) {
        let Layer { config, compute, .. } = self;
        let Compute { kernels, pool, .. } = compute;
        let (dim, norm) = (config.model_dim, norm.norm());
        project(compute, input, &mut [MatmulJob { weights: &linear.weights, out: &mut *update }]);
        let rows = update.chunks_exact_mut(dim).zip(states.values().chunks_exact(dim));
        rows::for_each(pool, rows.zip(next.values_mut().chunks_exact_mut(dim)), |((update, state), next)| {
            kernels.add_assign(update, &linear.bias);
            kernels.add_norm(norm, config.norm_eps, update, state, next);
        });
    }
}
