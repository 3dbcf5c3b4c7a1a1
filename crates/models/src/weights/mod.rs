//! Weights, and those of a decoder: matrices that stay in the mapped file and small private
//! vectors.

mod linear;
mod load;
mod load_experts;
mod load_layer;
mod load_mixer;
mod load_streams;
mod mixer;
mod prediction_head;
mod rank_head;
mod read_ahead;
mod source;
mod streams;

use ruvllm_kernels::quant::PackedMatrix;

pub(crate) use self::linear::Joint;
pub use self::mixer::{
    AttentionWeights, ConvolutionWeights, DeltaNetWeights, LatentWeights, Mamba2Weights, Mixer,
    ParallelWeights, SharedAttentionWeights,
};
pub use self::prediction_head::PredictionHead;
pub use self::rank_head::RankHead;
pub(crate) use self::read_ahead::ReadAhead;
pub use self::source::{LoadProgress, WeightBytes, weight_format};
pub(crate) use self::source::{TensorSource, format_of, read_vector};
pub use self::streams::{LayerStreamWeights, StreamWeights};

/// A projection `y = W x (+ bias)`.
#[derive(Debug)]
#[non_exhaustive]
pub struct Linear {
    /// `[outputs, inputs]`.
    pub weights: PackedMatrix,
    /// `[outputs]`.
    pub bias: Option<Vec<f32>>,
}

/// One transformer layer. The norms that not every family has are named in `DecoderSpec`.
#[derive(Debug)]
#[non_exhaustive]
pub struct LayerWeights {
    /// `[model_dim]`; norm of the input of the mixer.
    pub attention_norm: Option<Vec<f32>>,
    /// `[model_dim]`; of a layer norm.
    pub attention_norm_bias: Option<Vec<f32>>,
    /// Its computation across tokens: attention, or with a state.
    pub mixer: Mixer,
    /// `[model_dim]`.
    pub attention_post_norm: Option<Vec<f32>>,
    /// `[model_dim]`; norm of the input of the feed-forward network.
    pub ffn_norm: Option<Vec<f32>>,
    /// `[model_dim]`; of a layer norm.
    pub ffn_norm_bias: Option<Vec<f32>>,
    /// The network of every token; of a mixture in this layer its shared experts, if it has any.
    pub feed_forward: Option<FeedForward>,
    /// The experts of a mixture, in layers that have them.
    pub experts: Option<ExpertWeights>,
    /// `[model_dim]`.
    pub ffn_post_norm: Option<Vec<f32>>,
    /// The way of the layer's embedding to the residual stream, in models with embeddings per
    /// layer.
    pub input: Option<LayerInputWeights>,
    /// Prediction and correction of all residual streams, in models with several.
    pub streams: Option<LayerStreamWeights>,
    /// Factor of the residual stream behind the layer; 1 without.
    pub output_scale: f32,
}

/// Embeddings per layer: a row of each token with a part for each layer, and a projection of the
/// token's embedding to the same parts.
#[derive(Debug)]
#[non_exhaustive]
pub struct PerLayerWeights {
    /// `[vocab_size, n_layers * input_dim]`, or fewer rows: the tokens behind them have the first.
    pub embedding: PackedMatrix,
    /// `[n_layers * input_dim, model_dim]`.
    pub projection: Linear,
    /// Norm of each part of the projection, `[input_dim]`.
    pub norm: Vec<f32>,
}

/// The way of a layer's embedding to the residual stream.
#[derive(Debug)]
#[non_exhaustive]
pub struct LayerInputWeights {
    /// `[input_dim, model_dim]`.
    pub gate: Linear,
    /// `[model_dim, input_dim]`.
    pub output: Linear,
    /// `[model_dim]`.
    pub norm: Vec<f32>,
}

/// A feed-forward network.
#[derive(Debug)]
#[non_exhaustive]
pub struct FeedForward {
    /// `[ffn_dim, model_dim]`; `None` for an activation without a gate.
    pub gate: Option<Linear>,
    /// `[ffn_dim, model_dim]`.
    pub up: Linear,
    /// `[model_dim, ffn_dim]`.
    pub down: Linear,
}

