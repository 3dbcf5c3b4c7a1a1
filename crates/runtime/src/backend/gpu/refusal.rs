//! Reasons to refuse a model.

use ruvllm_gpu::{KvFormat, MAX_EXPERTS, MAX_USED_EXPERTS};
use ruvllm_kv_cache::KvPolicy;
use ruvllm_models::{Activation, Experts, LatentAttention, ModelConfig, Recurrent, RecurrentMixer, Window};

use super::heads::kinds;
use super::kv_policy::format_of;
use crate::error::Error;

/// Name of the backend.
pub(super) const NAME: &str = "gpu";

/// Largest head size of the attention kernels.
const MAX_HEAD_DIM: usize = 512;

/// Largest sizes of a key and of a latent in latent attention.
const MAX_LATENT: (usize, usize) = (1024, 512);

/// Most embeddings of layers in a row: those of all rows of a pass are one side of a grid.
pub(super) const MOST_PARTS: usize = 127;

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
    /// True if less memory in use would help.
    pub(super) fn is_lack_of_memory(&self) -> bool {
        use ruvllm_gpu::Error as E;
        matches!(self, Self::Gpu { source: E::OverBudget { .. } | E::OutOfMemory { .. }, .. })
    }

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

/// Activation function of a feed-forward network.
pub(super) fn activation(activation: Activation) -> Result<ruvllm_gpu::Activation, Refusal> {
    match activation {
        Activation::SwiGlu => Ok(ruvllm_gpu::Activation::Silu),
        Activation::GeGlu => Ok(ruvllm_gpu::Activation::GeluTanh),
        Activation::ClampedSwiGlu { alpha, limit } => Ok(ruvllm_gpu::Activation::ClampedSilu {
            alpha_bits: alpha.to_bits(),
            limit_bits: limit.to_bits(),
        }),
        Activation::SquaredRelu => Ok(ruvllm_gpu::Activation::SquaredRelu),
        other => Err(Refusal::Unsupported(format!("no GPU kernel has the activation {other:?}"))),
    }
}

/// Format of keys and values of a policy, for the heads of a model.
pub(super) fn kv_format(policy: KvPolicy, config: &ModelConfig) -> Result<KvFormat, Refusal> {
    let Some(format) = format_of(policy) else {
        return Err(Refusal::Unsupported(format!("a GPU keeps keys and values as f16 or q8, not {policy}")));
    };
    let unit = format.head_dim_multiple();
    // Heads in f16 are filled up.
    let mut dims = kinds(config).map(|layer| config.heads(layer).head_dim);
    let odd = dims.find(|head_dim| !head_dim.is_multiple_of(unit as usize));
    if let Some(head_dim) = odd.filter(|_| format != KvFormat::F16) {
        let name = format.name();
        return Err(Refusal::Unsupported(format!(
            "its heads have {head_dim} values and keys and values as {name} take multiples of {unit}; use f16"
        )));
    }
    Ok(format)
}

/// Checks that the kernels have what the model computes, and its sizes.
pub(super) fn check(config: &ModelConfig) -> Result<(), Refusal> {
    let unsupported =
        |feature: &str| Err(Refusal::Unsupported(format!("it has {feature}, which runs on the CPU only")));
    let decoder = &config.decoder;
    if let Some(feature) = decoder.experts.as_ref().and_then(unsupported_experts) {
        return unsupported(&feature);
    }
    if let Some(feature) = decoder.recurrent.as_ref().and_then(unsupported_states) {
        return unsupported(&feature);
    }
    if decoder.residual_scale != 1.0 && !decoder.input_norms && !decoder.post_norms {
        return unsupported("a factor of what layers add to the residual stream, without norms");
    }
    if decoder.residual_scale != 1.0 && decoder.layer_norms {
        return unsupported("a factor of what layers add to the residual stream, with layer norms");
    }
    if let Some(feature) = unsupported_layers(config) {
        return unsupported(feature);
    }
    // Unusual features that the kernels have.
    let mut rest = decoder.clone();
    rest.experts = None;
    rest.recurrent = None;
    rest.gated_attention = false;
    rest.residual_scale = 1.0;
    rest.input_norms = true;
    rest.latent = None;
    rest.layer_norms = false;
    rest.row_norms = false;
    rest.unit_head_norms = false;
    rest.layers.parts.clear();
    rest.layers.ffn_dims.clear();
    if !rest.activation.is_gated() {
        rest.activation = Activation::SwiGlu;
    }
    rest.sinks = false;
    let layers = &mut rest.layers;
    (layers.local_heads, layers.optional_values, layers.value_norms) = (None, false, false);
    (layers.input_dim, layers.output_scales) = (0, false);
    layers.kv_sources.clear();
    layers.ffn_dims.clear();
    rest.streams = None;
    rest.gate_cutoffs.clear();
    if rest.window.is_chunked() {
        rest.window = Window::Full;
    }
    if let Some(feature) = rest.unusual_feature() {
        return unsupported(&feature);
    }
    match &decoder.latent {
        Some(latent) => check_latent(config, latent)?,
        None => check_heads(config)?,
    }
    let experts = |width: fn(&Experts) -> usize| config.decoder.experts.as_ref().map_or(0, width);
    let networks = decoder.layers.ffn_dims.iter().map(|&width| ("feed-forward network", width));
    for (name, width) in [
        ("model", config.model_dim),
        ("embedding of a layer", decoder.layers.input_dim),
        ("feed-forward network", config.ffn_dim),
        ("feed-forward network of layers without experts", experts(|experts| experts.dense_dim)),
        ("experts", experts(|experts| experts.ffn_dim)),
    ]
    .into_iter()
    .chain(networks)
    {
        if !width.is_multiple_of(4) {
            return Err(Refusal::Unsupported(format!(
                "its {name} has width {width} and the GPU kernels take multiples of 4"
            )));
        }
    }
    Ok(())
}

