//! Embeddings per layer (ADR-0151): each layer adds a part of a second embedding of the token,
//! mixed with a projection of the first, to the residual stream through a gate.

mod launches;

use std::f32::consts::FRAC_1_SQRT_2;

use ruvllm_gpu::{Buffer, Gpu, Matrix, Memory, Result};
use ruvllm_models::{LayerInputWeights, ModelConfig, PerLayerWeights};

use super::inputs::{Input, PAD, zeroed};
use super::refusal::Refusal;
use super::uploads::{Projection, Uploader};

/// Embeddings of all layers.
#[derive(Debug)]
pub(super) struct DevicePerLayer {
    /// `[tokens, n_layers * input_dim]`, filled up; tokens behind them have the first row.
    embedding: Matrix,
    /// From the embedding of a token.
    projection: Projection,
    /// Norm of each part of the projection, times the share of projections, `[input_dim]`.
    norm: Buffer,
}

/// The way of a layer's embedding to the residual stream.
#[derive(Debug)]
pub(super) struct DeviceLayerInput {
    gate: Projection,
    output: Projection,
    /// `[model_dim]`.
    norm: Buffer,
}

/// Activations of embeddings per layer of `n` rows.
#[derive(Debug)]
pub(super) struct PerLayerRows {
    /// Inputs of all layers, `[n, n_layers, input_dim]`.
    pub(super) inputs: Buffer,
    /// The projection, then the embeddings, of the same shape.
    raw: Buffer,
    /// Embeddings filled up, where their width is no whole unit of F16 matrices.
    padded: Option<Buffer>,
    /// `[n, input_dim]`.
    gate: Buffer,
    /// `[n, input_dim]`, filled up.
    gated: Input,
}

impl DevicePerLayer {
    /// Allocates the weights. The embedding, of which a pass reads a row per token, lies in
    /// `memory`.
    pub(super) fn allocate<'m>(
        uploader: &mut Uploader<'_, 'm>,
        weights: &'m PerLayerWeights,
        memory: Memory,
    ) -> std::result::Result<Self, Refusal> {
        let usual = std::mem::replace(&mut uploader.memory, memory);
        let embedding = uploader.padded_matrix("per_layer_token_embd.weight", &[&weights.embedding]);
        uploader.memory = usual;
        let norm: Vec<f32> = weights.norm.iter().map(|weight| weight * FRAC_1_SQRT_2).collect();
        Ok(Self {
            embedding: embedding?,
            projection: uploader.projection(&[("per_layer_model_proj", &weights.projection)])?,
            norm: uploader.vector(&norm)?,
        })
    }
}

impl DeviceLayerInput {
    pub(super) fn allocate<'m>(
        uploader: &mut Uploader<'_, 'm>,
        name: &dyn Fn(&str) -> String,
        weights: &'m LayerInputWeights,
        scale: f32,
    ) -> std::result::Result<Self, Refusal> {
        let norm: Vec<f32> = weights.norm.iter().map(|weight| weight * scale).collect();
        Ok(Self {
            gate: uploader.projection(&[(&name("inp_gate"), &weights.gate)])?,
            output: uploader.padded_projection(&name("proj"), &weights.output)?,
            norm: uploader.vector(&norm)?,
        })
    }

    /// Projections of every token.
    pub(super) fn projections(&self) -> [&Projection; 2] {
        [&self.gate, &self.output]
    }
}

impl PerLayerRows {
    /// Activations of `n` rows, in models with embeddings per layer.
    pub(super) fn new(gpu: &Gpu, config: &ModelConfig, n: u32) -> Result<Option<Self>> {
        let input_dim = config.decoder.layers.input_dim;
        if input_dim == 0 {
            return Ok(None);
        }
        let all = config.n_layers * input_dim;
        Ok(Some(Self {
            inputs: zeroed(gpu, n, all)?,
            raw: zeroed(gpu, n, all)?,
            padded: (!all.is_multiple_of(PAD))
                .then(|| zeroed(gpu, n, all.next_multiple_of(PAD)))
                .transpose()?,
            gate: zeroed(gpu, n, input_dim)?,
            gated: Input::new(gpu, n, input_dim.next_multiple_of(PAD))?,
        }))
    }
}
