//! The tensors of a layer, by family, as groups that families share.

use super::family::{Bias, Part, Parts, Shape, part};

const INPUT_NORM: Part = norm("input_layernorm", "attn_norm");
const FFN_NORM: Part = norm("post_attention_layernorm", "ffn_norm");
const POST_NORM: Part = norm("post_attention_layernorm", "post_attention_norm");
const PRE_FFN_NORM: Part = norm("pre_feedforward_layernorm", "ffn_norm");
const POST_FFN_NORM: Part = norm("post_feedforward_layernorm", "post_ffw_norm");
const OUTPUT: Part = part("self_attn.o_proj", "attn_output", Shape::AttentionOutput, Bias::Maybe);
const DOWN: Part = part("mlp.down_proj", "ffn_down", Shape::Down, Bias::Maybe);
const ROUTER: Part = part("mlp.gate", "ffn_gate_inp", Shape::Router, Bias::Never);

const fn norm(hf: &'static str, gguf: &'static str) -> Part {
    part(hf, gguf, Shape::ModelNorm, Bias::Never)
}

/// A tensor without a bias.
const fn plain(hf: &'static str, gguf: &'static str, shape: Shape) -> Part {
    part(hf, gguf, shape, Bias::Never)
}

const fn query(bias: Bias) -> Part {
    part("self_attn.q_proj", "attn_q", Shape::Query, bias)
}

const fn key(bias: Bias) -> Part {
    part("self_attn.k_proj", "attn_k", Shape::Key, bias)
}

const fn value(bias: Bias) -> Part {
    part("self_attn.v_proj", "attn_v", Shape::Value, bias)
}

const ATTENTION: &[Part] = &[query(Bias::Maybe), key(Bias::Maybe), value(Bias::Maybe), OUTPUT];

const GATED_ATTENTION: &[Part] = &[
    part("self_attn.q_proj", "attn_q", Shape::GatedQuery, Bias::Maybe),
    key(Bias::Maybe),
    value(Bias::Maybe),
    OUTPUT,
];

const HEAD_NORMS: &[Part] = &[
    plain("self_attn.q_norm", "attn_q_norm", Shape::HeadNorm),
    plain("self_attn.k_norm", "attn_k_norm", Shape::HeadNorm),
];

const ROW_NORMS: &[Part] = &[
    plain("self_attn.q_norm", "attn_q_norm", Shape::QueryNorm),
    plain("self_attn.k_norm", "attn_k_norm", Shape::KeyNorm),
];

/// Latent attention with queries from the residual stream, beside the projection to keys and
/// values.
pub(super) const LATENT: Parts = &[&[plain("self_attn.q_proj", "attn_q", Shape::LatentQuery)], LATENTS];

/// The same with queries from a latent of their own.
pub(super) const LATENT_QUERIES: Parts = &[
    &[
        part("self_attn.q_a_proj", "attn_q_a", Shape::QueryLatent, Bias::Maybe),
        plain("self_attn.q_a_layernorm", "attn_q_a_norm", Shape::QueryLatentNorm),
        plain("self_attn.q_b_proj", "attn_q_b", Shape::LatentQuery),
    ],
    LATENTS,
];

const LATENTS: &[Part] = &[
    part("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa", Shape::Latent, Bias::Maybe),
    plain("self_attn.kv_a_layernorm", "attn_kv_a_norm", Shape::LatentNorm),
    part("self_attn.o_proj", "attn_output", Shape::LatentOutput, Bias::Maybe),
];

const DELTA_NET: &[Part] = &[
    plain("linear_attn.in_proj_qkv", "attn_qkv", Shape::StateInput),
    plain("linear_attn.in_proj_z", "attn_gate", Shape::StateGate),
    plain("linear_attn.in_proj_b", "ssm_beta", Shape::StateHeads),
    plain("linear_attn.in_proj_a", "ssm_alpha", Shape::StateHeads),
    plain("linear_attn.A_log", "ssm_a", Shape::StateDecay),
    plain("linear_attn.dt_bias", "ssm_dt.bias", Shape::StateBias),
    plain("linear_attn.conv1d", "ssm_conv1d", Shape::StateTaps),
    plain("linear_attn.norm", "ssm_norm", Shape::StateNorm),
    plain("linear_attn.out_proj", "ssm_out", Shape::StateOutput),
];

