//! The families of decoders.

use super::bases::{GELU_TANH, LLAMA_FAMILY, LLAMA_LIKE, QWEN, QWEN2_FAMILY, USUAL};
use super::family::{Decoder, Family, Form, SoftCaps};
use super::mixtures;
use super::names;
use super::parts;
use super::prediction;
use super::recurrent::Recurrent;
use super::roles;
use super::window::{Rule, Window};

const QWEN35_DECODER: Decoder = Decoder {
    n_kv_heads: Some(4),
    head_dim: Some(256),
    context: Some(32_768),
    is_tied: Some(false),
    writes_rotary_dim: true,
    recurrent: Some(Recurrent::DeltaNet),
    recurrent_layer: parts::QWEN35_STATE,
    partial_rotary: 0.25,
    rotary_sections: Some([11, 11, 10, 0]),
    prediction: Some(prediction::APART),
    ..USUAL
};

const QWEN35_FAMILY: Family = Family {
    classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    model_types: &["qwen3_5_text", "qwen3_5"],
    architecture: "qwen35",
    form: Form::Decoder(QWEN35_DECODER),
    layer: parts::QWEN35,
    norms_plus_one: true,
    ..QWEN2_FAMILY
};

const NEMOTRON: Decoder = Decoder {
    n_kv_heads: Some(8),
    head_dim: Some(128),
    context: Some(4096),
    norm_eps: 1e-5,
    is_tied: Some(false),
    is_never_tied: true,
    writes_vocab_size: true,
    recurrent: Some(Recurrent::Mamba2Alone),
    recurrent_layer: parts::NEMOTRON_MAMBA2,
    dense_layer: parts::NEMOTRON_NETWORK,
    expert_layer: parts::NEMOTRON_EXPERTS,
    ..USUAL
};

/// Heads are reordered as if they were rotated.
const NEMOTRON_FAMILY: Family = Family {
    classes: &["NemotronHForCausalLM"],
    model_types: &["nemotron_h"],
    architecture: "nemotron_h",
    form: Form::Decoder(NEMOTRON),
    names: &names::NEMOTRON,
    layer: parts::NEMOTRON_ATTENTION,
    activations: &["relu2"],
    ..LLAMA_FAMILY
};

const DEEPSEEK: Decoder = Decoder {
    is_tied: Some(false),
    writes_vocab_size: true,
    writes_rotary_dim: true,
    is_latent: true,
    experts: Some(&mixtures::DEEPSEEK),
    dense_layer: parts::DEEPSEEK_DENSE,
    prediction: Some(prediction::BEHIND),
    ..USUAL
};

const GEMMA1: Decoder = Decoder { head_dim: Some(256), is_tied: Some(true), ..USUAL };

const GEMMA_WINDOW: Window = Window { is_chosen: true, is_always_written: true, ..Window::EVERY_LAYER };

/// Files leave out what is as in the smallest model of the class.
pub(super) const GEMMA3: Decoder = Decoder {
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
};

/// Granite 3 and 4.
const GRANITE: Decoder = Decoder { has_factors: true, ..LLAMA_LIKE };

