//! Model families that candle runs, and their limits. Detected from a folder's configuration;
//! limits are the context length and features that candle lacks.

use ruvllm_kernels::rope::{RopeConfig, RopeScaling};
use ruvllm_models::ModelConfig;
use serde_json::{Map, Value};

/// A model family of candle, with the parameters that [`ModelConfig`] lacks.
pub(super) enum Family {
    Llama {
        scaling: Option<Llama3>,
    },
    Mistral,
    Qwen2,
    Phi3 {
        /// Divisors of the frequencies, `[rotary_dim / 2]`.
        divisors: Option<Vec<f32>>,
    },
    Gemma2,
}

/// Parameters of Llama 3 RoPE scaling.
pub(super) struct Llama3 {
    pub(super) factor: f32,
    pub(super) low_freq_factor: f32,
    pub(super) high_freq_factor: f32,
    pub(super) original_context: usize,
}

/// Factor on rows of the query projection. Candle divides scores by the square root of the head
/// size; other scales, and attention factors of `LongRoPE`, are folded into the query weights.
pub(super) struct QueryFactor {
    /// Name suffix of the matrix whose first rows are the query projection.
    pub(super) matrix: &'static str,
    pub(super) n_heads: usize,
    pub(super) head_dim: usize,
    /// Number of first rows of each head that are scaled.
    pub(super) scaled: usize,
    pub(super) factor: f64,
}

impl Family {
    /// The family of a folder whose configuration file is `json`.
    ///
    /// # Errors
    /// Feature that candle lacks.
    pub(super) fn of(config: &ModelConfig, json: &Map<String, Value>) -> Result<Self, String> {
        if let Some(feature) = config.decoder.unusual_feature() {
            return Err(format!("it has {feature}"));
        }
        let family = match config.architecture.as_str() {
            "llama" if is_mistral(json) => Self::Mistral,
            "llama" => Self::Llama { scaling: read_llama3(config, json) },
            "qwen2" => Self::Qwen2,
            "phi3" => Self::Phi3 { divisors: short_divisors(&config.rope) },
            "gemma2" => Self::Gemma2,
            other => {
                return Err(format!(
                    "its architecture is {other}, and this backend has llama (Llama, Mistral), qwen2, phi3 and gemma2"
                ));
            }
        };
        family.check_rope(&config.rope)?;
        family.check_heads(config)?;
        Ok(family)
    }

    /// Checks the RoPE scaling: each candle model supports that of its family or none.
    fn check_rope(&self, rope: &RopeConfig) -> Result<(), String> {
        let known = match (&rope.scaling, &rope.frequency_divisors) {
            (RopeScaling::None, None) => true,
            (RopeScaling::None, Some(_)) => matches!(self, Self::Llama { scaling: Some(_) }),
            (RopeScaling::LongRope { .. }, None) => matches!(self, Self::Phi3 { .. }),
            _ => false,
        };
        if known {
            return Ok(());
        }
        let name = match rope.scaling {
            RopeScaling::Linear { .. } => "linear",
            RopeScaling::Yarn { .. } => "yarn",
            RopeScaling::LongRope { .. } => "longrope",
            _ => "llama3",
        };
        Err(format!("it has no rotary scaling `{name}` for this architecture"))
    }

    /// Checks sizes that candle derives instead of reading them.
    fn check_heads(&self, config: &ModelConfig) -> Result<(), String> {
        let derives = !matches!(self, Self::Mistral | Self::Gemma2);
        if derives && config.query_dim() != config.model_dim {
            let (heads, width, model) = (config.n_heads, config.head_dim, config.model_dim);
            return Err(format!(
                "its heads of this architecture are as wide as the model together, and these are {heads} of {width} for \
                 {model}"
            ));
        }
        let turned = config.rope.rotary_dim;
        if turned != config.head_dim && !matches!(self, Self::Phi3 { .. }) {
            return Err(format!(
                "it rotates whole heads, and here {turned} of {} elements turn",
                config.head_dim
            ));
        }
        Ok(())
    }