const INTERLEAVED_DELTA_NET: &[Part] = &[
    plain("linear_attn.in_proj_qkvz", "attn_qkv", Shape::InterleavedInput),
    plain("linear_attn.in_proj_ba", "ssm_ba", Shape::InterleavedHeads),
    plain("linear_attn.A_log", "ssm_a", Shape::StateDecay),
    plain("linear_attn.dt_bias", "ssm_dt.bias", Shape::StateBias),
    plain("linear_attn.conv1d", "ssm_conv1d", Shape::StateTaps),
    plain("linear_attn.norm", "ssm_norm", Shape::StateNorm),
    plain("linear_attn.out_proj", "ssm_out", Shape::StateOutput),
];

const MAMBA2: &[Part] = &[
    part("mamba.in_proj", "ssm_in", Shape::MambaInput, Bias::Maybe),
    plain("mamba.A_log", "ssm_a", Shape::MambaDecay),
    plain("mamba.D", "ssm_d", Shape::MambaSkip),
    plain("mamba.dt_bias", "ssm_dt.bias", Shape::StateBias),
    part("mamba.conv1d", "ssm_conv1d", Shape::StateTaps, Bias::Maybe),
    plain("mamba.norm", "ssm_norm", Shape::MambaNorm),
    part("mamba.out_proj", "ssm_out", Shape::StateOutput, Bias::Maybe),
];

const NETWORK: &[Part] = &[
    part("mlp.gate_proj", "ffn_gate", Shape::Up, Bias::Maybe),
    part("mlp.up_proj", "ffn_up", Shape::Up, Bias::Maybe),
    DOWN,
];

const SHARED_EXPERTS: &[Part] = &[
    plain("mlp.shared_expert_gate", "ffn_gate_inp_shexp", Shape::SharedGate),
    plain("mlp.shared_expert.gate_proj", "ffn_gate_shexp", Shape::SharedUp),
    plain("mlp.shared_expert.up_proj", "ffn_up_shexp", Shape::SharedUp),
    plain("mlp.shared_expert.down_proj", "ffn_down_shexp", Shape::SharedDown),
];

/// Of several shared experts, in matrices together.
const PLAIN_SHARED_EXPERTS: &[Part] = &[
    plain("mlp.shared_experts.gate_proj", "ffn_gate_shexp", Shape::SharedUp),
    plain("mlp.shared_experts.up_proj", "ffn_up_shexp", Shape::SharedUp),
    plain("mlp.shared_experts.down_proj", "ffn_down_shexp", Shape::SharedDown),
];

const SELECTION_BIAS: Part =
    plain("mlp.gate.e_score_correction_bias", "exp_probs_b.bias", Shape::SelectionBias);

/// Of the layer of a prediction head, beside those of a layer.
pub(super) const PREDICTION: Parts = &[&[
    plain("eh_proj", "nextn.eh_proj", Shape::PairProjection),
    norm("enorm", "nextn.enorm"),
    norm("hnorm", "nextn.hnorm"),
]];

/// The same, in the place of those of the model; heads may lack them.
pub(super) const PREDICTION_OWN: Parts = &[&[
    plain("embed_tokens", "nextn.embed_tokens", Shape::Embedding),
    norm("shared_head.norm", "nextn.shared_head_norm"),
    plain("shared_head.head", "nextn.shared_head_head", Shape::Embedding),
]];

pub(super) const LLAMA: Parts = &[&[INPUT_NORM], ATTENTION, &[FFN_NORM], NETWORK];

pub(super) const QWEN2: Parts =
    &[&[INPUT_NORM, query(Bias::Always), key(Bias::Always), value(Bias::Always), OUTPUT, FFN_NORM], NETWORK];

pub(super) const QWEN3: Parts = &[&[INPUT_NORM], ATTENTION, HEAD_NORMS, &[FFN_NORM], NETWORK];

pub(super) const PHI3: Parts = &[&[
    INPUT_NORM,
    plain("self_attn.qkv_proj", "attn_qkv", Shape::QueryKeyValue),
    OUTPUT,
    FFN_NORM,
    plain("mlp.gate_up_proj", "ffn_up", Shape::GateUp),
    DOWN,
]];

pub(super) const PHIMOE: Parts = &[
    &[part("input_layernorm", "attn_norm", Shape::ModelNorm, Bias::Always)],
    ATTENTION,
    &[part("post_attention_layernorm", "ffn_norm", Shape::ModelNorm, Bias::Always), ROUTER],
];

pub(super) const GEMMA2: Parts =
    &[&[INPUT_NORM], ATTENTION, &[POST_NORM, PRE_FFN_NORM], NETWORK, &[POST_FFN_NORM]];

