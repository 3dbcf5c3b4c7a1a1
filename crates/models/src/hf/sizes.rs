//! The sizes of a model and their limits.

use super::heads::RecurrentSizes;
use crate::family::LatentAttention;

/// Limits beyond which a value is not taken for real; every size is checked against the tensors
/// afterwards.
pub(super) const MAX_WIDTH: usize = 1 << 20;
pub(super) const MAX_HEAD_DIM: usize = 1 << 12;
pub(super) const MAX_POSITIONS: usize = u32::MAX as usize;
pub(super) const MAX_LAYERS: usize = 1 << 16;
pub(super) const MAX_VOCAB: usize = 1 << 24;
pub(super) const MAX_EXPERTS: usize = 1 << 16;

/// The sizes that shapes follow from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) model_dim: usize,
    pub(super) ffn_dim: usize,
    /// `None`: no mixture of experts.
    pub(super) experts: Option<ExpertSizes>,
    /// `None`: the usual attention.
    pub(super) latent: Option<LatentAttention>,
    /// Factors that weights have in GGUF.
    pub(super) multipliers: Multipliers,
    /// Of layers with a state; zeros without.
    pub(super) recurrent: RecurrentSizes,
    pub(super) n_layers: usize,
    /// Layers behind these that predict further tokens.
    pub(super) prediction_layers: usize,
    pub(super) n_heads: usize,
    pub(super) n_kv_heads: usize,
    pub(super) head_dim: usize,
    /// Width of the embeddings per layer; 0: there are none.
    pub(super) layer_input_dim: usize,
    /// Rows of the table of these; `None`: those of the embedding.
    pub(super) layer_input_rows: Option<usize>,
    /// `None`: one residual stream.
    pub(super) streams: Option<StreamSizes>,
    /// `None`: as many as the embedding has rows.
    pub(super) vocab_size: Option<usize>,
    pub(super) context: usize,
    /// The row of the first position in an encoder's table; those before it stand for no token.
    pub(super) first_position: usize,
    /// Rows of an encoder's table of token types.
    pub(super) n_token_types: usize,
}

/// Sizes of several residual streams.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamSizes {
    pub(super) count: usize,
    /// Width of the low-rank projection beside the mixer.
    pub(super) rank: usize,
}

/// Factors of the outputs of products.
#[derive(Debug, Clone, Copy)]
pub(super) struct Multipliers {
    pub(super) embedding: f32,
    pub(super) logits: f32,
    /// Factor of the logits where the embedding makes them.
    pub(super) tied_logits: Option<f32>,
    pub(super) attention_input: f32,
    pub(super) attention_output: f32,
    pub(super) keys: f32,
    pub(super) gate: f32,
    pub(super) down: f32,
    pub(super) mamba_input: f32,
    pub(super) mamba_output: f32,
    /// Gate, inputs, `B`, `C` and time steps.
    pub(super) mamba_parts: [f32; 5],
}

impl Multipliers {
    /// All of them 1.
    pub(super) const NONE: Self = Self {
        embedding: 1.0,
        logits: 1.0,
        tied_logits: None,
        attention_input: 1.0,
        attention_output: 1.0,
        keys: 1.0,
        gate: 1.0,
        down: 1.0,
        mamba_input: 1.0,
        mamba_output: 1.0,
        mamba_parts: [1.0; 5],
    };
}

/// Sizes of a mixture.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExpertSizes {
    pub(super) count: usize,
    pub(super) ffn_dim: usize,
    /// 0: no shared experts.
    pub(super) shared_dim: usize,
    /// Layers before the first with experts.
    pub(super) leading_dense: usize,
    /// Of the layers behind these, the last of every so many has experts.
    pub(super) step: usize,
}

impl ExpertSizes {
    /// True for a layer with experts.
    pub(super) fn are_in(&self, layer: usize) -> bool {
        layer >= self.leading_dense && (layer + 1).is_multiple_of(self.step)
    }
}
