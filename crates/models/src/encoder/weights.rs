//! Tensors of an encoder: names, shapes and loading.

use ruvllm_kernels::quant::PackedMatrix;
use ruvllm_kernels::rows::Norm;

use super::config::{EncoderConfig, TOKEN_TYPES};
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::weights::{EMBEDDING, LoadProgress, TensorSource, WeightBytes};

/// A projection `y = W x + bias`.
pub(super) struct Linear {
    pub(super) weights: PackedMatrix, // [outputs, inputs]
    pub(super) bias: Vec<f32>,        // [outputs]
}

/// A layer norm over `model_dim` values.
pub(super) struct LayerNorm {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl LayerNorm {
    pub(super) fn norm(&self) -> Norm<'_> {
        Norm::Layer { weight: &self.weight, bias: Some(&self.bias) }
    }
}

/// One transformer layer.
pub(super) struct LayerWeights {
    pub(super) query: Linear,            // [model_dim, model_dim]
    pub(super) key: Linear,              // [model_dim, model_dim]
    pub(super) value: Linear,            // [model_dim, model_dim]
    pub(super) attention_output: Linear, // [model_dim, model_dim]
    pub(super) attention_norm: LayerNorm,
    pub(super) up: Linear,   // [ffn_dim, model_dim]
    pub(super) down: Linear, // [model_dim, ffn_dim]
    pub(super) ffn_norm: LayerNorm,
}

/// All weights of an encoder.
pub(super) struct Weights {
    pub(super) embedding: PackedMatrix, // [vocab_size, model_dim]
    pub(super) positions: PackedMatrix, // [context_length, model_dim]
    /// Embedding of the first token type, which all tokens of a text alone have; none in models
    /// without.
    pub(super) token_type: Option<Vec<f32>>, // [model_dim]
    pub(super) embedding_norm: LayerNorm,
    pub(super) layers: Vec<LayerWeights>,
    pub(super) bytes: WeightBytes,
}

impl Weights {
    /// Loads the tensors that `config` asks for.
    ///
    /// # Errors
    /// A tensor is missing, left over, of an unsupported type or of another shape.
    pub(super) fn load(
        checkpoint: &dyn Checkpoint,
        config: &EncoderConfig,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<Self> {
        let mut source = TensorSource::new(checkpoint, progress);
        let dim = config.model_dim;
        let embedding = source.matrix(EMBEDDING, config.vocab_size, dim)?;
        let positions = source.matrix("position_embd.weight", config.context_length, dim)?;
        let token_type = match config.n_token_types {
            0 => None,
            types => {
                let mut row = vec![0.0; dim];
                source.matrix(TOKEN_TYPES, types, dim)?.dequantize_row(0, &mut row);
                Some(row)
            }
        };
        let embedding_norm = layer_norm(&mut source, "token_embd_norm", dim)?;
        // `n_layers` is at most the number of tensors, see `EncoderConfig`.
        let mut layers = Vec::with_capacity(config.n_layers);
        for layer in 0..config.n_layers {
            layers.push(load_layer(&mut source, config, layer)?);
        }
        let bytes = source.finish(&config.architecture)?;
        Ok(Self { embedding, positions, token_type, embedding_norm, layers, bytes })
    }
}

fn load_layer(source: &mut TensorSource<'_>, config: &EncoderConfig, layer: usize) -> Result<LayerWeights> {
    let (dim, ffn_dim) = (config.model_dim, config.ffn_dim);
    let name = |part: &str| format!("blk.{layer}.{part}");
    Ok(LayerWeights {
        query: linear(source, &name("attn_q"), dim, dim)?,
        key: linear(source, &name("attn_k"), dim, dim)?,
        value: linear(source, &name("attn_v"), dim, dim)?,
        attention_output: linear(source, &name("attn_output"), dim, dim)?,
        attention_norm: layer_norm(source, &name("attn_output_norm"), dim)?,
        up: linear(source, &name("ffn_up"), ffn_dim, dim)?,
        down: linear(source, &name("ffn_down"), dim, ffn_dim)?,
        ffn_norm: layer_norm(source, &name("layer_output_norm"), dim)?,
    })
}

fn linear(source: &mut TensorSource<'_>, name: &str, rows: usize, cols: usize) -> Result<Linear> {
    Ok(Linear {
        weights: source.matrix(&format!("{name}.weight"), rows, cols)?,
        bias: source.vector(&format!("{name}.bias"), rows)?,
    })
}

fn layer_norm(source: &mut TensorSource<'_>, name: &str, dim: usize) -> Result<LayerNorm> {
    Ok(LayerNorm {
        weight: source.vector(&format!("{name}.weight"), dim)?,
        bias: source.vector(&format!("{name}.bias"), dim)?,
    })
}