/// Tensors of models with embeddings per layer are apart.
pub(super) const GEMMA3N: Parts = &[
    &[INPUT_NORM],
    ATTENTION,
    HEAD_NORMS,
    &[POST_NORM, PRE_FFN_NORM],
    NETWORK,
    &[
        POST_FFN_NORM,
        plain("altup.correction_coefs", "altup_correct_coef", Shape::StreamCorrection),
        plain("altup.correct_output_scale", "altup_correct_scale.weight", Shape::StreamScale),
        plain("altup.prediction_coefs", "altup_predict_coef", Shape::StreamPrediction),
        plain("altup.modality_router", "altup_router", Shape::StreamRouter),
        norm("altup.router_norm", "altup_router_norm"),
        plain("laurel.linear_left", "laurel_l", Shape::LowRankDown),
        plain("laurel.linear_right", "laurel_r", Shape::LowRankUp),
        norm("laurel.post_laurel_norm", "laurel_post_norm"),
    ],
];

/// Tensors of models with embeddings per layer are apart.
pub(super) const GEMMA4: Parts = &[
    &[INPUT_NORM],
    ATTENTION,
    HEAD_NORMS,
    &[POST_NORM, PRE_FFN_NORM],
    NETWORK,
    &[POST_FFN_NORM, plain("layer_scalar", "layer_output_scale.weight", Shape::LayerScale)],
];