/// The experts of a layer and their router.
#[derive(Debug)]
#[non_exhaustive]
pub struct ExpertWeights {
    /// `[experts, model_dim]`.
    pub router: Linear,
    /// Added to the scores of a sigmoid router for the selection, `[experts]`.
    pub selection_bias: Option<Vec<f32>>,
    /// `[ffn_dim, model_dim]` each; `None` for an activation without a gate.
    pub gate: Option<ExpertLinears>,
    /// `[ffn_dim, model_dim]` each.
    pub up: ExpertLinears,
    /// `[model_dim, ffn_dim]` each.
    pub down: ExpertLinears,
    /// Direction whose sigmoid multiplies the output of the shared experts, `[model_dim]`.
    pub shared_gate: Option<Vec<f32>>,
    /// Inputs and outputs of experts beside the network of every token.
    pub beside: Option<BesideWeights>,
    /// Tensors that are in mapped files.
    read_ahead: Vec<ReadAhead>,
}

impl ExpertWeights {
    /// Starts to read the matrices of experts from a mapped file before their first use.
    pub(crate) fn read_ahead(&self, experts: impl Iterator<Item = usize>) {
        for expert in experts {
            for tensor in &self.read_ahead {
                tensor.ask(expert);
            }
        }
    }
}

/// Norms and factors of experts that stand beside the network of every token.
#[derive(Debug)]
#[non_exhaustive]
pub struct BesideWeights {
    /// Norm of the router's input, with its factors, `[model_dim]`.
    pub router_norm: Vec<f32>,
    /// Norm of the input of the experts, `[model_dim]`.
    pub input_norm: Vec<f32>,
    /// Norm of the output of the network, `[model_dim]`.
    pub network_norm: Vec<f32>,
    /// Norm of the output of the experts, `[model_dim]`.
    pub output_norm: Vec<f32>,
    /// Factors of the outputs of single experts, `[experts]`.
    pub scales: Option<Vec<f32>>,
}

/// One projection of all experts.
#[derive(Debug)]
#[non_exhaustive]
pub struct ExpertLinears {
    /// `[outputs, inputs]` of each expert, in one tensor of the file.
    pub weights: Vec<PackedMatrix>,
    /// `[experts, outputs]`.
    pub bias: Option<Vec<f32>>,
}

impl ExpertLinears {
    /// True if a product reads 8-bit activations.
    pub(crate) fn uses_q8(&self) -> bool {
        self.weights.iter().any(|weights| weights.format().uses_q8())
    }

    /// Bias of an expert, if there is one.
    pub(crate) fn bias_of(&self, expert: usize) -> Option<&[f32]> {
        let bias = self.bias.as_deref()?;
        let len = bias.len() / self.weights.len().max(1);
        bias.get(expert * len..(expert + 1) * len)
    }
}

/// All weights of a decoder.
#[derive(Debug)]
#[non_exhaustive]
pub struct Weights {
    /// `[vocab_size, model_dim]`.
    pub embedding: PackedMatrix,
    /// Embeddings per layer, if the model has them.
    pub per_layer: Option<PerLayerWeights>,
    /// Projections of residual streams, in models with several.
    pub streams: Option<StreamWeights>,
    /// In their order.
    pub layers: Vec<LayerWeights>,
    /// `[model_dim]`.
    pub output_norm: Vec<f32>,
    /// `[model_dim]`; of a layer norm.
    pub output_norm_bias: Option<Vec<f32>>,
    /// `[vocab_size, model_dim]`. `None`: the embedding is the output projection too (tied).
    pub output: Option<Linear>,
    /// Head of a model that ranks documents.
    pub rank_head: Option<RankHead>,
    /// Head of a model that predicts the token after the next.
    pub prediction_head: Option<PredictionHead>,
    bytes: WeightBytes,
}

impl Weights {
    /// The matrix that turns final hidden states into logits, and its bias.
    pub(crate) fn output_projection(&self) -> (&PackedMatrix, Option<&[f32]>) {
        match &self.output {
            Some(linear) => (&linear.weights, linear.bias.as_deref()),
            None => (&self.embedding, None),
        }
    }

    pub(crate) fn bytes(&self) -> WeightBytes {
        self.bytes
    }
}
