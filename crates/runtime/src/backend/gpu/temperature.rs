//! Attention temperature: factors of queries by position.

use ruvllm_gpu::{Buffer, Gpu, Result};
use ruvllm_models::ModelConfig;

/// Factors of queries, with the values of the CPU.
#[derive(Debug)]
pub(super) struct Temperature {
    /// `[positions]`.
    factors: Buffer,
    /// True for layers whose queries have them, `[n_layers]`.
    layers: Vec<bool>,
}

impl Temperature {
    /// Uploads the factors of `context` positions, if the model has some.
    pub(super) fn new(gpu: &Gpu, config: &ModelConfig, context: usize) -> Result<Option<Self>> {
        let Some(temperature) = config.decoder.attention_temperature else { return Ok(None) };
        let factors: Vec<f32> = (0..context).map(|position| temperature.factor(position)).collect();
        let still = config.local_rope.as_ref().filter(|local| local.rope.is_none());
        let rotates = |layer: usize| !still.is_some_and(|local| local.layers[layer]);
        let has_factors = |layer| !temperature.unrotated_layers || !rotates(layer);
        let layers = (0..config.n_layers).map(has_factors).collect();
        Ok(Some(Self { factors: gpu.upload(&factors)?, layers }))
    }

    /// Factors of the queries of a layer.
    pub(super) fn of(&self, layer: usize) -> Option<&Buffer> {
        self.layers[layer].then_some(&self.factors)
    }
}
