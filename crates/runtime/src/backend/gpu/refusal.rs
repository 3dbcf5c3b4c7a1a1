//! Reasons to refuse a model.

use ruvllm_gpu::KvFormat;
use ruvllm_kv_cache::KvPolicy;
use ruvllm_models::{Activation, ModelConfig};

use super::pool::format_of;
use crate::error::Error;

/// Name of the backend.
pub(super) const NAME: &str = "gpu";

/// Largest head size of the attention kernels.
const MAX_HEAD_DIM: usize = 512;

/// Reason to refuse a model.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    /// Columns are no multiple of the kernels' unit.
    #[error("the tensor {tensor} ({format}) has {cols} columns and the GPU kernels take multiples of {unit}")]
    Columns { tensor: String, format: &'static str, cols: usize, unit: usize },
    /// The format has no GPU kernels, and a value exceeds the range of F16.
    #[error("the tensor {tensor} ({format}) has no GPU kernels, and its value {value} is beyond F16")]
    BeyondF16 { tensor: String, format: &'static str, value: f32 },
    /// A size or feature of the model that no kernel supports.
    #[error("{0}")]
    Unsupported(String),
    /// The requested context exceeds the model's.
    #[error("its context has {model_context} tokens and {wanted} were asked for")]
    Context { wanted: usize, model_context: usize },
    /// The device failed.
    #[error("could not {action}")]
    Gpu { action: String, source: ruvllm_gpu::Error },
}

impl Refusal {
    /// Converts to the crate's error; `name` is the model's name in messages.
    pub(super) fn into_error(self, name: &str) -> Error {
        match self {
            Self::Gpu { action, source } => device_error(action, source),
            Self::Context { wanted: tokens, model_context } => {
                Error::ContextTooLong { what: "the context".to_owned(), tokens, model_context }
            }
            other => Error::UnsupportedByBackend {
                backend: NAME,
                name: name.to_owned(),
                reason: other.to_string(),
            },
        }
    }
}

/// Error of a failed device operation.
pub(super) fn device_error(action: String, error: ruvllm_gpu::Error) -> Error {
    let backend = NAME.to_owned();
    match error {
        ruvllm_gpu::Error::DeviceLost { .. } => Error::BackendLost { backend, source: error.into() },
        _ => Error::Backend { backend, action, source: error.into() },
    }
}

/// Activation function of the feed-forward network.
pub(super) fn activation(config: &ModelConfig) -> Result<ruvllm_gpu::Activation, Refusal> {
    match config.decoder.activation {
        Activation::SwiGlu => Ok(ruvllm_gpu::Activation::Silu),
        Activation::GeGlu => Ok(ruvllm_gpu::Activation::GeluTanh),
        other => Err(Refusal::Unsupported(format!("no GPU kernel has the activation {other:?}"))),
    }
}

/// Format of keys and values of a policy, for heads of this size.
pub(super) fn kv_format(policy: KvPolicy, head_dim: usize) -> Result<KvFormat, Refusal> {
    let Some(format) = format_of(policy) else {
        return Err(Refusal::Unsupported(format!("a GPU keeps keys and values as f16 or q8, not {policy}")));
    };
    let unit = format.head_dim_multiple();
    if !head_dim.is_multiple_of(unit as usize) {
        let name = format.name();
        return Err(Refusal::Unsupported(format!(
            "its heads have {head_dim} values and keys and values as {name} take multiples of {unit}; use f16"
        )));
    }
    Ok(format)
}

/// Checks that the kernels have what the model computes, and its sizes.
pub(super) fn check(config: &ModelConfig) -> Result<(), Refusal> {
    if let Some(feature) = config.decoder.unusual_feature() {
        return Err(Refusal::Unsupported(format!("it has {feature}, which runs on the CPU only")));
    }
    let head_dim = config.head_dim;
    if head_dim > MAX_HEAD_DIM || !head_dim.is_multiple_of(8) {
        return Err(Refusal::Unsupported(format!(
            "its heads have {head_dim} values and the GPU kernels take multiples of 8 up to {MAX_HEAD_DIM}"
        )));
    }
    for (name, width) in [("model", config.model_dim), ("feed-forward network", config.ffn_dim)] {
        if !width.is_multiple_of(4) {
            return Err(Refusal::Unsupported(format!(
                "its {name} has width {width} and the GPU kernels take multiples of 4"
            )));
        }
    }
    Ok(())
}

/// Context length: `wanted`, or at most `usual`, within what the backend computes correctly.
///
/// Position-dependent attention temperature is not implemented: the context ends where it begins.
pub(super) fn context(config: &ModelConfig, wanted: Option<usize>, usual: usize) -> Result<usize, Refusal> {
    let limit = config.decoder.attention_temperature.map_or(usize::MAX, |temperature| temperature.every);
    let limit = limit.min(config.context_length);
    let model_context = config.context_length;
    match wanted {
        Some(wanted) if wanted > model_context => Err(Refusal::Context { wanted, model_context }),
        Some(wanted) if wanted > limit => Err(Refusal::Unsupported(format!(
            "this backend computes its first {limit} positions and {wanted} were asked for"
        ))),
        Some(wanted) => Ok(wanted),
        None => Ok(usual.min(limit)),
    }
}
