//! The mixtures of experts of decoders.

use super::experts::{Experts, StackForm};

pub(super) const USUAL: Experts = Experts {
    switch: None,
    // transformers 5 writes the second.
    count: &["num_experts", "num_local_experts"],
    may_be_dense: false,
    used: "num_experts_per_tok",
    ffn_dim: Some("moe_intermediate_size"),
    shared_dim: None,
    shared_count: None,
    leading_dense: None,
    step: None,
    scoring: None,
    renormalize: Some(("norm_topk_prob", false)),
    scale: None,
    has_groups: false,
    alias: None,
    joint: None,
    beginning: None,
    parts: ["gate_proj", "up_proj", "down_proj"],
    is_gated: true,
    form: StackForm::Usual,
    clamp: &[],
};

pub(super) const MIXTRAL: Experts = Experts {
    count: &["num_local_experts"],
    ffn_dim: None,
    renormalize: None,
    alias: Some("block_sparse_moe."),
    parts: ["w1", "w3", "w2"],
    ..USUAL
};

/// The jitter masks experts without training too.
pub(super) const PHIMOE: Experts = Experts { clamp: &[("router_jitter_noise", 0.01)], ..MIXTRAL };

pub(super) const QWEN2: Experts = Experts { shared_dim: Some("shared_expert_intermediate_size"), ..USUAL };

pub(super) const QWEN35: Experts =
    Experts { shared_dim: Some("shared_expert_intermediate_size"), renormalize: None, ..USUAL };

pub(super) const QWEN3_NEXT: Experts = Experts { renormalize: Some(("norm_topk_prob", true)), ..QWEN35 };

pub(super) const OLMOE: Experts = Experts { ffn_dim: None, ..USUAL };

pub(super) const GPT_OSS: Experts = Experts {
    count: &["num_local_experts", "num_experts"],
    ffn_dim: Some("intermediate_size"),
    renormalize: None,
    form: StackForm::Alternating,
    clamp: &[("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)],
    ..USUAL
};

/// DeepSeek-V3.
pub(super) const DEEPSEEK: Experts = Experts {
    count: &["n_routed_experts", "num_local_experts"],
    shared_count: Some(("n_shared_experts", 0)),
    leading_dense: Some(("first_k_dense_replace", 0)),
    // Sigmoids.
    scoring: Some(2),
    renormalize: Some(("norm_topk_prob", true)),
    scale: Some("routed_scaling_factor"),
    has_groups: true,
    ..USUAL
};

/// DeepSeek-V2: a router of softmaxes.
pub(super) const DEEPSEEK2: Experts =
    Experts { scoring: Some(1), renormalize: Some(("norm_topk_prob", false)), ..DEEPSEEK };

pub(super) const MISTRAL4: Experts =
    Experts { renormalize: Some(("norm_topk_prob", true)), has_groups: false, ..DEEPSEEK2 };

/// GLM 4.5 and later.
pub(super) const GLM4: Experts = Experts {
    shared_count: Some(("n_shared_experts", 1)),
    leading_dense: Some(("first_k_dense_replace", 1)),
    ..DEEPSEEK
};

pub(super) const LLAMA4: Experts = Experts {
    count: &["num_local_experts"],
    may_be_dense: true,
    ffn_dim: Some("intermediate_size"),
    shared_dim: Some("intermediate_size"),
    step: Some("interleave_moe_layer_step"),
    renormalize: None,
    beginning: Some("feed_forward."),
    form: StackForm::Halves,
    ..USUAL
};

pub(super) const GRANITE: Experts = Experts {
    count: &["num_local_experts"],
    ffn_dim: None,
    renormalize: None,
    joint: Some(["block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"]),
    beginning: Some("block_sparse_moe."),
    ..USUAL
};

pub(super) const GRANITE_SHARED: Experts =
    Experts { shared_dim: Some("shared_intermediate_size"), ..GRANITE };

pub(super) const GRANITE_HYBRID: Experts = Experts { may_be_dense: true, ..GRANITE_SHARED };

pub(super) const NEMOTRON: Experts = Experts {
    count: &["n_routed_experts", "num_local_experts"],
    shared_dim: Some("moe_shared_expert_intermediate_size"),
    renormalize: Some(("norm_topk_prob", true)),
    scale: Some("routed_scaling_factor"),
    has_groups: true,
    beginning: Some("mixer."),
    is_gated: false,
    ..USUAL
};

pub(super) const GEMMA4: Experts = Experts {
    switch: Some("enable_moe_block"),
    used: "top_k_experts",
    renormalize: None,
    beginning: Some(""),
    ..USUAL
};
