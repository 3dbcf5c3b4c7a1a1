//! Embeddings per layer (ADR-0151): each layer adds a part of a second embedding of the token,
//! mixed with a projection of the first, to the residual stream through a gate.

use std::f32::consts::FRAC_1_SQRT_2;
use std::sync::Arc;

use ruvllm_gpu::{Buffer, Gpu, Matrix, Memory, Result, RowPart};
use ruvllm_models::{LayerInputWeights, ModelConfig, PerLayerWeights};

use super::inputs::{Input, zeroed};
use super::launches::Builder;
use super::refusal::Refusal;
use super::rows::PAD;
use super::uploads::{Projection, Uploader};
use super::weights::DeviceLayer;

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

impl Builder<'_> {
    /// Computes the inputs of all layers from the embeddings in the residual stream.
    pub(super) fn embed_per_layer(&mut self, weights: &DevicePerLayer) -> Result<()> {
        let (gpu, config) = (self.parts.gpu, self.parts.config);
        let rows = Arc::clone(&self.rows);
        let Some(own) = &rows.per_layer else { return Ok(()) };
        self.norm(None, weights.projection.formats())?;
        self.project(&weights.projection, |format| rows.normed.of(format), &own.raw)?;
        // The projection counts times the root of the model's width less, and its norm with it.
        let eps = config.norm_eps * config.model_dim as f32;
        let parts = rows.n * config.n_layers as u32;
        self.launches.push(gpu.rms_norm(&own.raw, &weights.norm, eps, parts, &own.inputs.clone().into())?);
        let scale = (config.decoder.layers.input_dim as f32).sqrt() * FRAC_1_SQRT_2;
        let width = weights.embedding.cols();
        let embedded = own.padded.as_ref().unwrap_or(&own.raw);
        self.launches.push(weights.embedding.gather_or_first(gpu, &rows.tokens, embedded, scale)?);
        if own.padded.is_some() {
            let values = (config.decoder.layers.input_dim * config.n_layers) as u32;
            let (part, out) = (RowPart { values, width, first: 0 }, own.raw.clone().into());
            self.launches.push(gpu.copy_part(part, embedded, (rows.n, values), &out)?);
        }
        self.launches.push(gpu.add(&own.inputs, &own.raw)?);
        Ok(())
    }

    /// Projects the layer's input behind its gate to `delta`, and norms it to `post`.
    fn project_layer_input(&mut self, index: usize, weights: &DeviceLayerInput) -> Result<()> {
        let (gpu, config, activation) = (self.parts.gpu, self.parts.config, self.parts.activation);
        let rows = Arc::clone(&self.rows);
        let Some(own) = &rows.per_layer else { return Ok(()) };
        self.norm(None, weights.gate.formats())?;
        self.project(&weights.gate, |format| rows.normed.of(format), &own.gate)?;
        let values = config.decoder.layers.input_dim as u32;
        let part = RowPart { values, width: values * config.n_layers as u32, first: values * index as u32 };
        let size = (rows.n, values.next_multiple_of(PAD as u32));
        self.launches.extend(own.gated.fill(gpu, weights.output.formats(), true, |out| {
            Ok(vec![gpu.gated_part((activation, part), (&own.gate, &own.inputs), size, out)?])
        })?);
        self.project(&weights.output, |format| own.gated.of(format), &rows.delta)?;
        self.behind(Some(&weights.norm))
    }

    /// Launches behind the feed-forward network of a layer: correction of streams, its input and
    /// its factor, if it has them.
    pub(super) fn end_layer(&mut self, index: usize, layer: &DeviceLayer) -> Result<()> {
        if let Some(streams) = &layer.streams {
            self.correct_streams(streams)?;
        }
        if let Some(input) = &layer.input {
            self.project_layer_input(index, input)?;
        }
        if layer.streams.is_some() {
            self.add_to_streams()?;
        }
        let rows = Arc::clone(&self.rows);
        if let Some(factor) = &layer.output_scale
            && let Some(pending) = self.pending.take()
        {
            self.launches.push(self.parts.gpu.add_and_scale(&rows.residual, &pending, factor)?);
        }
        Ok(())
    }
}
