//! The families of Hugging Face models, as data: what their tensors are called on either side and what happens to them
//! on the way.

use crate::error::{Error, Result};

use super::encoder;
use super::fields::Fields;

/// One family.
#[derive(Debug)]
pub(super) struct Family {
    /// Values of `architectures`.
    pub(super) classes: &'static [&'static str],
    /// Values of `model_type`, for files without `architectures`.
    pub(super) model_types: &'static [&'static str],
    /// Value of `general.architecture`.
    pub(super) architecture: &'static str,
    /// Which keys are written.
    pub(super) form: Form,
    /// What tensors are called beside their own names.
    pub(super) names: &'static Names,
    /// The tensors of a layer.
    pub(super) layer: &'static [Part],
    /// The rows of q and k are reordered, so that the elements of a rotated pair are neighbours.
    pub(super) interleaves_heads: bool,
    /// Norms are stored as `w` and used as `1 + w`.
    pub(super) norms_plus_one: bool,
    /// Values of `hidden_act` or `hidden_activation`.
    pub(super) activations: &'static [&'static str],
}

/// What a family computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// The next token.
    Decoder(Kind),
    /// States of all tokens of a text.
    Encoder(encoder::Kind),
}

/// What tensors are called beside the names of their parts.
#[derive(Debug)]
pub(super) struct Names {
    /// The beginning that messages show.
    pub(super) shown_prefix: &'static str,
    /// What stands before the number of a layer.
    pub(super) layers: &'static str,
    /// The tensors that are in no layer.
    pub(super) outside: &'static [Part],
    /// Beginnings of names that nothing here computes with.
    pub(super) unused: &'static [&'static str],
}

/// The family of a decoder, as far as hyperparameters differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Llama,
    Mistral,
    Mistral3,
    Qwen,
    Phi3,
    Gemma,
    Gemma2,
    Gemma3,
}

/// A tensor, or a matrix or norm with its bias.
#[derive(Debug)]
pub(super) struct Part {
    /// The name between that of the layer and `.weight`.
    pub(super) hf: &'static str,
    /// The same in GGUF, where layers are `blk.N.`.
    pub(super) gguf: &'static str,
    pub(super) shape: Shape,
    pub(super) bias: Bias,
}

/// Shapes, in terms of the hyperparameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// The embedding of tokens.
    Embedding,
    /// The embedding of positions.
    Positions,
    /// The embedding of token types.
    TokenTypes,
    /// A norm over the residual stream.
    ModelNorm,
    /// A norm over one head.
    HeadNorm,
    Query,
    Key,
    Value,
    /// Queries, keys and values in one matrix.
    QueryKeyValue,
    AttentionOutput,
    /// Gate or up projection.
    Up,
    /// Gate and up projection in one matrix.
    GateUp,
    Down,
}

/// Whether a matrix comes with a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bias {
    Never,
    /// As `attention_bias` or `mlp_bias` say; the weights tell too.
    Maybe,
    Always,
}

pub(super) const fn part(hf: &'static str, gguf: &'static str, shape: Shape, bias: Bias) -> Part {
    Part { hf, gguf, shape, bias }
}

const INPUT_NORM: Part = part("input_layernorm", "attn_norm", Shape::ModelNorm, Bias::Never);
const FFN_NORM: Part = part("post_attention_layernorm", "ffn_norm", Shape::ModelNorm, Bias::Never);
const OUTPUT: Part = part("self_attn.o_proj", "attn_output", Shape::AttentionOutput, Bias::Maybe);
const GATE: Part = part("mlp.gate_proj", "ffn_gate", Shape::Up, Bias::Maybe);
const UP: Part = part("mlp.up_proj", "ffn_up", Shape::Up, Bias::Maybe);
const DOWN: Part = part("mlp.down_proj", "ffn_down", Shape::Down, Bias::Maybe);
const QUERY_NORM: Part = part("self_attn.q_norm", "attn_q_norm", Shape::HeadNorm, Bias::Never);
const KEY_NORM: Part = part("self_attn.k_norm", "attn_k_norm", Shape::HeadNorm, Bias::Never);

const fn query(bias: Bias) -> Part {
    part("self_attn.q_proj", "attn_q", Shape::Query, bias)
}

const fn key(bias: Bias) -> Part {
    part("self_attn.k_proj", "attn_k", Shape::Key, bias)
}

const fn value(bias: Bias) -> Part {
    part("self_attn.v_proj", "attn_v", Shape::Value, bias)
}

const LLAMA: &[Part] =
    &[INPUT_NORM, query(Bias::Maybe), key(Bias::Maybe), value(Bias::Maybe), OUTPUT, FFN_NORM, GATE, UP, DOWN];

const QWEN2: &[Part] = &[
    INPUT_NORM,
    query(Bias::Always),
    key(Bias::Always),
    value(Bias::Always),
    OUTPUT,
    FFN_NORM,
    GATE,
    UP,
    DOWN,
];

const QWEN3: &[Part] = &[
    INPUT_NORM,
    query(Bias::Maybe),
    key(Bias::Maybe),
    value(Bias::Maybe),
    OUTPUT,
    QUERY_NORM,
    KEY_NORM,
    FFN_NORM,
    GATE,
    UP,
    DOWN,
];

const PHI3: &[Part] = &[
    INPUT_NORM,
    part("self_attn.qkv_proj", "attn_qkv", Shape::QueryKeyValue, Bias::Never),
    OUTPUT,
    FFN_NORM,
    part("mlp.gate_up_proj", "ffn_up", Shape::GateUp, Bias::Never),
    DOWN,
];

