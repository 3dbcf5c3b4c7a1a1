//! Names of the tensors of decoders outside their layers.

use super::family::{Bias, Names, Shape, part};

/// The names of decoders.
pub(super) const DECODER: Names = Names {
    shown_prefix: "model.",
    layers: "layers.",
    outside: &[
        part("embed_tokens", "token_embd", Shape::Embedding, Bias::Never),
        part("norm", "output_norm", Shape::ModelNorm, Bias::Never),
    ],
    unused: &[],
};

pub(super) const GEMMA4: Names = Names {
    outside: &[
        part("embed_tokens", "token_embd", Shape::Embedding, Bias::Never),
        part("embed_tokens_per_layer", "per_layer_token_embd", Shape::LayerInputs, Bias::Never),
        part("per_layer_model_projection", "per_layer_model_proj", Shape::LayerInputProjection, Bias::Never),
        part("per_layer_projection_norm", "per_layer_proj_norm", Shape::LayerInputNorm, Bias::Never),
        part("norm", "output_norm", Shape::ModelNorm, Bias::Never),
    ],
    ..DECODER
};

/// A layer norm, and a bias of logits.
pub(super) const PHIMOE: Names = Names {
    outside: &[
        part("embed_tokens", "token_embd", Shape::Embedding, Bias::Never),
        part("norm", "output_norm", Shape::ModelNorm, Bias::Always),
        part("lm_head", "output", Shape::Embedding, Bias::Maybe),
    ],
    ..DECODER
};

pub(super) const LFM2: Names = Names {
    outside: &[
        part("embed_tokens", "token_embd", Shape::Embedding, Bias::Never),
        part("embedding_norm", "token_embd_norm", Shape::ModelNorm, Bias::Never),
    ],
    ..DECODER
};

/// Prediction heads behind the last layer are left out.
pub(super) const NEMOTRON: Names = Names {
    shown_prefix: "backbone.",
    outside: &[
        part("embeddings", "token_embd", Shape::Embedding, Bias::Never),
        part("norm_f", "output_norm", Shape::ModelNorm, Bias::Never),
    ],
    unused: &["mtp."],
    ..DECODER
};

pub(super) const FALCON: Names = Names {
    outside: &[
        part("embed_tokens", "token_embd", Shape::Embedding, Bias::Never),
        part("final_layernorm", "output_norm", Shape::ModelNorm, Bias::Never),
    ],
    ..DECODER
};
