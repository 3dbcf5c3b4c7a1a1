//! The families of decoders.

use super::experts::{Experts, StackForm};
use super::family::{Bias, Decoder, Family, Form, Names, Part, Shape, SoftCaps, part};
use super::window::{Rule, Window};

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
    POST_NORM,
    part("pre_feedforward_layernorm", "ffn_norm", Shape::ModelNorm, Bias::Never),
    GATE,
    UP,
    DOWN,
    POST_FFN_NORM,
];

const GEMMA3: &[Part] = &[
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

const ROUTER: Part = part("mlp.gate", "ffn_gate_inp", Shape::Router, Bias::Never);

const MIXTRAL: &[Part] =
    &[INPUT_NORM, query(Bias::Never), key(Bias::Never), value(Bias::Never), OUTPUT, FFN_NORM, ROUTER];

/// Biases of queries, keys and values as `qkv_bias` says; the weights tell too.
const QWEN2_MOE: &[Part] = &[
    INPUT_NORM,
    query(Bias::Maybe),
    key(Bias::Maybe),
    value(Bias::Maybe),
    OUTPUT,
    FFN_NORM,
    ROUTER,
    part("mlp.shared_expert_gate", "ffn_gate_inp_shexp", Shape::SharedGate, Bias::Never),
    part("mlp.shared_expert.gate_proj", "ffn_gate_shexp", Shape::SharedUp, Bias::Never),
    part("mlp.shared_expert.up_proj", "ffn_up_shexp", Shape::SharedUp, Bias::Never),
    part("mlp.shared_expert.down_proj", "ffn_down_shexp", Shape::SharedDown, Bias::Never),
];

const QWEN3_MOE: &[Part] = &[
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

const OLMOE: &[Part] = &[
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

const POST_NORM: Part =
    part("post_attention_layernorm", "post_attention_norm", Shape::ModelNorm, Bias::Never);
const POST_FFN_NORM: Part =
    part("post_feedforward_layernorm", "post_ffw_norm", Shape::ModelNorm, Bias::Never);

const GPT_OSS: &[Part] = &[
    INPUT_NORM,
    query(Bias::Maybe),
    key(Bias::Maybe),
    value(Bias::Maybe),
    OUTPUT,
    part("self_attn.sinks", "attn_sinks", Shape::Sinks, Bias::Never),
    POST_NORM,
    part("mlp.router", "ffn_gate_inp", Shape::Router, Bias::Always),
];

const OLMO2: &[Part] = &[
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

const EXAONE4: &[Part] = &[
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

/// Defaults that most decoders share.
const USUAL: Decoder = Decoder {
    n_heads: None,
    n_kv_heads: None,
    head_dim: None,
    context: None,
    norm_eps: 1e-6,
    is_tied: None,
    writes_vocab_size: false,
    writes_head_dim: true,
    writes_rotary_dim: false,
    rope_base: None,
    window_rope_base: None,
    yarn_truncate: true,
    needs_scaling: false,
    has_long_rope: false,
    is_mistral3: false,
    still_every: None,
    has_factors: false,
    soft_caps: SoftCaps::None,
    window: None,
    experts: None,
};

const LLAMA_LIKE: Decoder = Decoder { writes_vocab_size: true, writes_rotary_dim: true, ..USUAL };

const QWEN: Decoder = Decoder {
    window: Some(Window {
        switch: Some("use_sliding_window"),
        layers: Rule::From(28),
        number: &["max_window_layers"],
        is_chosen: true,
        ..Window::EVERY_LAYER
    }),
    ..USUAL
};

const GEMMA1: Decoder = Decoder { head_dim: Some(256), is_tied: Some(true), ..USUAL };

const GEMMA_WINDOW: Window = Window { is_chosen: true, is_always_written: true, ..Window::EVERY_LAYER };

const EXPERTS: Experts = Experts {
    // transformers 5 writes the second.
    count: &["num_experts", "num_local_experts"],
    ffn_dim: Some("moe_intermediate_size"),
    shared_dim: None,
    renormalize: Some("norm_topk_prob"),
    alias: None,
    parts: ["gate_proj", "up_proj", "down_proj"],
    form: StackForm::Usual,
    clamp: &[],
};

/// The families, the older ones first.
pub(super) const FAMILIES: &[Family] = &[
    LLAMA_FAMILY,
    Family {
        classes: &["MistralForCausalLM"],
        model_types: &["mistral"],
        form: Form::Decoder(Decoder { window: Some(Window::EVERY_LAYER), ..LLAMA_LIKE }),
        ..LLAMA_FAMILY
    },
    Family {
        classes: &["Mistral3ForConditionalGeneration", "Ministral3ForCausalLM"],
        model_types: &["mistral3", "ministral3"],
        architecture: "mistral3",
        form: Form::Decoder(Decoder {
            is_mistral3: true,
            window: Some(Window { without_default: Some("ministral3"), ..Window::EVERY_LAYER }),
            ..LLAMA_LIKE
        }),
        ..LLAMA_FAMILY
    },
    Family {
        classes: &["SmolLM3ForCausalLM"],
        model_types: &["smollm3"],
        architecture: "smollm3",
        form: Form::Decoder(Decoder {
            n_kv_heads: Some(4),
            is_tied: Some(true),
            rope_base: Some(2_000_000.0),
            still_every: Some(4),
            ..LLAMA_LIKE
        }),
        ..LLAMA_FAMILY
    },
    Family {
        classes: &["GraniteForCausalLM"],
        model_types: &["granite"],
        architecture: "granite",
        form: Form::Decoder(Decoder { has_factors: true, ..LLAMA_LIKE }),
        ..LLAMA_FAMILY
    },
    QWEN2_FAMILY,
    Family {
        classes: &["Qwen3ForCausalLM"],
        model_types: &["qwen3"],
        architecture: "qwen3",
        layer: QWEN3,
        ..QWEN2_FAMILY
    },
    Family {
        classes: &["Phi3ForCausalLM"],
        model_types: &["phi3"],
        architecture: "phi3",
        form: Form::Decoder(Decoder {
            norm_eps: 1e-5,
            // Phi-3 files name none, and their writers none either.
            writes_head_dim: false,
            writes_rotary_dim: true,
            has_long_rope: true,
            window: Some(Window { length: None, is_always_written: true, ..Window::EVERY_LAYER }),
            ..USUAL
        }),
        layer: PHI3,
        ..QWEN2_FAMILY
    },
    Family {
        classes: &["MixtralForCausalLM"],
        model_types: &["mixtral"],
        form: Form::Decoder(Decoder {
            norm_eps: 1e-5,
            window: Some(Window { length: None, ..Window::EVERY_LAYER }),
            experts: Some(&Experts {
                count: &["num_local_experts"],
                ffn_dim: None,
                renormalize: None,
                alias: Some("block_sparse_moe."),
                parts: ["w1", "w3", "w2"],
                ..EXPERTS
            }),
            ..LLAMA_LIKE
        }),
        layer: MIXTRAL,
        ..LLAMA_FAMILY
    },
    Family {
        classes: &["Qwen2MoeForCausalLM"],
        model_types: &["qwen2_moe"],
        architecture: "qwen2moe",
        form: Form::Decoder(Decoder {
            experts: Some(&Experts { shared_dim: Some("shared_expert_intermediate_size"), ..EXPERTS }),
            ..QWEN
        }),
        layer: QWEN2_MOE,
        ..QWEN2_FAMILY
    },
    Family {
        classes: &["Qwen3MoeForCausalLM"],
        model_types: &["qwen3_moe"],
        architecture: "qwen3moe",
        form: Form::Decoder(Decoder {
            window: Some(Window { switch: Some("use_sliding_window"), ..Window::EVERY_LAYER }),
            experts: Some(&EXPERTS),
            ..USUAL
        }),
        layer: QWEN3_MOE,
        ..QWEN2_FAMILY
    },
    Family {
        classes: &["OlmoeForCausalLM"],
        model_types: &["olmoe"],
        architecture: "olmoe",
        form: Form::Decoder(Decoder {
            norm_eps: 1e-5,
            experts: Some(&Experts { ffn_dim: None, ..EXPERTS }),
            ..USUAL
        }),
        layer: OLMOE,
        ..QWEN2_FAMILY
    },
    Family {
        classes: &["GptOssForCausalLM"],
        model_types: &["gpt_oss"],
        architecture: "gpt-oss",
        form: Form::Decoder(Decoder {
            head_dim: Some(64),
            norm_eps: 1e-5,
            rope_base: Some(150_000.0),
            yarn_truncate: false,
            needs_scaling: true,
            window: Some(Window {
                length: Some(128),
                layers: Rule::ButEvery(2),
                is_chosen: true,
                is_always_written: true,
                ..Window::EVERY_LAYER
            }),
            experts: Some(&Experts {
                count: &["num_local_experts", "num_experts"],
                ffn_dim: Some("intermediate_size"),
                renormalize: None,
                form: StackForm::Alternating,
                clamp: &[("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)],
                ..EXPERTS
            }),
            ..USUAL
        }),
        layer: GPT_OSS,
        ..QWEN2_FAMILY
    },
    OLMO2_FAMILY,
    Family {
        classes: &["Olmo3ForCausalLM"],
        model_types: &["olmo3"],
        form: Form::Decoder(Decoder {
            rope_base: Some(500_000.0),
            window: Some(Window { layers: Rule::ButEvery(4), is_chosen: true, ..Window::EVERY_LAYER }),
            ..OLMO
        }),
        ..OLMO2_FAMILY
    },
    Family {
        classes: &["Exaone4ForCausalLM"],
        model_types: &["exaone4"],
        architecture: "exaone4",
        form: Form::Decoder(Decoder {
            norm_eps: 1e-5,
            writes_vocab_size: true,
            window: Some(Window {
                layers: Rule::ButEvery(4),
                number: &["sliding_window_pattern"],
                is_chosen: true,
                // Readers have a window for models of 64 layers.
                is_always_written: true,
                ..Window::EVERY_LAYER
            }),
            ..USUAL
        }),
        layer: EXAONE4,
        ..QWEN2_FAMILY
    },
    GEMMA_FAMILY,
    Family {
        classes: &["Gemma2ForCausalLM"],
        model_types: &["gemma2"],
        architecture: "gemma2",
        form: Form::Decoder(Decoder {
            soft_caps: SoftCaps::Both { scores: 50.0, logits: 30.0 },
            window: Some(Window { layers: Rule::ButEvery(2), ..GEMMA_WINDOW }),
            ..GEMMA1
        }),
        layer: GEMMA2,
        ..GEMMA_FAMILY
    },
    Family {
        classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
        model_types: &["gemma3_text", "gemma3"],
        architecture: "gemma3",
        // Files leave out what is as in the smallest model of the class.
        form: Form::Decoder(Decoder {
            n_heads: Some(8),
            n_kv_heads: Some(4),
            context: Some(131_072),
            rope_base: Some(1_000_000.0),
            window_rope_base: Some(10_000.0),
            soft_caps: SoftCaps::Logits,
            window: Some(Window {
                layers: Rule::ButEvery(6),
                number: &["sliding_window_pattern", "_sliding_window_pattern"],
                ..GEMMA_WINDOW
            }),
            ..GEMMA1
        }),
        layer: GEMMA3,
        ..GEMMA_FAMILY
    },
];

const LLAMA_FAMILY: Family = Family {
    classes: &["LlamaForCausalLM"],
    model_types: &["llama"],
    architecture: "llama",
    form: Form::Decoder(LLAMA_LIKE),
    names: &DECODER,
    layer: LLAMA,
    interleaves_heads: true,
    norms_plus_one: false,
    activations: SILU,
};

const QWEN2_FAMILY: Family = Family {
    classes: &["Qwen2ForCausalLM"],
    model_types: &["qwen2"],
    architecture: "qwen2",
    form: Form::Decoder(QWEN),
    layer: QWEN2,
    interleaves_heads: false,
    ..LLAMA_FAMILY
};

const OLMO: Decoder = Decoder { norm_eps: 1e-5, ..USUAL };

const OLMO2_FAMILY: Family = Family {
    classes: &["Olmo2ForCausalLM"],
    model_types: &["olmo2"],
    architecture: "olmo2",
    form: Form::Decoder(OLMO),
    layer: OLMO2,
    ..QWEN2_FAMILY
};

const GEMMA_FAMILY: Family = Family {
    classes: &["GemmaForCausalLM"],
    model_types: &["gemma"],
    architecture: "gemma",
    form: Form::Decoder(GEMMA1),
    interleaves_heads: false,
    norms_plus_one: true,
    activations: GELU_TANH,
    ..LLAMA_FAMILY
};
