//! Embeddings per layer: each layer adds a part of a second embedding of the token, mixed with a
//! projection of the first, to the residual stream through a gate. Source: Gemma 3n and 4.

use std::f32::consts::FRAC_1_SQRT_2;

use ruvllm_kernels::matmul::MatmulJob;

use super::Model;
use super::layer::{Layer, activate, normalize, read_q8};
use super::per_layer_buffers::PerLayerBuffers;
use crate::batch::Segment;
use crate::compute::Compute;
use crate::config::ModelConfig;
use crate::error::Result;
use crate::projection::{add_bias, finish, project};
use crate::rows;
use crate::weights::LayerInputWeights;
use crate::workspace::{Buffers, resize};

/// Sizes the buffers for `n_tokens` rows.
pub(super) fn prepare(buffers: &mut PerLayerBuffers, config: &ModelConfig, n_tokens: usize) -> Result<()> {
    let n_values = n_tokens.saturating_mul(config.layer_inputs_dim());
    resize(&mut buffers.inputs, n_values, "embeddings per layer")?;
    resize(&mut buffers.raw, n_values, "embeddings per layer")
}

impl Model {
    /// Computes the inputs of all layers from the embeddings in `buffers.hidden`.
    pub(super) fn embed_per_layer(
        &self,
        compute: &Compute,
        buffers: &mut Buffers,
        segments: &[Segment<'_>],
        n_tokens: usize,
    ) {
        let Some(weights) = &self.weights.per_layer else { return };
        let (config, input_dim) = (&self.config, self.config.decoder.layers.input_dim);
        let width = config.layer_inputs_dim();
        let Buffers { hidden, normed, per_layer: PerLayerBuffers { inputs, raw }, .. } = buffers;
        normalize(compute, config, hidden, None, normed, n_tokens, read_q8([&weights.projection]));
        let raw = &mut raw[..n_tokens * width];
        project(compute, normed, &mut [MatmulJob { weights: &weights.projection.weights, out: &mut *raw }]);
        add_bias(compute, raw, weights.projection.bias.as_deref());
        let scale = (config.model_dim as f64).sqrt().recip() as f32;
        let token_scale = (input_dim as f32).sqrt();
        let tokens = segments.iter().flat_map(|segment| segment.tokens);
        let rows = inputs.chunks_exact_mut(width).zip(raw.chunks_exact_mut(width)).zip(tokens);
        rows::for_each(&compute.pool, rows, |((input, raw), &token)| {
            raw.iter_mut().for_each(|value| *value *= scale);
            compute.rms_norm(raw, &weights.norm, config.norm_eps, input);
            let row = if (token as usize) < weights.embedding.rows() { token as usize } else { 0 };
            weights.embedding.dequantize_row(row, raw);
            for (input, embedding) in input.iter_mut().zip(&*raw) {
                *input = (*input + embedding * token_scale) * FRAC_1_SQRT_2;
            }
        });
    }
}

impl Layer<'_> {
    /// Adds the layer's input to the first `n_rows` rows of the residual stream, of several to all
    /// but the first.
    pub(super) fn add_input(&self, weights: &LayerInputWeights, buffers: &mut Buffers, n_rows: usize) {
        let Layer { config, compute, .. } = self;
        let (input_dim, width) = (config.decoder.layers.input_dim, config.layer_inputs_dim());
        let Buffers { hidden, normed, gated, update, unnormed, per_layer, streams, .. } = buffers;
        normalize(compute, config, hidden, None, normed, n_rows, read_q8([&weights.gate]));
        let gate = gated.resize(n_rows, input_dim);
        project(compute, normed, &mut [MatmulJob { weights: &weights.gate.weights, out: &mut *gate }]);
        add_bias(compute, gate, weights.gate.bias.as_deref());
        let inputs = &per_layer.inputs;
        finish(compute, gated, read_q8([&weights.output]), &|rows, gates| {
            for (row, gate) in rows.zip(gates.chunks_exact_mut(input_dim)) {
                let input = &inputs[row * width + self.index * input_dim..][..input_dim];
                activate(compute, config.decoder.activation, gate, input);
            }
        });
        let update = &mut update[..n_rows * config.model_dim];
        project(compute, gated, &mut [MatmulJob { weights: &weights.output.weights, out: &mut *update }]);
        add_bias(compute, update, weights.output.bias.as_deref());
        if config.decoder.streams.is_none() {
            return self.add_update(hidden, update, Some(&weights.norm), unnormed);
        }
        self.norm_in_place(update, config.model_dim, Some(&weights.norm), unnormed);
        self.add_to_streams(streams, update);
    }

    /// Multiplies the first `n_rows` rows of the residual stream by the layer's factor.
    pub(super) fn scale_output(&self, hidden: &mut [f32], n_rows: usize) {
        let scale = self.weights.output_scale;
        if scale != 1.0 {
            let values = &mut hidden[..n_rows * self.config.model_dim];
            let rows = values.chunks_exact_mut(self.config.model_dim);
            rows::for_each(&self.compute.pool, rows, |row| row.iter_mut().for_each(|value| *value *= scale));
        }
    }
}
