//! Encoders: the architectures that can be loaded, and how their files set the switches.

use gguf_rs_lite::Metadata;

use super::encoder_spec::{EncoderNetwork, EncoderNorms, EncoderSpec, RotaryBases};
use super::read_attention_scale;
use crate::config::keys::{Keys, MAX_BASE, Real};
use crate::error::{Error, Result};

/// Rotation base of files that do not name one.
const USUAL_BASE: f32 = 10_000.0;

/// Largest window that a file may name; positions are counted in 32 bits.
const MAX_WINDOW: usize = u32::MAX as usize;

/// The sizes that switches may depend on.
pub(crate) struct EncoderSizes {
    pub(crate) model_dim: usize,
    pub(crate) n_layers: usize,
    pub(crate) head_dim: usize,
}

/// An architecture.
pub(crate) struct EncoderFamily {
    architecture: &'static str,
    /// Heads may have a width of their own.
    pub(crate) has_head_dim: bool,
    /// Reads the switches.
    pub(crate) spec: fn(&Keys<'_>, &EncoderSizes) -> Result<EncoderSpec>,
}

/// The encoders that can be loaded.
const FAMILIES: &[EncoderFamily] = &[
    EncoderFamily { architecture: "bert", has_head_dim: false, spec: bert },
    EncoderFamily { architecture: "modern-bert", has_head_dim: true, spec: modern_bert },
    EncoderFamily { architecture: "nomic-bert", has_head_dim: true, spec: nomic_bert },
    EncoderFamily { architecture: "gemma-embedding", has_head_dim: true, spec: gemma_embedding },
];

/// The encoder of an architecture name.
pub(crate) fn find_encoder(architecture: &str) -> Result<&'static EncoderFamily> {
    let family = FAMILIES.iter().find(|family| family.architecture == architecture);
    family.ok_or_else(|| Error::UnsupportedArchitecture {
        found: architecture.to_owned(),
        supported: FAMILIES.iter().map(|family| family.architecture).collect::<Vec<_>>().join(", "),
    })
}

/// True if the metadata describe an [`Encoder`](crate::Encoder), which computes embeddings and
/// generates no text.
pub fn is_encoder(metadata: &Metadata) -> bool {
    let architecture = metadata.get_str("general.architecture").ok().flatten();
    architecture.is_some_and(|name| find_encoder(name).is_ok())
}

fn bert(_: &Keys<'_>, sizes: &EncoderSizes) -> Result<EncoderSpec> {
    Ok(EncoderSpec {
        norms: EncoderNorms::Sums,
        rms_norms: false,
        head_norms: false,
        biases: true,
        norm_biases: true,
        joint_projection: false,
        network: EncoderNetwork::Gelu,
        embedding_scale: 1.0,
        attention_scale: (1.0 / (sizes.head_dim as f64).sqrt()) as f32,
        rotary: None,
        reach: vec![None; sizes.n_layers],
        may_rank: true,
        may_project: false,
    })
}

fn nomic_bert(keys: &Keys<'_>, sizes: &EncoderSizes) -> Result<EncoderSpec> {
    Ok(EncoderSpec {
        biases: false,
        joint_projection: true,
        network: EncoderNetwork::SwiGlu,
        rotary: Some(read_bases(keys)?),
        may_rank: false,
        ..bert(keys, sizes)?
    })
}

fn modern_bert(keys: &Keys<'_>, sizes: &EncoderSizes) -> Result<EncoderSpec> {
    let tokens = keys.count(WINDOW, 0..=MAX_WINDOW)?.filter(|&tokens| tokens > 0);
    // The first layer of each period sees the whole text.
    let reach = read_reach(keys, tokens, sizes.n_layers, |layer, period| layer % period == 0, 3)?;
    Ok(EncoderSpec {
        norms: EncoderNorms::Before,
        norm_biases: false,
        network: EncoderNetwork::JointGeGlu,
        reach,
        ..nomic_bert(keys, sizes)?
    })
}

fn gemma_embedding(keys: &Keys<'_>, sizes: &EncoderSizes) -> Result<EncoderSpec> {
    let tokens = keys.require_count(WINDOW, 1..=MAX_WINDOW)?;
    // The last layer of each period sees the whole text.
    let is_full = |layer: usize, period: usize| (layer + 1).is_multiple_of(period);
    Ok(EncoderSpec {
        norms: EncoderNorms::Around,
        rms_norms: true,
        head_norms: true,
        joint_projection: false,
        network: EncoderNetwork::TanhGeGlu,
        embedding_scale: (sizes.model_dim as f32).sqrt(),
        attention_scale: read_attention_scale(keys, sizes.head_dim)?,
        reach: read_reach(keys, Some(tokens), sizes.n_layers, is_full, 6)?,
        may_project: true,
        ..nomic_bert(keys, sizes)?
    })
}

const WINDOW: &str = "attention.sliding_window";

/// Tokens on either side that each layer attends to: half of the window, which has a middle. Layers
/// with a window are listed, or all but those for which `is_full` holds in the file's period.
fn read_reach(
    keys: &Keys<'_>,
    tokens: Option<usize>,
    n_layers: usize,
    is_full: impl Fn(usize, usize) -> bool,
    usual_period: usize,
) -> Result<Vec<Option<usize>>> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    let Some(tokens) = tokens else { return Ok(vec![None; n_layers]) };
    let windowed = if let Some(windowed) = keys.flags(PATTERN, n_layers)? {
        windowed
    } else {
        let period = keys.count(PATTERN, 1..=usize::MAX)?.unwrap_or(usual_period);
        (0..n_layers).map(|layer| !is_full(layer, period)).collect()
    };
    Ok(windowed.into_iter().map(|is_windowed| is_windowed.then_some(tokens / 2)).collect())
}

fn read_bases(keys: &Keys<'_>) -> Result<RotaryBases> {
    const SCALING: &str = "rope.scaling.type";
    if let Some(scaling) = keys.text(SCALING)?.filter(|&scaling| scaling != "none") {
        return Err(keys.invalid(SCALING, format!("`{scaling}`"), "`none`: encoders rotate unscaled"));
    }
    const FACTOR: &str = "rope.scaling.factor";
    if let Some(factor) = keys.real(FACTOR, Real::Finite)?.filter(|&factor| factor != 1.0) {
        return Err(keys.invalid(FACTOR, factor, "1: encoders rotate unscaled"));
    }
    let base = |key| keys.real(key, Real::AboveUpTo(1.0, MAX_BASE));
    let full = base("rope.freq_base")?.unwrap_or(USUAL_BASE);
    Ok(RotaryBases { full, windowed: base("rope.freq_base_swa")?.unwrap_or(USUAL_BASE) })
}