/// Differences between layers that no kernel supports.
fn unsupported_layers(config: &ModelConfig) -> Option<&'static str> {
    let (decoder, layers) = (&config.decoder, &config.decoder.layers);
    let other_mixers = decoder.latent.is_some() || decoder.recurrent.is_some() || decoder.gated_attention;
    let features = [
        (layers.value_norms && !decoder.head_norms, "norms of values without norms of queries and keys"),
        (layers.optional_values && !layers.value_norms, "values that are keys, without norms"),
        (
            other_mixers && (layers.local_heads.is_some() || !layers.kv_sources.is_empty()),
            "heads of several widths or shared keys beside gated attention, latents or states",
        ),
        (layers.input_dim > 0 && config.n_layers > MOST_PARTS, "embeddings for more than 127 layers"),
    ];
    features.into_iter().find_map(|(is_there, name)| is_there.then_some(name))
}

/// Checks the size of heads. Attention fills up those that are no multiple of 8 (ADR-0152), norms
/// take multiples of 4, and gates only heads as they are.
fn check_heads(config: &ModelConfig) -> Result<(), Refusal> {
    let decoder = &config.decoder;
    let has_norms = decoder.head_norms || decoder.row_norms || decoder.unit_head_norms;
    let (unit, with) = match (decoder.layers.local_heads.is_some(), decoder.gated_attention, has_norms) {
        (true, ..) => (8, " in some layers"),
        (_, true, _) => (8, " and gates"),
        (_, _, true) => (4, " and norms"),
        _ => (2, ""),
    };
    let mut dims = kinds(config).map(|layer| config.heads(layer).head_dim);
    let Some(head_dim) = dims.find(|dim| *dim > MAX_HEAD_DIM || !dim.is_multiple_of(unit)) else {
        return Ok(());
    };
    Err(Refusal::Unsupported(format!(
        "its heads have {head_dim} values{with}, and the GPU kernels take multiples of {unit} up to \
         {MAX_HEAD_DIM}"
    )))
}

/// Checks the sizes of latent attention.
fn check_latent(config: &ModelConfig, latent: &LatentAttention) -> Result<(), Refusal> {
    let (head_dim, rotary) = (config.head_dim, latent.rotary_dim);
    let (most, most_values) = MAX_LATENT;
    let fits = head_dim <= most
        && latent.rank <= most_values
        && config.n_heads <= MAX_EXPERTS as usize
        && config.n_kv_heads == 1
        && [head_dim, rotary].iter().all(|size| size.is_multiple_of(8))
        && (config.n_heads * latent.value_dim).is_multiple_of(4);
    if fits {
        return Ok(());
    }
    Err(Refusal::Unsupported(format!(
        "its latent attention has {} heads, latents of {} and {rotary} rotated values, and the GPU kernels take \
         up to {MAX_EXPERTS} heads, latents up to {most_values}, keys up to {most} and multiples of 8",
        config.n_heads, latent.rank
    )))
}

/// Form of a mixture that no kernel supports.
fn unsupported_experts(experts: &Experts) -> Option<String> {
    let Experts { count, used, .. } = *experts;
    (count > MAX_EXPERTS as usize || used > MAX_USED_EXPERTS as usize)
        .then(|| format!("{used} of {count} experts, more than {MAX_USED_EXPERTS} of {MAX_EXPERTS}"))
}

