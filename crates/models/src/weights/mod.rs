//! Weights, and those of a decoder: matrices that stay in the mapped file and small private
//! vectors.

mod load;
mod source;

use ruvllm_kernels::quant::PackedMatrix;

pub use self::source::{LoadProgress, WeightBytes, weight_format};
pub(crate) use self::source::{TensorSource, format_of, read_vector};

/// Name of the token embedding, `[vocab_size, model_dim]`.
pub(crate) const EMBEDDING: &str = "token_embd.weight";

/// A projection `y = W x (+ bias)`.
pub(crate) struct Linear {
    pub(crate) weights: PackedMatrix,  // [outputs, inputs]
    pub(crate) bias: Option<Vec<f32>>, // [outputs]
}

/// One transformer layer. The norms that not every family has are named in `DecoderSpec`.
pub(crate) struct LayerWeights {
    pub(crate) attention_norm: Vec<f32>,              // [model_dim]
    pub(crate) query: Linear,                         // [n_heads * head_dim, model_dim]
    pub(crate) key: Linear,                           // [n_kv_heads * head_dim, model_dim]
    pub(crate) value: Linear,                         // [n_kv_heads * head_dim, model_dim]
    pub(crate) query_norm: Option<Vec<f32>>,          // [head_dim]
    pub(crate) key_norm: Option<Vec<f32>>,            // [head_dim]
    pub(crate) attention_output: Linear,              // [model_dim, n_heads * head_dim]
    pub(crate) attention_post_norm: Option<Vec<f32>>, // [model_dim]
    pub(crate) ffn_norm: Vec<f32>,                    // [model_dim]
    pub(crate) gate: Linear,                          // [ffn_dim, model_dim]
    pub(crate) up: Linear,                            // [ffn_dim, model_dim]
    pub(crate) down: Linear,                          // [model_dim, ffn_dim]
    pub(crate) ffn_post_norm: Option<Vec<f32>>,       // [model_dim]
}

/// All weights of a model.
pub(crate) struct Weights {
    pub(crate) embedding: PackedMatrix, // [vocab_size, model_dim]
    pub(crate) layers: Vec<LayerWeights>,
    pub(crate) output_norm: Vec<f32>, // [model_dim]
    /// `None`: the embedding is the output projection too (tied).
    output: Option<Linear>, // [vocab_size, model_dim]
    bytes: WeightBytes,
}

impl Weights {
    /// The matrix that turns final hidden states into logits, and its bias.
    pub(crate) fn output(&self) -> (&PackedMatrix, Option<&[f32]>) {
        match &self.output {
            Some(linear) => (&linear.weights, linear.bias.as_deref()),
            None => (&self.embedding, None),
        }
    }

    pub(crate) fn bytes(&self) -> WeightBytes {
        self.bytes
    }
}
