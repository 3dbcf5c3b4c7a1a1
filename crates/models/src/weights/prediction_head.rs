//! Head that predicts the token after the next (multi-token prediction).

use ruvllm_kernels::quant::PackedMatrix;

use super::linear::linear;
use super::load_layer::load_layer;
use super::source::{TensorSource, WeightBytes};
use super::{LayerWeights, Linear};
use crate::config::ModelConfig;
use crate::error::Result;

/// Head of a decoder that predicts the token after the next, from the final hidden state of a token
/// and the embedding of the one behind it: drafts for speculative decoding.
///
/// Source: DeepSeek-V3, arXiv 2412.19437, section 2.2. [`Model::predict`](crate::Model::predict)
/// runs it.
#[derive(Debug)]
#[non_exhaustive]
pub struct PredictionHead {
    config: ModelConfig,
    /// `[vocab_size, model_dim]`; `None`: that of the model.
    pub embedding: Option<PackedMatrix>,
    /// Norm of embeddings, `[model_dim]`.
    pub embedding_norm: Vec<f32>,
    /// Norm of hidden states, `[model_dim]`.
    pub hidden_norm: Vec<f32>,
    /// To the residual stream of the layer, `[model_dim, 2 * model_dim]`: columns of the embedding,
    /// then those of the hidden state.
    pub projection: Linear,
    /// A layer as those of the model, with attention.
    pub layer: LayerWeights,
    /// Norm before the logits, `[model_dim]`; `None`: that of the model.
    pub output_norm: Option<Vec<f32>>,
    /// `[vocab_size, model_dim]`; `None`: that of the model.
    pub output: Option<Linear>,
    bytes: WeightBytes,
}

impl PredictionHead {
    /// Loads the head if the file has one; layers of others are left out, and what a file keeps of
    /// a layer whose head was taken away.
    ///
    /// # Errors
    /// A tensor of the head is missing, or of another type or shape than the model's sizes say.
    pub(crate) fn load(source: &mut TensorSource<'_>, config: &ModelConfig) -> Result<Option<Self>> {
        let (place, end) = (config.n_layers, config.n_layers + config.prediction_layers);
        let one = config.of_prediction_layer().filter(|_| source.has_any(&format!("blk.{place}.nextn.")));
        let Some(one) = one else {
            source.skip_layers(place..end);
            return Ok(None);
        };
        source.skip_layers(place + 1..end);
        let before = source.bytes();
        let (model_dim, vocab_size) = (config.model_dim, config.vocab_size);
        let name = |part: &str| format!("blk.{place}.{part}");
        let optional = |source: &mut TensorSource<'_>, part: &str| {
            let name = name(part);
            let is_there = source.has(&format!("{name}.weight"));
            is_there.then(|| linear(source, &name, vocab_size, model_dim)).transpose()
        };
        let embedding = optional(source, "nextn.embed_tokens")?.map(|linear| linear.weights);
        let head = Self {
            embedding,
            embedding_norm: source.vector(&name("nextn.enorm.weight"), model_dim)?,
            hidden_norm: source.vector(&name("nextn.hnorm.weight"), model_dim)?,
            projection: linear(source, &name("nextn.eh_proj"), model_dim, 2 * model_dim)?,
            layer: load_layer(source, &one, 0, &name)?,
            output_norm: source.optional_vector(&name("nextn.shared_head_norm.weight"), model_dim)?,
            output: optional(source, "nextn.shared_head_head")?,
            bytes: source.bytes().since(before),
            config: one,
        };
        Ok(Some(head))
    }

    /// Configuration of the head: that of the model, with one layer.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Bytes of the weights of its own in shared and in private memory.
    pub fn weight_bytes(&self) -> WeightBytes {
        self.bytes
    }
}
