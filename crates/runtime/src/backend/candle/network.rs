//! Candle's models behind one `forward`, with configurations converted from [`ModelConfig`].

use std::sync::Arc;

use candle_core::{DType, Result, Tensor};
use candle_nn::Activation;
use candle_transformers::models::{gemma2, llama, mistral, phi3, qwen2};
use ruvllm_models::ModelConfig;

use super::family::{Family, Llama3};
use super::weights::Weights;

/// A model with the KV cache of one sequence. Clones share the weights.
#[derive(Clone)]
pub(super) enum Network {
    Llama { model: Arc<llama::Llama>, cache: Box<llama::Cache> },
    Mistral(Box<mistral::Model>),
    Qwen2(Box<qwen2::ModelForCausalLM>),
    Phi3(Box<phi3::Model>),
    Gemma2(Box<gemma2::Model>),
}

impl Network {
    /// Builds the model of a family, for sequences of up to `context` tokens.
    pub(super) fn load(
        family: &Family,
        config: &ModelConfig,
        context: usize,
        weights: &Weights,
    ) -> Result<Self> {
        let builder = weights.builder();
        Ok(match family {
            Family::Llama { scaling } => {
                let config = llama_config(config, scaling.as_ref(), context, weights.is_tied());
                let cache = llama::Cache::new(true, DType::F32, &config, builder.device())?;
                let model = llama::Llama::load(builder, &config)?;
                Self::Llama { model: Arc::new(model), cache: Box::new(cache) }
            }
            Family::Mistral => {
                weights.untie();
                Self::Mistral(Box::new(mistral::Model::new(&mistral_config(config, context), builder)?))
            }
            Family::Qwen2 => {
                let config = qwen2_config(config, context, weights.is_tied());
                Self::Qwen2(Box::new(qwen2::ModelForCausalLM::new(&config, builder)?))
            }
            Family::Phi3 { divisors } => {
                let config = phi3_config(config, divisors.as_deref(), context, weights.is_tied());
                Self::Phi3(Box::new(phi3::Model::new(&config, builder)?))
            }
            Family::Gemma2 => {
                Self::Gemma2(Box::new(gemma2::Model::new(false, &gemma2_config(config, context), builder)?))
            }
        })
    }

    /// Appends `tokens`, `[1, n]`, at position `start`; returns the logits of the last one, in any
    /// shape.
    pub(super) fn forward(&mut self, tokens: &Tensor, start: usize) -> Result<Tensor> {
        match self {
            Self::Llama { model, cache } => model.forward(tokens, start, cache),
            Self::Mistral(model) => model.forward(tokens, start),
            Self::Qwen2(model) => model.forward(tokens, start),
            Self::Phi3(model) => model.forward(tokens, start),
            Self::Gemma2(model) => model.forward(tokens, start),
        }
    }
}

fn llama_config(
    config: &ModelConfig,
    scaling: Option<&Llama3>,
    context: usize,
    is_tied: bool,
) -> llama::Config {
    llama::Config {
        hidden_size: config.model_dim,
        intermediate_size: config.ffn_dim,
        vocab_size: config.vocab_size,
        num_hidden_layers: config.n_layers,
        num_attention_heads: config.n_heads,
        num_key_value_heads: config.n_kv_heads,
        use_flash_attn: false,
        rms_norm_eps: f64::from(config.norm_eps),
        rope_theta: config.rope.base as f32,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: scaling.map(|scaling| llama::Llama3RopeConfig {
            factor: scaling.factor,
            low_freq_factor: scaling.low_freq_factor,
            high_freq_factor: scaling.high_freq_factor,
            original_max_position_embeddings: scaling.original_context,
            rope_type: llama::Llama3RopeType::Llama3,
        }),
        // Candle mistakes the number of KV heads for a length and would truncate keys.
        max_position_embeddings: context.max(config.n_kv_heads),
        tie_word_embeddings: is_tied,
    }
}

