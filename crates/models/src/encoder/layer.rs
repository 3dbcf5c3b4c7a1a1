//! One layer of an encoder: attention, then the feed-forward network, each added to the residual
//! stream, with norms where the architecture has them.

use std::ops::Range;

use ruvllm_kernels::matmul::{Activations, MatmulJob};
use ruvllm_kernels::rope::{RopeLayout, RopeTable};
use ruvllm_kernels::rows::Activation;

use super::config::EncoderConfig;
use super::linear::{NormWeights, add_bias};
use super::weights::{Branch, LayerWeights};
use super::workspace::EncoderWorkspace;
use crate::compute::Compute;
use crate::family::EncoderNetwork;
use crate::projection::{finish, project};
use crate::rows;
use crate::weights::Linear;

/// One layer and what it runs with.
pub(super) struct Layer<'a> {
    pub(super) config: &'a EncoderConfig,
    pub(super) weights: &'a LayerWeights,
    pub(super) compute: &'a Compute,
    /// Tokens on either side that a token attends to; `None` for all.
    pub(super) reach: Option<usize>,
    /// `None`: nothing is rotated.
    pub(super) rope: Option<&'a RopeTable>,
    /// Norm that follows the layer, before the next or behind the last.
    pub(super) next: Option<&'a NormWeights>,
}

impl Layer<'_> {
    /// Adds the layer to the residual streams of all texts, which are at `spans`, and makes the
    /// input of what follows.
    pub(super) fn forward(&self, workspace: &mut EncoderWorkspace, spans: &[Range<usize>]) {
        let Layer { config, weights, compute, .. } = self;
        self.project_heads(workspace, spans);
        let EncoderWorkspace {
            residual,
            input,
            update,
            queries,
            keys,
            values,
            attended,
            inner,
            up,
            attention,
        } = workspace;
        let out = attended.values_mut();
        for span in spans {
            let range = |width: usize| span.start * width..span.end * width;
            let (query, kv) = (range(config.query_dim()), range(config.kv_dim()));
            let heads = [&queries[query.clone()], &keys[kv.clone()], &values[kv]];
            attention.attend(compute, config, heads, self.reach, &mut out[query]);
        }
        let mut stream = Stream { residual, input, update };
        stream.add(compute, &weights.attention, attended, weights.network.before.as_ref());
        self.compute_network(stream.input, inner, up);
        stream.add(compute, &weights.network, inner, self.next);
    }

    /// Queries, keys and values of all tokens, with norms of heads and rotated to their positions.
    fn project_heads(&self, workspace: &mut EncoderWorkspace, spans: &[Range<usize>]) {
        let Layer { config, weights, compute, .. } = self;
        let EncoderWorkspace { input, queries, keys, values, attended, .. } = workspace;
        let mut jobs = [
            MatmulJob { weights: &weights.query.weights, out: &mut *queries },
            MatmulJob { weights: &weights.key.weights, out: &mut *keys },
            MatmulJob { weights: &weights.value.weights, out: &mut *values },
        ];
        project(compute, input, &mut jobs);
        let positions = spans.iter().flat_map(|span| 0..span.len());
        let queries = queries.chunks_exact_mut(config.query_dim());
        let [keys, values] = [keys, values].map(|rows| rows.chunks_exact_mut(config.kv_dim()));
        // Attention has not written to it yet.
        let unnormed = attended.values_mut().chunks_exact_mut(config.query_dim());
        let rows = queries.zip(keys).zip(values).zip(unnormed).zip(positions);
        rows::for_each(&compute.pool, rows, |((((query, key), value), unnormed), position)| {
            add_bias(&compute.kernels, &weights.value, value);
            self.place(query, &weights.query, weights.query_norm.as_ref(), position, unnormed);
            self.place(key, &weights.key, weights.key_norm.as_ref(), position, unnormed);
        });
    }

    /// Bias, norm and rotation of the heads of one position. `unnormed` is scratch of their length
    /// or more.
    fn place(
        &self,
        heads: &mut [f32],
        linear: &Linear,
        norm: Option<&NormWeights>,
        position: usize,
        unnormed: &mut [f32],
    ) {
        let (kernels, head_dim) = (&self.compute.kernels, self.config.head_dim);
        add_bias(kernels, linear, heads);
        if let Some(norm) = norm {
            let unnormed = &mut unnormed[..heads.len()];
            unnormed.copy_from_slice(heads);
            norm.apply(kernels, unnormed, heads);
        }
        if let Some(table) = self.rope {
            let (n_heads, positions) = (heads.len() / head_dim, position..position + 1);
            kernels.rope(table, RopeLayout::Halves, positions, heads, n_heads, head_dim);
        }
    }

    /// Inner values of the feed-forward network, in `inner`.
    fn compute_network(&self, input: &mut Activations, inner: &mut Activations, up: &mut [f32]) {
        let Layer { config, weights, compute, .. } = self;
        let (kernels, width) = (&compute.kernels, config.ffn_dim);
        let down_reads_q8 = weights.network.output.weights.format().uses_q8();
        let Some(gate) = &weights.gate else {
            let job = MatmulJob { weights: &weights.up.weights, out: inner.values_mut() };
            project(compute, input, &mut [job]);
            return finish(compute, inner, down_reads_q8, &|_, rows| {
                rows.chunks_exact_mut(width).for_each(|row| add_bias(kernels, &weights.up, row));
                kernels.activate(Activation::GeluErf, rows);
            });
        };
        let mut jobs = [
            MatmulJob { weights: &gate.weights, out: inner.values_mut() },
            MatmulJob { weights: &weights.up.weights, out: &mut *up },
        ];
        project(compute, input, &mut jobs);
        if weights.up.bias.is_some() {
            up.chunks_exact_mut(width).for_each(|row| add_bias(kernels, &weights.up, row));
        }
        let activation = match config.spec.network {
            EncoderNetwork::Gelu | EncoderNetwork::JointGeGlu => Activation::GeluErf,
            EncoderNetwork::TanhGeGlu => Activation::GeluTanh,
            EncoderNetwork::SwiGlu => Activation::Silu,
        };
        let up = &*up;
        finish(compute, inner, down_reads_q8, &|range, rows| {
            rows.chunks_exact_mut(width).for_each(|row| add_bias(kernels, gate, row));
            kernels.gated(activation, rows, &up[range.start * width..range.end * width]);
        });
    }
}

