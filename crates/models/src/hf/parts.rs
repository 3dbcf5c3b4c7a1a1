//! The tensors of a layer, by family.

use super::family::{Bias, Part, Shape, part};

pub(super) const INPUT_NORM: Part = part("input_layernorm", "attn_norm", Shape::ModelNorm, Bias::Never);
pub(super) const FFN_NORM: Part = part("post_attention_layernorm", "ffn_norm", Shape::ModelNorm, Bias::Never);
pub(super) const OUTPUT: Part = part("self_attn.o_proj", "attn_output", Shape::AttentionOutput, Bias::Maybe);
pub(super) const GATE: Part = part("mlp.gate_proj", "ffn_gate", Shape::Up, Bias::Maybe);
pub(super) const UP: Part = part("mlp.up_proj", "ffn_up", Shape::Up, Bias::Maybe);
pub(super) const DOWN: Part = part("mlp.down_proj", "ffn_down", Shape::Down, Bias::Maybe);
pub(super) const QUERY_NORM: Part = part("self_attn.q_norm", "attn_q_norm", Shape::HeadNorm, Bias::Never);
pub(super) const KEY_NORM: Part = part("self_attn.k_norm", "attn_k_norm", Shape::HeadNorm, Bias::Never);

pub(super) const fn query(bias: Bias) -> Part {
    part("self_attn.q_proj", "attn_q", Shape::Query, bias)
}

pub(super) const fn key(bias: Bias) -> Part {
    part("self_attn.k_proj", "attn_k", Shape::Key, bias)
}

pub(super) const fn value(bias: Bias) -> Part {
    part("self_attn.v_proj", "attn_v", Shape::Value, bias)
}

pub(super) const LLAMA: &[Part] =
    &[INPUT_NORM, query(Bias::Maybe), key(Bias::Maybe), value(Bias::Maybe), OUTPUT, FFN_NORM, GATE, UP, DOWN];