fn mistral_config(config: &ModelConfig, context: usize) -> mistral::Config {
    mistral::Config {
        vocab_size: config.vocab_size,
        hidden_size: config.model_dim,
        intermediate_size: config.ffn_dim,
        num_hidden_layers: config.n_layers,
        num_attention_heads: config.n_heads,
        head_dim: Some(config.head_dim),
        num_key_value_heads: config.n_kv_heads,
        hidden_act: Activation::Silu,
        max_position_embeddings: context,
        rms_norm_eps: f64::from(config.norm_eps),
        rope_theta: config.rope.base,
        // Not needed: the context is limited to the window.
        sliding_window: None,
        use_flash_attn: false,
    }
}

fn qwen2_config(config: &ModelConfig, context: usize, is_tied: bool) -> qwen2::Config {
    qwen2::Config {
        vocab_size: config.vocab_size,
        hidden_size: config.model_dim,
        intermediate_size: config.ffn_dim,
        num_hidden_layers: config.n_layers,
        num_attention_heads: config.n_heads,
        num_key_value_heads: config.n_kv_heads,
        max_position_embeddings: context,
        // The field is not optional; this window masks nothing.
        sliding_window: context,
        max_window_layers: config.n_layers,
        tie_word_embeddings: is_tied,
        rope_theta: config.rope.base,
        rms_norm_eps: f64::from(config.norm_eps),
        use_sliding_window: false,
        hidden_act: Activation::Silu,
    }
}

fn phi3_config(
    config: &ModelConfig,
    divisors: Option<&[f32]>,
    context: usize,
    is_tied: bool,
) -> phi3::Config {
    let (turned, head_dim) = (config.rope.rotary_dim, config.head_dim);
    // Candle multiplies frequencies by the factors; ours are divisors.
    let factors = divisors.map(|divisors| divisors.iter().map(|divisor| 1.0 / divisor).collect::<Vec<_>>());
    phi3::Config {
        vocab_size: config.vocab_size,
        hidden_act: Activation::Silu,
        hidden_size: config.model_dim,
        intermediate_size: config.ffn_dim,
        num_hidden_layers: config.n_layers,
        num_attention_heads: config.n_heads,
        num_key_value_heads: config.n_kv_heads,
        rms_norm_eps: f64::from(config.norm_eps),
        rope_theta: config.rope.base,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: factors.map(|short_factor| phi3::RopeScaling {
            long_factor: Vec::new(),
            short_factor,
            type_: phi3::RopeScalingType::LongRope,
        }),
        max_position_embeddings: context,
        // `None` applies the short factors at all positions; the context is limited to the original
        // one.
        original_max_position_embeddings: None,
        // The 0.5 keeps rounding from truncating the product to the next lower integer.
        partial_rotary_factor: (turned != head_dim).then(|| (turned as f64 + 0.5) / head_dim as f64),
        tie_word_embeddings: is_tied,
    }
}

fn gemma2_config(config: &ModelConfig, context: usize) -> gemma2::Config {
    gemma2::Config {
        attention_bias: false,
        head_dim: config.head_dim,
        hidden_activation: Activation::GeluPytorchTanh,
        hidden_size: config.model_dim,
        intermediate_size: config.ffn_dim,
        num_attention_heads: config.n_heads,
        num_hidden_layers: config.n_layers,
        num_key_value_heads: config.n_kv_heads,
        rms_norm_eps: f64::from(config.norm_eps),
        rope_theta: config.rope.base,
        vocab_size: config.vocab_size,
        final_logit_softcapping: config.decoder.logits_soft_cap.map(f64::from),
        attn_logit_softcapping: config.decoder.attention_soft_cap.map(f64::from),
        // Candle uses the head size; `QueryFactor` corrects the scale.
        query_pre_attn_scalar: config.head_dim,
        // Not needed: the context is limited to the window.
        sliding_window: None,
        max_position_embeddings: context,
    }
}