/// The same with experts beside the network.
pub(super) const GEMMA4_MOE: Parts = &[
    &[INPUT_NORM],
    ATTENTION,
    HEAD_NORMS,
    &[POST_NORM, PRE_FFN_NORM],
    NETWORK,
    &[POST_FFN_NORM, plain("layer_scalar", "layer_output_scale.weight", Shape::LayerScale)],
    &[
        plain("router.proj", "ffn_gate_inp", Shape::Router),
        plain("router.scale", "ffn_gate_inp.scale", Shape::RouterScale),
        plain("router.per_expert_scale", "ffn_down_exps.scale", Shape::ExpertScales),
        norm("post_feedforward_layernorm_1", "post_ffw_norm_1"),
        norm("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
        norm("post_feedforward_layernorm_2", "post_ffw_norm_2"),
    ],
];

/// Embeddings per layer.
pub(super) const LAYER_INPUT: Parts = &[&[
    plain("per_layer_input_gate", "inp_gate", Shape::LayerInputGate),
    plain("per_layer_projection", "proj", Shape::LayerInputOutput),
    norm("post_per_layer_input_norm", "post_norm"),
]];

pub(super) const GEMMA3: Parts =
    &[&[INPUT_NORM], ATTENTION, HEAD_NORMS, &[POST_NORM, PRE_FFN_NORM], NETWORK, &[POST_FFN_NORM]];

/// Latent attention has its tensors apart.
pub(super) const DEEPSEEK: Parts = &[&[INPUT_NORM, FFN_NORM, ROUTER, SELECTION_BIAS], PLAIN_SHARED_EXPERTS];

pub(super) const DEEPSEEK2: Parts = &[&[INPUT_NORM, FFN_NORM, ROUTER], PLAIN_SHARED_EXPERTS];

pub(super) const DEEPSEEK_DENSE: Parts = &[&[INPUT_NORM, FFN_NORM], NETWORK];

pub(super) const MIXTRAL: Parts =
    &[&[INPUT_NORM, query(Bias::Never), key(Bias::Never), value(Bias::Never), OUTPUT, FFN_NORM, ROUTER]];

pub(super) const LLAMA4: Parts = &[
    &[INPUT_NORM],
    ATTENTION,
    &[
        FFN_NORM,
        plain("feed_forward.router", "ffn_gate_inp", Shape::Router),
        plain("feed_forward.shared_expert.gate_proj", "ffn_gate_shexp", Shape::SharedUp),
        plain("feed_forward.shared_expert.up_proj", "ffn_up_shexp", Shape::SharedUp),
        plain("feed_forward.shared_expert.down_proj", "ffn_down_shexp", Shape::SharedDown),
    ],
];

pub(super) const LLAMA4_DENSE: Parts = &[
    &[INPUT_NORM],
    ATTENTION,
    &[
        FFN_NORM,
        plain("feed_forward.gate_proj", "ffn_gate", Shape::Up),
        plain("feed_forward.up_proj", "ffn_up", Shape::Up),
        plain("feed_forward.down_proj", "ffn_down", Shape::Down),
    ],
];

/// Biases of queries, keys and values as `qkv_bias` says; the weights tell too.
pub(super) const QWEN2_MOE: Parts = &[&[INPUT_NORM], ATTENTION, &[FFN_NORM, ROUTER], SHARED_EXPERTS];

pub(super) const QWEN3_MOE: Parts = &[&[INPUT_NORM], ATTENTION, HEAD_NORMS, &[FFN_NORM, ROUTER]];

pub(super) const OLMOE: Parts = &[&[INPUT_NORM], ATTENTION, ROW_NORMS, &[FFN_NORM, ROUTER]];

pub(super) const GPT_OSS: Parts = &[
    &[INPUT_NORM],
    ATTENTION,
    &[
        plain("self_attn.sinks", "attn_sinks.weight", Shape::Sinks),
        POST_NORM,
        part("mlp.router", "ffn_gate_inp", Shape::Router, Bias::Always),
    ],
];

pub(super) const GLM4: Parts = &[
    &[INPUT_NORM],
    ATTENTION,
    &[
        norm("post_self_attn_layernorm", "post_attention_norm"),
        FFN_NORM,
        plain("mlp.gate_up_proj", "ffn_up", Shape::GateUp),
        DOWN,
        norm("post_mlp_layernorm", "post_ffw_norm"),
    ],
];

pub(super) const GLM4_MOE: Parts =
    &[&[INPUT_NORM], ATTENTION, HEAD_NORMS, &[POST_NORM, ROUTER, SELECTION_BIAS], PLAIN_SHARED_EXPERTS];

pub(super) const GLM4_MOE_DENSE: Parts = &[&[INPUT_NORM], ATTENTION, HEAD_NORMS, &[POST_NORM], NETWORK];

pub(super) const OLMO2: Parts = &[ATTENTION, ROW_NORMS, &[POST_NORM], NETWORK, &[POST_FFN_NORM]];

pub(super) const EXAONE4: Parts = &[
    &[
        query(Bias::Never),
        key(Bias::Never),
        value(Bias::Never),
        plain("self_attn.o_proj", "attn_output", Shape::AttentionOutput),
    ],
    HEAD_NORMS,
    &[
        POST_NORM,
        plain("mlp.gate_proj", "ffn_gate", Shape::Up),
        plain("mlp.up_proj", "ffn_up", Shape::Up),
        plain("mlp.down_proj", "ffn_down", Shape::Down),
        POST_FFN_NORM,
    ],
];

pub(super) const QWEN35: Parts = &[&[INPUT_NORM], GATED_ATTENTION, HEAD_NORMS, &[POST_NORM], NETWORK];

pub(super) const QWEN35_STATE: Parts = &[&[INPUT_NORM], DELTA_NET, &[POST_NORM], NETWORK];

pub(super) const QWEN35_MOE: Parts =
    &[&[INPUT_NORM], GATED_ATTENTION, HEAD_NORMS, &[POST_NORM, ROUTER], SHARED_EXPERTS];

pub(super) const QWEN35_MOE_STATE: Parts = &[&[INPUT_NORM], DELTA_NET, &[POST_NORM, ROUTER], SHARED_EXPERTS];

pub(super) const QWEN3_NEXT_STATE: Parts =
    &[&[INPUT_NORM], INTERLEAVED_DELTA_NET, &[POST_NORM, ROUTER], SHARED_EXPERTS];

pub(super) const GRANITE_ATTENTION: Parts = &[&[INPUT_NORM], ATTENTION, &[FFN_NORM]];

pub(super) const GRANITE_MAMBA2: Parts = &[&[INPUT_NORM], MAMBA2, &[FFN_NORM]];

const GRANITE_ROUTER: Part = plain("block_sparse_moe.router.layer", "ffn_gate_inp", Shape::Router);

pub(super) const GRANITE_EXPERTS: Parts = &[&[GRANITE_ROUTER]];

pub(super) const GRANITE_SHARED_EXPERTS: Parts = &[&[
    GRANITE_ROUTER,
    plain("shared_mlp.input_linear", "ffn_gate_shexp", Shape::SharedGateAndUp),
    plain("shared_mlp.output_linear", "ffn_down_shexp", Shape::SharedDown),
]];

pub(super) const GRANITE_NETWORK: Parts = &[&[
    plain("shared_mlp.input_linear", "ffn_gate", Shape::GateAndUp),
    plain("shared_mlp.output_linear", "ffn_down", Shape::Down),
]];

const NEMOTRON_NORM: Part = norm("norm", "attn_norm");

pub(super) const NEMOTRON_ATTENTION: Parts = &[&[
    NEMOTRON_NORM,
    part("mixer.q_proj", "attn_q", Shape::Query, Bias::Maybe),
    part("mixer.k_proj", "attn_k", Shape::Key, Bias::Maybe),
    part("mixer.v_proj", "attn_v", Shape::Value, Bias::Maybe),
    part("mixer.o_proj", "attn_output", Shape::AttentionOutput, Bias::Maybe),
]];

pub(super) const NEMOTRON_MAMBA2: Parts = &[&[
    NEMOTRON_NORM,
    part("mixer.in_proj", "ssm_in", Shape::MambaInput, Bias::Maybe),
    plain("mixer.A_log", "ssm_a", Shape::MambaDecay),
    plain("mixer.D", "ssm_d", Shape::MambaSkip),
    plain("mixer.dt_bias", "ssm_dt.bias", Shape::StateBias),
    part("mixer.conv1d", "ssm_conv1d", Shape::StateTaps, Bias::Maybe),
    plain("mixer.norm", "ssm_norm", Shape::MambaNorm),
    part("mixer.out_proj", "ssm_out", Shape::StateOutput, Bias::Maybe),
]];

pub(super) const NEMOTRON_NETWORK: Parts = &[&[
    NEMOTRON_NORM,
    part("mixer.up_proj", "ffn_up", Shape::Up, Bias::Maybe),
    part("mixer.down_proj", "ffn_down", Shape::Down, Bias::Maybe),
]];

pub(super) const NEMOTRON_EXPERTS: Parts = &[&[
    NEMOTRON_NORM,
    plain("mixer.gate", "ffn_gate_inp", Shape::Router),
    plain("mixer.gate.e_score_correction_bias", "exp_probs_b.bias", Shape::SelectionBias),
    plain("mixer.shared_experts.up_proj", "ffn_up_shexp", Shape::SharedUp),
    plain("mixer.shared_experts.down_proj", "ffn_down_shexp", Shape::SharedDown),
]];

/// Both mixers; biases of projections would need factors of their own.
pub(super) const FALCON_H1: Parts = &[&[
    INPUT_NORM,
    query(Bias::Never),
    key(Bias::Never),
    value(Bias::Never),
    plain("self_attn.o_proj", "attn_output", Shape::AttentionOutput),
    plain("mamba.in_proj", "ssm_in", Shape::MambaInput),
    plain("mamba.A_log", "ssm_a", Shape::MambaDecay),
    plain("mamba.D", "ssm_d", Shape::MambaSkip),
    plain("mamba.dt_bias", "ssm_dt.bias", Shape::StateBias),
    part("mamba.conv1d", "ssm_conv1d", Shape::StateTaps, Bias::Maybe),
    plain("mamba.norm", "ssm_norm", Shape::MambaNorm),
    plain("mamba.out_proj", "ssm_out", Shape::StateOutput),
    plain("pre_ff_layernorm", "ffn_norm", Shape::BareNorm),
    plain("feed_forward.gate_proj", "ffn_gate", Shape::Up),
    plain("feed_forward.up_proj", "ffn_up", Shape::Up),
    plain("feed_forward.down_proj", "ffn_down", Shape::Down),
]];

const LFM2_NORM: Part = norm("operator_norm", "attn_norm");

const LFM2_NETWORK: &[Part] = &[
    norm("ffn_norm", "ffn_norm"),
    plain("feed_forward.w1", "ffn_gate", Shape::Up),
    plain("feed_forward.w3", "ffn_up", Shape::Up),
    plain("feed_forward.w2", "ffn_down", Shape::Down),
];

pub(super) const LFM2: Parts = &[
    &[
        LFM2_NORM,
        query(Bias::Never),
        key(Bias::Never),
        value(Bias::Never),
        plain("self_attn.out_proj", "attn_output", Shape::AttentionOutput),
        plain("self_attn.q_layernorm", "attn_q_norm", Shape::HeadNorm),
        plain("self_attn.k_layernorm", "attn_k_norm", Shape::HeadNorm),
    ],
    LFM2_NETWORK,
];

pub(super) const LFM2_STATE: Parts = &[
    &[
        LFM2_NORM,
        plain("conv.in_proj", "shortconv.in_proj", Shape::ConvolutionInput),
        plain("conv.conv", "shortconv.conv", Shape::ConvolutionTaps),
        plain("conv.out_proj", "shortconv.out_proj", Shape::ConvolutionOutput),
    ],
    LFM2_NETWORK,
];