/// The families, the older ones first.
pub(super) const FAMILIES: &[Family] = &[
    LLAMA_FAMILY,
    QWEN35_FAMILY,
    Family {
        classes: &["Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"],
        model_types: &["qwen3_5_moe_text", "qwen3_5_moe"],
        architecture: "qwen35moe",
        form: Form::Decoder(Decoder {
            n_kv_heads: Some(2),
            experts: Some(&mixtures::QWEN35),
            recurrent_layer: parts::QWEN35_MOE_STATE,
            ..QWEN35_DECODER
        }),
        layer: parts::QWEN35_MOE,
        ..QWEN35_FAMILY
    },
    Family {
        classes: &["Qwen3NextForCausalLM"],
        model_types: &["qwen3_next"],
        architecture: "qwen3next",
        form: Form::Decoder(Decoder {
            n_kv_heads: Some(2),
            experts: Some(&mixtures::QWEN3_NEXT),
            recurrent: Some(Recurrent::GroupedDeltaNet),
            recurrent_layer: parts::QWEN3_NEXT_STATE,
            rotary_sections: None,
            ..QWEN35_DECODER
        }),
        layer: parts::QWEN35_MOE,
        ..QWEN35_FAMILY
    },
    Family {
        classes: &["Lfm2ForCausalLM"],
        model_types: &["lfm2"],
        architecture: "lfm2",
        form: Form::Decoder(Decoder {
            n_kv_heads: Some(8),
            context: Some(128_000),
            norm_eps: 1e-5,
            is_tied: Some(true),
            writes_vocab_size: true,
            rope_base: Some(1_000_000.0),
            recurrent: Some(Recurrent::ShortConvolution),
            recurrent_layer: parts::LFM2_STATE,
            adjusts_ffn_dim: true,
            ..USUAL
        }),
        names: &names::LFM2,
        layer: parts::LFM2,
        ..QWEN2_FAMILY
    },
    Family {
        classes: &["DeepseekV3ForCausalLM"],
        model_types: &["deepseek_v3", "kimi_k2"],
        architecture: "deepseek2",
        form: Form::Decoder(DEEPSEEK),
        layer: parts::DEEPSEEK,
        ..QWEN2_FAMILY
    },
    Family {
        classes: &["DeepseekV2ForCausalLM"],
        model_types: &["deepseek_v2"],
        architecture: "deepseek2",
        form: Form::Decoder(Decoder { experts: Some(&mixtures::DEEPSEEK2), ..DEEPSEEK }),
        layer: parts::DEEPSEEK2,
        ..QWEN2_FAMILY
    },
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
        // Published folders have the class of the larger model, which is that of Mistral 3.
        classes: &["Mistral4ForCausalLM", "Mistral3ForConditionalGeneration"],
        model_types: &["mistral4"],
        architecture: "mistral4",
        form: Form::Decoder(Decoder { is_mistral3: true, experts: Some(&mixtures::MISTRAL4), ..DEEPSEEK }),
        layer: parts::DEEPSEEK2,
        ..QWEN2_FAMILY
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
        classes: &["Llama4ForCausalLM", "Llama4ForConditionalGeneration"],
        model_types: &["llama4_text", "llama4"],
        architecture: "llama4",
        form: Form::Decoder(Decoder {
            n_kv_heads: Some(8),
            head_dim: Some(128),
            context: Some(131_072),
            norm_eps: 1e-5,
            is_tied: Some(false),
            rope_base: Some(500_000.0),
            is_chunked: true,
            experts: Some(&mixtures::LLAMA4),
            dense_layer: parts::LLAMA4_DENSE,
            ffn_dim: "intermediate_size_mlp",
            ..LLAMA_LIKE
        }),
        layer: parts::LLAMA4,
        interleaves_heads: false,
        ..LLAMA_FAMILY
    },
    Family {
        classes: &["GraniteForCausalLM"],
        model_types: &["granite"],
        architecture: "granite",
        form: Form::Decoder(GRANITE),
        ..LLAMA_FAMILY
    },
    Family {
        classes: &["GraniteMoeForCausalLM"],
        model_types: &["granitemoe"],
        architecture: "granitemoe",
        form: Form::Decoder(Decoder {
            experts: Some(&mixtures::GRANITE),
            networks: [parts::GRANITE_EXPERTS, &[]],
            ..GRANITE
        }),
        layer: parts::GRANITE_ATTENTION,
        ..LLAMA_FAMILY
    },
    Family {
        classes: &["GraniteMoeSharedForCausalLM"],
        model_types: &["granitemoeshared"],
        architecture: "granitemoe",
        form: Form::Decoder(Decoder {
            experts: Some(&mixtures::GRANITE_SHARED),
            networks: [parts::GRANITE_SHARED_EXPERTS, &[]],
            ..GRANITE
        }),
        layer: parts::GRANITE_ATTENTION,
        ..LLAMA_FAMILY
    },
    Family {
        classes: &["GraniteMoeHybridForCausalLM"],
        model_types: &["granitemoehybrid"],
        architecture: "granitehybrid",
        form: Form::Decoder(Decoder {
            rotation_switch: Some("position_embedding_type"),
            experts: Some(&mixtures::GRANITE_HYBRID),
            networks: [parts::GRANITE_SHARED_EXPERTS, parts::GRANITE_NETWORK],
            recurrent: Some(Recurrent::Mamba2),
            recurrent_layer: parts::GRANITE_MAMBA2,
            ..GRANITE
        }),
        layer: parts::GRANITE_ATTENTION,
        ..LLAMA_FAMILY
    },
    Family {
        architecture: "nemotron_h_moe",
        applies: roles::have_experts,
        form: Form::Decoder(Decoder { experts: Some(&mixtures::NEMOTRON), ..NEMOTRON }),
        ..NEMOTRON_FAMILY
    },
    NEMOTRON_FAMILY,
    Family {
        classes: &["FalconH1ForCausalLM"],
        model_types: &["falcon_h1"],
        architecture: "falcon-h1",
        form: Form::Decoder(Decoder {
            n_kv_heads: Some(8),
            context: Some(8192),
            norm_eps: 1e-5,
            is_tied: Some(false),
            writes_vocab_size: true,
            has_multipliers: true,
            recurrent: Some(Recurrent::Mamba2Beside),
            recurrent_layer: parts::FALCON_H1,
            ..USUAL
        }),
        names: &names::FALCON,
        layer: parts::FALCON_H1,
        ..QWEN2_FAMILY
    },
    QWEN2_FAMILY,
    Family {
        classes: &["Qwen3ForCausalLM"],
        model_types: &["qwen3"],
        architecture: "qwen3",
        layer: parts::QWEN3,
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
        layer: parts::PHI3,
        ..QWEN2_FAMILY
    },
    Family {
        // Published folders have the first.
        classes: &["PhiMoEForCausalLM", "PhimoeForCausalLM"],
        model_types: &["phimoe"],
        architecture: "phimoe",
        form: Form::Decoder(Decoder {
            n_kv_heads: Some(8),
            context: Some(131_072),
            norm_eps: 1e-5,
            is_tied: Some(false),
            writes_head_dim: false,
            writes_rotary_dim: true,
            rope_base: Some(1_000_000.0),
            has_long_rope: true,
            has_long_rope_scales: true,
            window: Some(Window { length: None, is_always_written: true, ..Window::EVERY_LAYER }),
            experts: Some(&mixtures::PHIMOE),
            ..USUAL
        }),
        names: &names::PHIMOE,
        layer: parts::PHIMOE,
        ..QWEN2_FAMILY
    },
    Family {
        classes: &["MixtralForCausalLM"],
        model_types: &["mixtral"],
        form: Form::Decoder(Decoder {
            norm_eps: 1e-5,
            window: Some(Window { length: None, ..Window::EVERY_LAYER }),
            experts: Some(&mixtures::MIXTRAL),
            ..LLAMA_LIKE
        }),
        layer: parts::MIXTRAL,
        ..LLAMA_FAMILY
    },
    Family {
        classes: &["Qwen2MoeForCausalLM"],
        model_types: &["qwen2_moe"],
        architecture: "qwen2moe",
        form: Form::Decoder(Decoder { experts: Some(&mixtures::QWEN2), ..QWEN }),
        layer: parts::QWEN2_MOE,
        ..QWEN2_FAMILY
    },
    Family {
        classes: &["Qwen3MoeForCausalLM"],
        model_types: &["qwen3_moe"],
        architecture: "qwen3moe",
        form: Form::Decoder(Decoder {
            window: Some(Window { switch: Some("use_sliding_window"), ..Window::EVERY_LAYER }),
            experts: Some(&mixtures::USUAL),
            ..USUAL
        }),
        layer: parts::QWEN3_MOE,
        ..QWEN2_FAMILY
    },
    Family {
        classes: &["OlmoeForCausalLM"],
        model_types: &["olmoe"],
        architecture: "olmoe",
        form: Form::Decoder(Decoder { norm_eps: 1e-5, experts: Some(&mixtures::OLMOE), ..USUAL }),
        layer: parts::OLMOE,
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
            experts: Some(&mixtures::GPT_OSS),
            ..USUAL
        }),
        layer: parts::GPT_OSS,
        ..QWEN2_FAMILY
    },
    Family {
        classes: &["Glm4ForCausalLM"],
        model_types: &["glm4"],
        architecture: "glm4",
        form: Form::Decoder(Decoder {
            head_dim: Some(128),
            n_kv_heads: Some(2),
            norm_eps: 1.5625e-7,
            writes_rotary_dim: true,
            partial_rotary: 0.5,
            ..USUAL
        }),
        layer: parts::GLM4,
        ..QWEN2_FAMILY
    },
    Family {
        classes: &["Glm4MoeForCausalLM"],
        model_types: &["glm4_moe"],
        architecture: "glm4moe",
        form: Form::Decoder(Decoder {
            norm_eps: 1e-5,
            writes_rotary_dim: true,
            experts: Some(&mixtures::GLM4),
            dense_layer: parts::GLM4_MOE_DENSE,
            head_norm_switch: Some("use_qk_norm"),
            prediction: Some(prediction::BEHIND),
            partial_rotary: 0.5,
            ..USUAL
        }),
        layer: parts::GLM4_MOE,
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
        layer: parts::EXAONE4,
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
        layer: parts::GEMMA2,
        ..GEMMA_FAMILY
    },
    Family {
        classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
        model_types: &["gemma3_text", "gemma3"],
        architecture: "gemma3",
        form: Form::Decoder(GEMMA3),
        layer: parts::GEMMA3,
        ..GEMMA_FAMILY
    },
    Family {
        classes: &["Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"],
        model_types: &["gemma3n_text", "gemma3n"],
        architecture: "gemma3n",
        form: Form::Decoder(Decoder {
            n_heads: Some(8),
            n_kv_heads: Some(2),
            context: Some(32_768),
            rope_base: Some(1_000_000.0),
            window_rope_base: Some(10_000.0),
            soft_caps: SoftCaps::LogitsAlone { usual: Some(30.0) },
            has_streams: true,
            window: Some(Window { length: Some(512), layers: Rule::ButEvery(5), ..GEMMA_WINDOW }),
            ..GEMMA1
        }),
        names: &names::GEMMA4,
        layer: parts::GEMMA3N,
        norms_plus_one: false,
        ..GEMMA_FAMILY
    },
    Family {
        classes: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
        model_types: &["gemma4_text", "gemma4"],
        architecture: "gemma4",
        form: Form::Decoder(Decoder {
            n_heads: Some(8),
            n_kv_heads: Some(4),
            context: Some(131_072),
            writes_rotary_dim: true,
            window_rope_base: Some(10_000.0),
            needs_scaling: true,
            soft_caps: SoftCaps::LogitsAlone { usual: None },
            has_layer_kinds: true,
            window: Some(Window { length: Some(512), ..GEMMA_WINDOW }),
            experts: Some(&mixtures::GEMMA4),
            dense_layer: parts::GEMMA4,
            ..GEMMA1
        }),
        names: &names::GEMMA4,
        layer: parts::GEMMA4_MOE,
        norms_plus_one: false,
        ..GEMMA_FAMILY
    },
];

const OLMO: Decoder = Decoder { norm_eps: 1e-5, ..USUAL };

const OLMO2_FAMILY: Family = Family {
    classes: &["Olmo2ForCausalLM"],
    model_types: &["olmo2"],
    architecture: "olmo2",
    form: Form::Decoder(OLMO),
    layer: parts::OLMO2,
    ..QWEN2_FAMILY
};

pub(super) const GEMMA_FAMILY: Family = Family {
    classes: &["GemmaForCausalLM"],
    model_types: &["gemma"],
    architecture: "gemma",
    form: Form::Decoder(GEMMA1),
    interleaves_heads: false,
    norms_plus_one: true,
    activations: GELU_TANH,
    ..LLAMA_FAMILY
};
