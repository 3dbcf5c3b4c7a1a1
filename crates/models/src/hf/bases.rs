//! Families of decoders that others are changes of, and defaults of their hyperparameters.

use super::family::{Decoder, Family, Form, SoftCaps};
use super::names;
use super::parts;
use super::window::{Rule, Window};

pub(super) const SILU: &[&str] = &["silu", "swish"];
/// Early Gemma files say `gelu` and mean the form with tanh.
pub(super) const GELU_TANH: &[&str] = &["gelu_pytorch_tanh", "gelu"];

/// Defaults that most decoders share.
pub(super) const USUAL: Decoder = Decoder {
    n_heads: None,
    n_kv_heads: None,
    head_dim: None,
    context: None,
    norm_eps: 1e-6,
    is_tied: None,
    is_never_tied: false,
    writes_vocab_size: false,
    writes_head_dim: true,
    writes_rotary_dim: false,
    rope_base: None,
    window_rope_base: None,
    yarn_truncate: true,
    needs_scaling: false,
    has_long_rope: false,
    has_long_rope_scales: false,
    is_mistral3: false,
    still_every: None,
    rotation_switch: None,
    has_factors: false,
    has_multipliers: false,
    soft_caps: SoftCaps::None,
    has_layer_kinds: false,
    has_streams: false,
    window: None,
    is_chunked: false,
    experts: None,
    is_latent: false,
    recurrent: None,
    recurrent_layer: &[],
    dense_layer: &[],
    expert_layer: &[],
    networks: [&[], &[]],
    head_norm_switch: None,
    prediction: None,
    partial_rotary: 1.0,
    rotary_sections: None,
    ffn_dim: "intermediate_size",
    adjusts_ffn_dim: false,
    is_encoder: false,
};

pub(super) const LLAMA_LIKE: Decoder = Decoder { writes_vocab_size: true, writes_rotary_dim: true, ..USUAL };

pub(super) const QWEN: Decoder = Decoder {
    window: Some(Window {
        switch: Some("use_sliding_window"),
        layers: Rule::From(28),
        number: &["max_window_layers"],
        is_chosen: true,
        ..Window::EVERY_LAYER
    }),
    ..USUAL
};

pub(super) const LLAMA_FAMILY: Family = Family {
    classes: &["LlamaForCausalLM"],
    model_types: &["llama"],
    architecture: "llama",
    applies: |_| true,
    form: Form::Decoder(LLAMA_LIKE),
    names: &names::DECODER,
    layer: parts::LLAMA,
    interleaves_heads: true,
    norms_plus_one: false,
    activations: SILU,
};

pub(super) const QWEN2_FAMILY: Family = Family {
    classes: &["Qwen2ForCausalLM"],
    model_types: &["qwen2"],
    architecture: "qwen2",
    form: Form::Decoder(QWEN),
    layer: parts::QWEN2,
    interleaves_heads: false,
    ..LLAMA_FAMILY
};