/// The first size of a mixer that the kernels do not take.
fn unsupported_states(recurrent: &Recurrent) -> Option<String> {
    let sizes: &[(&str, usize)] = match &recurrent.mixer {
        RecurrentMixer::DeltaNet(net) => {
            &[("keys of layers with a state", net.key_dim), ("values of layers with a state", net.value_dim)]
        }
        RecurrentMixer::Mamba2(mamba) => &[
            ("heads of layers with a state", mamba.head_dim),
            ("groups of layers with a state", mamba.inner_dim() / mamba.groups),
            ("states", mamba.state_dim),
        ],
        RecurrentMixer::ShortConvolution(convolution) => &[("convolutions", convolution.channels)],
        other => return Some(format!("layers with a state {other:?}")),
    };
    let odd = sizes.iter().find(|(_, size)| !size.is_multiple_of(4));
    odd.map(|(name, size)| format!("{name} of width {size}, which is no multiple of 4"))
}

/// Context length: `wanted`, or at most `usual`.
pub(super) fn context(config: &ModelConfig, wanted: Option<usize>, usual: usize) -> Result<usize, Refusal> {
    let model_context = config.context_length;
    match wanted {
        Some(wanted) if wanted > model_context => Err(Refusal::Context { wanted, model_context }),
        Some(wanted) => Ok(wanted),
        None => Ok(usual.min(model_context)),
    }
}

#[cfg(test)]
mod tests {
    use ruvllm_models::HfFolder;
    use ruvllm_testkit::model_data;

    use super::*;

    #[track_caller]
    fn assert_refused(part: &str, change: impl FnOnce(&mut ModelConfig)) {
        let folder = HfFolder::open(model_data("forms/qwen3moe")).expect("a folder");
        let mut config = ModelConfig::from_checkpoint(&folder).expect("a configuration");
        check(&config).expect("it is supported");
        change(&mut config);
        let message = check(&config).expect_err(part).to_string();
        assert!(message.contains(part) && message.contains("CPU only"), "{message}");
    }

    /// Heads that are filled up, up to the sizes that norms and gates of heads take.
    #[test]
    fn sizes_of_heads_are_multiples_of_what_their_kernels_take() {
        let folder = HfFolder::open(model_data("forms/granitehybrid")).expect("a folder");
        let config = ModelConfig::from_checkpoint(&folder).expect("a configuration");
        assert_eq!(config.head_dim, 10);
        let with = |head_dim: usize, norms: bool, gates: bool| {
            let mut config = config.clone();
            config.head_dim = head_dim;
            (config.decoder.head_norms, config.decoder.gated_attention) = (norms, gates);
            check(&config).err().map(|refusal| refusal.to_string())
        };
        for (head_dim, norms, gates) in [(10, false, false), (100, true, false), (80, true, true)] {
            assert_eq!(with(head_dim, norms, gates), None);
        }
        let refused = [
            (514, false, false, "514 values, and the GPU kernels take multiples of 2 up to 512"),
            (10, true, false, "10 values and norms, and the GPU kernels take multiples of 4"),
            (100, false, true, "100 values and gates, and the GPU kernels take multiples of 8"),
        ];
        for (head_dim, norms, gates, part) in refused {
            let message = with(head_dim, norms, gates).expect("a refusal");
            assert!(message.contains(part), "{message}");
        }
    }

    fn experts(config: &mut ModelConfig) -> &mut Experts {
        config.decoder.experts.as_mut().expect("a mixture")
    }

    #[test]
    fn forms_of_mixtures_without_kernels_are_refused_by_name() {
        assert_refused("3 of 1025 experts", |config| experts(config).count = 1025);
        assert_refused("33 of 64 experts", |config| {
            (experts(config).count, experts(config).used) = (64, 33);
        });
        assert_refused("a factor of what layers add", |config| {
            (config.decoder.residual_scale, config.decoder.input_norms) = (0.5, false);
        });
        assert_refused("without norms of queries and keys", |config| {
            (config.decoder.layers.value_norms, config.decoder.head_norms) = (true, false);
        });
        assert_refused("values that are keys", |config| config.decoder.layers.optional_values = true);
        assert_refused("shared keys beside gated attention", |config| {
            config.decoder.gated_attention = true;
            config.decoder.layers.kv_sources = vec![0; config.n_layers];
        });
        assert_refused("more than 127 layers", |config| {
            (config.decoder.layers.input_dim, config.n_layers) = (8, 128);
        });
        assert_refused("with layer norms", |config| {
            (config.decoder.residual_scale, config.decoder.layer_norms) = (0.5, true);
        });
    }
}
