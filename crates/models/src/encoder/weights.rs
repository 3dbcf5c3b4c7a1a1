//! Tensors of an encoder: names, shapes and loading.

use ruvllm_kernels::quant::PackedMatrix;

use super::config::{EncoderConfig, TOKEN_TYPES};
use super::head::Head;
use super::linear::{LayerNorm, Linear, layer_norm, linear};
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::weights::{EMBEDDING, LoadProgress, TensorSource, WeightBytes};

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
    /// Embeddings of the first two token types: of a text alone, and of the second text of a pair.
    /// Fewer in models without.
    pub(super) token_types: Vec<Vec<f32>>, // up to 2 of [model_dim]
    pub(super) embedding_norm: LayerNorm,
    pub(super) layers: Vec<LayerWeights>,
    /// `None`: the model gives states alone.
    pub(super) head: Option<Head>,
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
        let mut token_types = vec![vec![0.0; dim]; config.n_token_types.min(2)];
        if config.n_token_types > 0 {
            let table = source.matrix(TOKEN_TYPES, config.n_token_types, dim)?;
            token_types.iter_mut().enumerate().for_each(|(row, out)| table.dequantize_row(row, out));
        }
        let embedding_norm = layer_norm(&mut source, "token_embd_norm", dim)?;
        // `n_layers` is at most the number of tensors, see `EncoderConfig`.
        let mut layers = Vec::with_capacity(config.n_layers);
        for layer in 0..config.n_layers {
            layers.push(load_layer(&mut source, config, layer)?);
        }
        let head = Head::load(&mut source, config)?;
        let bytes = source.finish(&config.architecture)?;
        Ok(Self { embedding, positions, token_types, embedding_norm, layers, head, bytes })
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