const GEMMA2: &[Part] = &[
    INPUT_NORM,
    query(Bias::Maybe),
    key(Bias::Maybe),
    value(Bias::Maybe),
    OUTPUT,
    part("post_attention_layernorm", "post_attention_norm", Shape::ModelNorm, Bias::Never),
    part("pre_feedforward_layernorm", "ffn_norm", Shape::ModelNorm, Bias::Never),
    GATE,
    UP,
    DOWN,
    part("post_feedforward_layernorm", "post_ffw_norm", Shape::ModelNorm, Bias::Never),
];

const GEMMA3: &[Part] = &[
    INPUT_NORM,
    query(Bias::Maybe),
    key(Bias::Maybe),
    value(Bias::Maybe),
    OUTPUT,
    QUERY_NORM,
    KEY_NORM,
    part("post_attention_layernorm", "post_attention_norm", Shape::ModelNorm, Bias::Never),
    part("pre_feedforward_layernorm", "ffn_norm", Shape::ModelNorm, Bias::Never),
    GATE,
    UP,
    DOWN,
    part("post_feedforward_layernorm", "post_ffw_norm", Shape::ModelNorm, Bias::Never),
];

const SILU: &[&str] = &["silu", "swish"];
/// Early Gemma files say `gelu` and mean the form with tanh.
const GELU_TANH: &[&str] = &["gelu_pytorch_tanh", "gelu"];

/// The names of decoders.
const DECODER: Names = Names {
    shown_prefix: "model.",
    layers: "layers.",
    outside: &[
        part("embed_tokens", "token_embd", Shape::Embedding, Bias::Never),
        part("norm", "output_norm", Shape::ModelNorm, Bias::Never),
    ],
    unused: &[],
};

/// The families that can be read.
const FAMILIES: &[Family] = &[
    Family {
        classes: &["LlamaForCausalLM"],
        model_types: &["llama"],
        architecture: "llama",
        form: Form::Decoder(Kind::Llama),
        names: &DECODER,
        layer: LLAMA,
        interleaves_heads: true,
        norms_plus_one: false,
        activations: SILU,
    },
    Family {
        classes: &["MistralForCausalLM"],
        model_types: &["mistral"],
        architecture: "llama",
        form: Form::Decoder(Kind::Mistral),
        names: &DECODER,
        layer: LLAMA,
        interleaves_heads: true,
        norms_plus_one: false,
        activations: SILU,
    },
    Family {
        classes: &["Mistral3ForConditionalGeneration", "Ministral3ForCausalLM"],
        model_types: &["mistral3", "ministral3"],
        architecture: "mistral3",
        form: Form::Decoder(Kind::Mistral3),
        names: &DECODER,
        layer: LLAMA,
        interleaves_heads: true,
        norms_plus_one: false,
        activations: SILU,
    },
    Family {
        classes: &["Qwen2ForCausalLM"],
        model_types: &["qwen2"],
        architecture: "qwen2",
        form: Form::Decoder(Kind::Qwen),
        names: &DECODER,
        layer: QWEN2,
        interleaves_heads: false,
        norms_plus_one: false,
        activations: SILU,
    },
    Family {
        classes: &["Qwen3ForCausalLM"],
        model_types: &["qwen3"],
        architecture: "qwen3",
        form: Form::Decoder(Kind::Qwen),
        names: &DECODER,
        layer: QWEN3,
        interleaves_heads: false,
        norms_plus_one: false,
        activations: SILU,
    },
    Family {
        classes: &["Phi3ForCausalLM"],
        model_types: &["phi3"],
        architecture: "phi3",
        form: Form::Decoder(Kind::Phi3),
        names: &DECODER,
        layer: PHI3,
        interleaves_heads: false,
        norms_plus_one: false,
        activations: SILU,
    },
    Family {
        classes: &["GemmaForCausalLM"],
        model_types: &["gemma"],
        architecture: "gemma",
        form: Form::Decoder(Kind::Gemma),
        names: &DECODER,
        layer: LLAMA,
        interleaves_heads: false,
        norms_plus_one: true,
        activations: GELU_TANH,
    },
    Family {
        classes: &["Gemma2ForCausalLM"],
        model_types: &["gemma2"],
        architecture: "gemma2",
        form: Form::Decoder(Kind::Gemma2),
        names: &DECODER,
        layer: GEMMA2,
        interleaves_heads: false,
        norms_plus_one: true,
        activations: GELU_TANH,
    },
    Family {
        classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
        model_types: &["gemma3_text", "gemma3"],
        architecture: "gemma3",
        form: Form::Decoder(Kind::Gemma3),
        names: &DECODER,
        layer: GEMMA3,
        interleaves_heads: false,
        norms_plus_one: true,
        activations: GELU_TANH,
    },
    encoder::BERT,
    encoder::ROBERTA,
    encoder::DISTILBERT,
];

/// The family that a `config.json` names. `classes` are those of its `architectures`.
pub(super) fn find(config: &Fields<'_>, classes: &[&str]) -> Result<&'static Family> {
    let model_type = config.text("model_type")?;
    let found = match (classes.first(), model_type) {
        (Some(class), _) => FAMILIES.iter().find(|family| family.classes.contains(class)),
        (None, Some(name)) => FAMILIES.iter().find(|family| family.model_types.contains(&name)),
        (None, None) => return Err(config.missing("architectures", format!("one of {}", supported()))),
    };
    found.ok_or_else(|| Error::UnsupportedArchitecture {
        found: classes.first().copied().or(model_type).unwrap_or_default().to_owned(),
        supported: supported(),
    })
}

/// The usual class of each family.
fn supported() -> String {
    FAMILIES.iter().filter_map(|family| family.classes.first()).copied().collect::<Vec<_>>().join(", ")
}
