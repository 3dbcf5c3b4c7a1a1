//! Launches of embeddings per layer, and of the end of a layer.

use std::f32::consts::FRAC_1_SQRT_2;
use std::sync::Arc;

use ruvllm_gpu::{Result, RowPart};

use super::{DeviceLayerInput, DevicePerLayer};
use crate::backend::gpu::inputs::PAD;
use crate::backend::gpu::launches::Builder;
use crate::backend::gpu::weights::DeviceLayer;

impl Builder<'_> {
    /// Computes the inputs of all layers from the embeddings in the residual stream.
    pub(in crate::backend::gpu) fn embed_per_layer(&mut self, weights: &DevicePerLayer) -> Result<()> {
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
    pub(in crate::backend::gpu) fn end_layer(&mut self, index: usize, layer: &DeviceLayer) -> Result<()> {
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