    /// Context length: the requested one, else all that candle computes correctly, at most `usual`.
    ///
    /// # Errors
    /// A request for more than candle computes correctly.
    pub(super) fn context(
        &self,
        config: &ModelConfig,
        asked: Option<usize>,
        usual: usize,
    ) -> Result<usize, String> {
        let windows = (0..config.n_layers).filter_map(|layer| config.decoder.window.of_layer(layer));
        let window = windows.min().map(|tokens| (tokens, "it sees all tokens where this model has a window"));
        let original = config.long_rope_above();
        let original =
            original.map(|tokens| (tokens, "it has not the factors of LongRoPE for long sequences"));
        let model = (config.context_length, "the model was made for no more");
        let limits = [window, original].into_iter().flatten();
        let (limit, reason) =
            limits.fold(model, |least, limit| if limit.0 < least.0 { limit } else { least });
        match asked {
            Some(asked) if asked > limit => {
                Err(format!("a context of {asked} tokens was asked for and {reason}; take at most {limit}"))
            }
            Some(asked) => Ok(asked),
            None => Ok(limit.min(usual)),
        }
    }

    /// Factor on the query weights that gives candle's attention the model's own scale; `None` if
    /// it is 1.
    pub(super) fn query_factor(&self, config: &ModelConfig) -> Option<QueryFactor> {
        let scale = f64::from(config.decoder.attention_scale) * (config.head_dim as f64).sqrt();
        let (matrix, longer) = match (self, &config.rope.scaling) {
            (Self::Phi3 { .. }, RopeScaling::LongRope { attention_factor, .. }) => {
                // The factor applies to queries and to keys.
                ("self_attn.qkv_proj.weight", attention_factor.unwrap_or(1.0).powi(2))
            }
            (Self::Phi3 { .. }, _) => ("self_attn.qkv_proj.weight", 1.0),
            _ => ("self_attn.q_proj.weight", 1.0),
        };
        let factor = scale * longer;
        let scaled = if longer == 1.0 { config.head_dim } else { config.rope.rotary_dim };
        // The scale in the file was rounded to f32.
        ((factor - 1.0).abs() > 1e-6).then_some(QueryFactor {
            matrix,
            n_heads: config.n_heads,
            head_dim: config.head_dim,
            scaled,
            factor,
        })
    }
}

/// True for a Mistral folder; its GGUF architecture is `llama`.
fn is_mistral(json: &Map<String, Value>) -> bool {
    let class = json.get("architectures").and_then(|classes| classes.get(0));
    let name = class.or_else(|| json.get("model_type")).and_then(Value::as_str);
    name.is_some_and(|name| name.to_ascii_lowercase().starts_with("mistral"))
}

/// Parameters of Llama 3 RoPE scaling, from the folder's JSON. The configuration keeps only the
/// divisors. The folder's reader has checked the fields and has the same defaults.
fn read_llama3(config: &ModelConfig, json: &Map<String, Value>) -> Option<Llama3> {
    config.rope.frequency_divisors.as_ref()?;
    let rope = ["rope_parameters", "rope_scaling"].iter().find_map(|key| json.get(*key)?.as_object())?;
    let real = |key: &str, default: f64| rope.get(key).and_then(Value::as_f64).unwrap_or(default) as f32;
    const ORIGINAL: &str = "original_max_position_embeddings";
    let original = rope.get(ORIGINAL).or_else(|| json.get(ORIGINAL)).and_then(Value::as_f64);
    Some(Llama3 {
        factor: real("factor", 8.0),
        low_freq_factor: real("low_freq_factor", 1.0),
        high_freq_factor: real("high_freq_factor", 4.0),
        original_context: original.unwrap_or(8192.0) as usize,
    })
}

/// `LongRoPE` divisors for sequences within the original context.
fn short_divisors(rope: &RopeConfig) -> Option<Vec<f32>> {
    let RopeScaling::LongRope { short_factors, .. } = &rope.scaling else { return None };
    Some(short_factors.iter().map(|&divisor| divisor as f32).collect())
}
