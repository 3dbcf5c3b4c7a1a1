//! Model families as data: the switches of the one decoder block. A new family is a file here that
//! fills a [`DecoderSpec`] from its metadata keys, and a line in [`FAMILIES`]; the forward pass in
//! `decoder` reads the switches and is never copied.

mod activation;
mod deepseek;
mod delta_net;
mod encoder_spec;
mod encoders;
mod exaone;
mod experts;
mod falcon;
mod gemma;
mod glm;
mod gpt_oss;
mod granite;
mod latent;
mod layers;
mod lfm;
mod listed;
mod llama;
pub(crate) mod llama4;
mod mamba;
mod nemotron;
mod olmo;
mod phi;
mod qwen;
mod recurrent;
mod router;
mod spec;
mod streams;
mod temperature;
mod window;

pub use self::activation::Activation;
pub use self::delta_net::DeltaNet;
pub(crate) use self::delta_net::MAX_KEY_DIM;
pub use self::encoder_spec::{EncoderNetwork, EncoderNorms, EncoderSpec, RotaryBases};
pub use self::encoders::is_encoder;
pub(crate) use self::encoders::{EncoderFamily, EncoderSizes, find_encoder};
pub use self::experts::Experts;
pub use self::latent::LatentAttention;
pub(crate) use self::layers::common_kv_heads;
pub use self::layers::{LayerKinds, LayerParts, LocalHeads};
pub(crate) use self::listed::listed;
pub use self::mamba::Mamba2;
pub use self::recurrent::{Recurrent, RecurrentMixer, ShortConvolution};
pub use self::router::{ExpertGroups, Router, Scoring};
pub use self::spec::{DecoderSpec, Projections};
pub(crate) use self::streams::MAX_STREAMS;
pub use self::streams::ResidualStreams;
pub use self::temperature::AttentionTemperature;
pub use self::window::Window;
use crate::config::keys::{Keys, Real};
use crate::error::{Error, Result};

/// Key of a flag: round the ends of `YaRN`'s ramp to whole pairs. Where it is absent, the family
/// decides.
pub(crate) const YARN_TRUNCATE: &str = "rope.scaling.yarn_truncate";

/// The families that can be loaded.
const FAMILIES: &[Family] = &[
    llama::LLAMA,
    llama::MISTRAL3,
    llama::SMOLLM3,
    llama4::LLAMA4,
    qwen::QWEN2,
    qwen::QWEN3,
    qwen::QWEN2_MOE,
    qwen::QWEN3_MOE,
    qwen::QWEN3_NEXT,
    qwen::QWEN35,
    qwen::QWEN35_MOE,
    olmo::OLMO2,
    olmo::OLMOE,
    gpt_oss::GPT_OSS,
    phi::PHI3,
    phi::PHIMOE,
    gemma::GEMMA,
    gemma::GEMMA2,
    gemma::GEMMA3,
    gemma::GEMMA3N,
    gemma::GEMMA4,
    exaone::EXAONE4,
    granite::GRANITE,
    granite::GRANITE_MOE,
    granite::GRANITE_HYBRID,
    nemotron::NEMOTRON_H,
    nemotron::NEMOTRON_H_MOE,
    falcon::FALCON_H1,
    lfm::LFM2,
    deepseek::DEEPSEEK2,
    deepseek::MISTRAL4,
    glm::GLM4,
    glm::GLM4_MOE,
];

/// One model family.
pub(crate) struct Family {
    /// Its value of `general.architecture`, which is also the prefix of its keys.
    architecture: &'static str,
    /// Layers with rotary parameters of their own, unless the file names a base for windowed ones.
    pub(crate) local_rope: LocalRopes,
    /// Reads the switches.
    pub(crate) decoder: fn(&Keys<'_>, &Sizes) -> Result<DecoderSpec>,
}

/// Layers whose rotary embedding is not that of the others.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LocalRopes {
    /// None.
    None,
    /// No layer turns (`NoPE`).
    Still,
    /// Windowed layers turn with this base, unscaled.
    Windowed { base: f32 },
    /// Windowed layers turn unscaled.
    UnscaledWindows,
    /// The last of every so many layers does not turn (`NoPE`).
    StillEvery(usize),
    /// Layers that see all tokens do not turn (`NoPE`) if others have a window.
    StillWithoutWindow,
    /// No layer turns (`NoPE`) if the flag of this key is there and false.
    StillIfFalse(&'static str),
}

/// The sizes that switches may depend on.
pub(crate) struct Sizes {
    pub(crate) model_dim: usize,
    pub(crate) n_layers: usize,
    pub(crate) n_heads: usize,
    /// Key and value heads, `[n_layers]`; 0 for a layer without.
    pub(crate) kv_heads: Vec<usize>,
    pub(crate) head_dim: usize,
}

/// Largest width that a file may name.
const MAX_WIDTH: usize = 1 << 20;

/// The factor of query-key products: the file's, or else `1 / sqrt(width)`.
fn read_attention_scale(keys: &Keys<'_>, width: usize) -> Result<f32> {
    let scale = keys.real("attention.scale", Real::NotNegative)?.filter(|&scale| scale > 0.0);
    Ok(scale.unwrap_or_else(|| (1.0 / (width as f64).sqrt()) as f32))
}

/// A soft cap: the file's, or else the usual one; 0 is none.
fn read_soft_cap(keys: &Keys<'_>, suffix: &str, usual: Option<f32>) -> Result<Option<f32>> {
    Ok(keys.real(suffix, Real::NotNegative)?.or(usual).filter(|&cap| cap > 0.0))
}

/// The family of an architecture name.
pub(crate) fn find(architecture: &str) -> Result<&'static Family> {
    FAMILIES.iter().find(|family| family.architecture == architecture).ok_or_else(|| {
        Error::UnsupportedArchitecture { found: architecture.to_owned(), supported: supported() }
    })
}

/// The architecture names that can be loaded, as [`listed`] lists them.
pub(crate) fn supported() -> String {
    listed(FAMILIES.iter().map(|family| family.architecture))
}