/// Residual stream of all texts, `[tokens, model_dim]`, with what the next branch reads.
struct Stream<'a> {
    residual: &'a mut [f32],
    input: &'a mut Activations,
    update: &'a mut [f32],
}

impl Stream<'_> {
    /// Adds the output of a branch, and makes the input of the next by its norm.
    fn add(
        &mut self,
        compute: &Compute,
        branch: &Branch,
        values: &mut Activations,
        next: Option<&NormWeights>,
    ) {
        let (kernels, output) = (&compute.kernels, &branch.output);
        project(compute, values, &mut [MatmulJob { weights: &output.weights, out: &mut *self.update }]);
        let dim = self.input.cols();
        let rows = self.residual.chunks_exact_mut(dim).zip(self.input.values_mut().chunks_exact_mut(dim));
        let rows = rows.zip(self.update.chunks_exact_mut(dim));
        rows::for_each(&compute.pool, rows, |((residual, input), update)| {
            add_bias(kernels, output, update);
            match &branch.behind {
                Some(norm) => {
                    norm.apply(kernels, update, input);
                    kernels.add_assign(residual, input);
                }
                None => kernels.add_assign(residual, update),
            }
            enter(compute, branch.of_sum.as_ref(), next, residual, input);
        });
    }
}

/// Norms a row of the residual stream where sums are normed, and makes the input of the next branch
/// by its norm.
pub(super) fn enter(
    compute: &Compute,
    of_sum: Option<&NormWeights>,
    next: Option<&NormWeights>,
    residual: &mut [f32],
    input: &mut [f32],
) {
    if let Some(norm) = of_sum {
        norm.apply(&compute.kernels, residual, input);
        residual.copy_from_slice(input);
    }
    match next {
        Some(norm) => norm.apply(&compute.kernels, residual, input),
        None if of_sum.is_none() => input.copy_from_slice(residual),
        None => {}
    }
}