pub(super) const QWEN2: &[Part] = &[
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

pub(super) const QWEN3: &[Part] = &[
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

pub(super) const PHI3: &[Part] = &[
    INPUT_NORM,
    part("self_attn.qkv_proj", "attn_qkv", Shape::QueryKeyValue, Bias::Never),
    OUTPUT,
    FFN_NORM,
    part("mlp.gate_up_proj", "ffn_up", Shape::GateUp, Bias::Never),
    DOWN,
];

pub(super) const GEMMA2: &[Part] = &[
    INPUT_NORM,
    query(Bias::Maybe),
    key(Bias::Maybe),
    value(Bias::Maybe),
    OUTPUT,
    POST_NORM,
    part("pre_feedforward_layernorm", "ffn_norm", Shape::ModelNorm, Bias::Never),
    GATE,
    UP,
    DOWN,
    POST_FFN_NORM,
];

pub(super) const GEMMA3: &[Part] = &[
    INPUT_NORM,
    query(Bias::Maybe),
    key(Bias::Maybe),
    value(Bias::Maybe),
    OUTPUT,
    QUERY_NORM,
    KEY_NORM,
    POST_NORM,
    part("pre_feedforward_layernorm", "ffn_norm", Shape::ModelNorm, Bias::Never),
    GATE,
    UP,
    DOWN,
    POST_FFN_NORM,
];

pub(super) const ROUTER: Part = part("mlp.gate", "ffn_gate_inp", Shape::Router, Bias::Never);

pub(super) const MIXTRAL: &[Part] =
    &[INPUT_NORM, query(Bias::Never), key(Bias::Never), value(Bias::Never), OUTPUT, FFN_NORM, ROUTER];

/// Biases of queries, keys and values as `qkv_bias` says; the weights tell too.
pub(super) const QWEN2_MOE: &[Part] = &[
    INPUT_NORM,
    query(Bias::Maybe),
    key(Bias::Maybe),
    value(Bias::Maybe),
    OUTPUT,
    FFN_NORM,
    ROUTER,
    SHARED_EXPERT_GATE,
    SHARED_GATE,
    SHARED_UP,
    SHARED_DOWN,
];

pub(super) const QWEN3_MOE: &[Part] = &[
    INPUT_NORM,
    query(Bias::Maybe),
    key(Bias::Maybe),
    value(Bias::Maybe),
    OUTPUT,
    QUERY_NORM,
    KEY_NORM,
    FFN_NORM,
    ROUTER,
];

pub(super) const OLMOE: &[Part] = &[
    INPUT_NORM,
    query(Bias::Maybe),
    key(Bias::Maybe),
    value(Bias::Maybe),
    OUTPUT,
    part("self_attn.q_norm", "attn_q_norm", Shape::QueryNorm, Bias::Never),
    part("self_attn.k_norm", "attn_k_norm", Shape::KeyNorm, Bias::Never),
    FFN_NORM,
    ROUTER,
];

pub(super) const POST_NORM: Part =
    part("post_attention_layernorm", "post_attention_norm", Shape::ModelNorm, Bias::Never);
pub(super) const POST_FFN_NORM: Part =
    part("post_feedforward_layernorm", "post_ffw_norm", Shape::ModelNorm, Bias::Never);

pub(super) const GPT_OSS: &[Part] = &[
    INPUT_NORM,
    query(Bias::Maybe),
    key(Bias::Maybe),
    value(Bias::Maybe),
    OUTPUT,
    part("self_attn.sinks", "attn_sinks.weight", Shape::Sinks, Bias::Never),
    POST_NORM,
    part("mlp.router", "ffn_gate_inp", Shape::Router, Bias::Always),
];

pub(super) const OLMO2: &[Part] = &[
    query(Bias::Maybe),
    key(Bias::Maybe),
    value(Bias::Maybe),
    OUTPUT,
    part("self_attn.q_norm", "attn_q_norm", Shape::QueryNorm, Bias::Never),
    part("self_attn.k_norm", "attn_k_norm", Shape::KeyNorm, Bias::Never),
    POST_NORM,
    GATE,
    UP,
    DOWN,
    POST_FFN_NORM,
];

pub(super) const EXAONE4: &[Part] = &[
    query(Bias::Never),
    key(Bias::Never),
    value(Bias::Never),
    part("self_attn.o_proj", "attn_output", Shape::AttentionOutput, Bias::Never),
    QUERY_NORM,
    KEY_NORM,
    POST_NORM,
    part("mlp.gate_proj", "ffn_gate", Shape::Up, Bias::Never),
    part("mlp.up_proj", "ffn_up", Shape::Up, Bias::Never),
    part("mlp.down_proj", "ffn_down", Shape::Down, Bias::Never),
    POST_FFN_NORM,
];

pub(super) const fn state(hf: &'static str, gguf: &'static str, shape: Shape) -> Part {
    part(hf, gguf, shape, Bias::Never)
}

pub(super) const GATED_QUERY: Part = part("self_attn.q_proj", "attn_q", Shape::GatedQuery, Bias::Maybe);
pub(super) const STATE_INPUT: Part = state("linear_attn.in_proj_qkv", "attn_qkv", Shape::StateInput);
pub(super) const STATE_GATE: Part = state("linear_attn.in_proj_z", "attn_gate", Shape::StateGate);
pub(super) const STATE_RATE: Part = state("linear_attn.in_proj_b", "ssm_beta", Shape::StateHeads);
pub(super) const STATE_DECAY: Part = state("linear_attn.in_proj_a", "ssm_alpha", Shape::StateHeads);
pub(super) const STATE_FACTOR: Part = state("linear_attn.A_log", "ssm_a", Shape::StateDecay);
pub(super) const STATE_BIAS: Part = state("linear_attn.dt_bias", "ssm_dt.bias", Shape::StateBias);
pub(super) const STATE_TAPS: Part = state("linear_attn.conv1d", "ssm_conv1d", Shape::StateTaps);
pub(super) const STATE_NORM: Part = state("linear_attn.norm", "ssm_norm", Shape::StateNorm);
pub(super) const STATE_OUTPUT: Part = state("linear_attn.out_proj", "ssm_out", Shape::StateOutput);

pub(super) const QWEN35: &[Part] = &[
    INPUT_NORM,
    GATED_QUERY,
    key(Bias::Maybe),
    value(Bias::Maybe),
    OUTPUT,
    QUERY_NORM,
    KEY_NORM,
    POST_NORM,
    GATE,
    UP,
    DOWN,
];

pub(super) const QWEN35_STATE: &[Part] = &[
    INPUT_NORM,
    STATE_INPUT,
    STATE_GATE,
    STATE_RATE,
    STATE_DECAY,
    STATE_FACTOR,
    STATE_BIAS,
    STATE_TAPS,
    STATE_NORM,
    STATE_OUTPUT,
    POST_NORM,
    GATE,
    UP,
    DOWN,
];

pub(super) const SHARED_EXPERT_GATE: Part =
    part("mlp.shared_expert_gate", "ffn_gate_inp_shexp", Shape::SharedGate, Bias::Never);
pub(super) const SHARED_GATE: Part =
    part("mlp.shared_expert.gate_proj", "ffn_gate_shexp", Shape::SharedUp, Bias::Never);
pub(super) const SHARED_UP: Part =
    part("mlp.shared_expert.up_proj", "ffn_up_shexp", Shape::SharedUp, Bias::Never);
pub(super) const SHARED_DOWN: Part =
    part("mlp.shared_expert.down_proj", "ffn_down_shexp", Shape::SharedDown, Bias::Never);

pub(super) const QWEN35_MOE: &[Part] = &[
    INPUT_NORM,
    GATED_QUERY,
    key(Bias::Maybe),
    value(Bias::Maybe),
    OUTPUT,
    QUERY_NORM,
    KEY_NORM,
    POST_NORM,
    ROUTER,
    SHARED_EXPERT_GATE,
    SHARED_GATE,
    SHARED_UP,
    SHARED_DOWN,
];

pub(super) const QWEN35_MOE_STATE: &[Part] = &[
    INPUT_NORM,
    STATE_INPUT,
    STATE_GATE,
    STATE_RATE,
    STATE_DECAY,
    STATE_FACTOR,
    STATE_BIAS,
    STATE_TAPS,
    STATE_NORM,
    STATE_OUTPUT,
    POST_NORM,
    ROUTER,
    SHARED_EXPERT_GATE,
    SHARED_GATE,
    SHARED_UP,
    SHARED_DOWN,
];

pub(super) const LFM2_NORM: Part = part("operator_norm", "attn_norm", Shape::ModelNorm, Bias::Never);
pub(super) const LFM2_FFN_NORM: Part = part("ffn_norm", "ffn_norm", Shape::ModelNorm, Bias::Never);
pub(super) const LFM2_GATE: Part = part("feed_forward.w1", "ffn_gate", Shape::Up, Bias::Never);
pub(super) const LFM2_UP: Part = part("feed_forward.w3", "ffn_up", Shape::Up, Bias::Never);
pub(super) const LFM2_DOWN: Part = part("feed_forward.w2", "ffn_down", Shape::Down, Bias::Never);

pub(super) const LFM2: &[Part] = &[
    LFM2_NORM,
    query(Bias::Never),
    key(Bias::Never),
    value(Bias::Never),
    part("self_attn.out_proj", "attn_output", Shape::AttentionOutput, Bias::Never),
    part("self_attn.q_layernorm", "attn_q_norm", Shape::HeadNorm, Bias::Never),
    part("self_attn.k_layernorm", "attn_k_norm", Shape::HeadNorm, Bias::Never),
    LFM2_FFN_NORM,
    LFM2_GATE,
    LFM2_UP,
    LFM2_DOWN,
];

pub(super) const LFM2_STATE: &[Part] = &[
    LFM2_NORM,
    state("conv.in_proj", "shortconv.in_proj", Shape::ConvolutionInput),
    state("conv.conv", "shortconv.conv", Shape::ConvolutionTaps),
    state("conv.out_proj", "shortconv.out_proj", Shape::ConvolutionOutput),
    LFM2_FFN_NORM,
    LFM2_GATE,
    LFM2_UP,
    LFM2_DOWN,
];
