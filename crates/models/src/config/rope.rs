//! Rotary position parameters from GGUF metadata and the optional tensors of frequency divisors.

use ruvllm_kernels::rope::{RopeConfig, RopeFrequencies, RopeScaling, yarn_attention_factor};

use super::keys::{Keys, Limits, MAX_BASE, Real};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::family::{DecoderSpec, LocalRopes};
use crate::weights::read_vector;

/// Rotation base of models that do not name one.
const DEFAULT_BASE: f32 = 10_000.0;

/// Factors by which a context is stretched; published models have 1 to 128.
pub(crate) const FACTORS: Limits = Limits { least: 1e-3, most: 1e6 };

/// Divisors of single frequencies. Small ones make angles of which no digit is exact; large ones,
/// which published models have for pairs that are not rotated, only make them small.
pub(crate) const DIVISORS: Limits = Limits { least: 1e-3, most: 1e30 };

/// Limits of attention magnitudes (`YaRN` factors of cosines and sines); published models have 0.7
/// to 2.
pub(crate) const MAGNITUDES: Limits = Limits { least: 1e-3, most: 1e3 };

/// Turns over the original context at which a blend of frequencies begins and ends; published
/// models have 1 to 32.
pub(crate) const TURNS: Limits = Limits { least: 1e-3, most: 1e6 };

/// Multipliers of logarithms of which factors of cosines and sines are computed; 0 is none.
const LOG_MULTIPLIERS: Limits = Limits { least: 0.0, most: 1e3 };

/// Largest context that a file may name; positions are counted in 32 bits.
const MAX_ORIGINAL_CONTEXT: usize = u32::MAX as usize;

/// Name of the tensor with one divisor per rotated pair (Llama 3.1 and later).
pub(crate) const FREQUENCY_DIVISORS: &str = "rope_freqs.weight";

/// Names of the tensors with the divisors of `LongRoPE` for sequences within the original context
/// and for longer ones.
pub(crate) const SHORT_FACTORS: &str = "rope_factors_short.weight";
pub(crate) const LONG_FACTORS: &str = "rope_factors_long.weight";

/// Reads base, rotary dimension, scaling and frequency divisors.
pub(crate) fn read_rope(
    keys: &Keys<'_>,
    checkpoint: &dyn Checkpoint,
    (head_dim, context_length): (usize, usize),
    decoder: &DecoderSpec,
) -> Result<RopeConfig> {
    let rotary_dim = keys.count("rope.dimension_count", 1..=head_dim)?.unwrap_or(head_dim);
    if rotary_dim % 2 != 0 {
        return Err(keys.invalid("rope.dimension_count", rotary_dim, "an even number"));
    }
    let base = keys.real("rope.freq_base", Real::AboveUpTo(1.0, MAX_BASE))?.unwrap_or(DEFAULT_BASE);
    let frequency_divisors = if checkpoint.tensor(FREQUENCY_DIVISORS).is_some() {
        Some(read_divisors(checkpoint, FREQUENCY_DIVISORS, rotary_dim / 2)?)
    } else {
        None
    };
    let long_rope = [SHORT_FACTORS, LONG_FACTORS].iter().any(|name| checkpoint.tensor(name).is_some());
    let scaling = if long_rope {
        read_long_rope(keys, checkpoint, rotary_dim / 2, context_length)?
    } else {
        read_scaling(keys, context_length, decoder)?
    };
    if decoder.unit_head_norms && !matches!(scaling, RopeScaling::None | RopeScaling::Linear { .. }) {
        // Its factor of cosines and sines would be undone by norms behind RoPE.
        let found = keys.text("rope.scaling.type")?.unwrap_or("longrope");
        let expected = "`none` or `linear` for heads that are normed behind RoPE";
        return Err(keys.invalid("rope.scaling.type", format!("`{found}`"), expected));
    }
    Ok(RopeConfig { base: base.into(), rotary_dim, scaling, frequency_divisors })
}

/// RoPE parameters of some of a model's layers.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalRope {
    /// The parameters; `None`: queries and keys of these layers are not rotated (`NoPE`).
    pub rope: Option<RopeConfig>,
    /// True for layers that have them, `[n_layers]`.
    pub layers: Vec<bool>,
}

impl LocalRope {
    /// Frequencies of the pairs, as [`RopeConfig::frequencies`]. `usual` are those of the other
    /// layers; where nothing is rotated they are zeros, whose cosines and sines change no bit.
    ///
    /// # Errors
    /// [`Error::Kernels`] for parameters without meaning.
    pub(crate) fn frequencies(
        &self,
        sequence_length: usize,
        usual: &RopeFrequencies,
    ) -> Result<RopeFrequencies> {
        match &self.rope {
            Some(rope) => Ok(rope.frequencies(sequence_length)?),
            None => Ok(RopeFrequencies { inverse: vec![0.0; usual.inverse.len()], magnitude: 1.0 }),
        }
    }
}

/// Reads the parameters of layers that differ from the others, which have `rope`: another base and
/// no scaling, no scaling, or no rotation at all. `None` if all layers are alike.
pub(crate) fn read_local_rope(
    keys: &Keys<'_>,
    rope: &RopeConfig,
    rule: LocalRopes,
    (decoder, n_layers): (&DecoderSpec, usize),
) -> Result<Option<LocalRope>> {
    let windowed = || (0..n_layers).map(|layer| decoder.window.of_layer(layer).is_some());
    let rotary_dim = match &decoder.layers.local_heads {
        Some(local) => read_local_rotary_dim(keys, local.head_dim)?,
        None => rope.rotary_dim,
    };
    let unscaled = |base: f64| Some(RopeConfig::new(base, rotary_dim));
    let named = keys.real("rope.freq_base_swa", Real::AboveUpTo(1.0, MAX_BASE))?;
    let (rope, layers): (_, Vec<bool>) = match (rule, named) {
        (LocalRopes::Still, _) => (None, vec![true; n_layers]),
        (LocalRopes::StillEvery(period), _) => {
            (None, (0..n_layers).map(|layer| (layer + 1).is_multiple_of(period)).collect())
        }
        (LocalRopes::StillWithoutWindow, _) if windowed().any(|has_window| has_window) => {
            (None, windowed().map(|has_window| !has_window).collect())
        }
        (LocalRopes::Windowed { .. } | LocalRopes::UnscaledWindows | LocalRopes::None, Some(base)) => {
            (unscaled(base.into()), windowed().collect())
        }
        (LocalRopes::Windowed { base }, None) => (unscaled(base.into()), windowed().collect()),
        (LocalRopes::UnscaledWindows, None) => (unscaled(rope.base), windowed().collect()),
        (LocalRopes::StillIfFalse(key), _) if keys.flag(key)? == Some(false) => (None, vec![true; n_layers]),
        (LocalRopes::StillWithoutWindow | LocalRopes::StillIfFalse(_) | LocalRopes::None, _) => {
            return Ok(None);
        }
    };
    Ok(layers.contains(&true).then_some(LocalRope { rope, layers }))
}

/// Rotated dimensions of heads that have a width of their own.
fn read_local_rotary_dim(keys: &Keys<'_>, head_dim: usize) -> Result<usize> {
    const KEY: &str = "rope.dimension_count_swa";
    match keys.count(KEY, 1..=head_dim)?.unwrap_or(head_dim) {
        odd if odd % 2 != 0 => Err(keys.invalid(KEY, odd, "an even number")),
        rotary_dim => Ok(rotary_dim),
    }
}

fn read_scaling(keys: &Keys<'_>, context_length: usize, decoder: &DecoderSpec) -> Result<RopeScaling> {
    let factor = read_factor(keys)?;
    match keys.text("rope.scaling.type")? {
        None if factor == 1.0 => Ok(RopeScaling::None),
        None | Some("linear") => Ok(RopeScaling::Linear { factor: factor.into() }),
        Some("none") => Ok(RopeScaling::None),
        Some("yarn") => read_yarn(keys, factor, context_length, decoder),
        Some("longrope") => Err(Error::MissingTensor { name: SHORT_FACTORS.into() }),
        Some(other) => Err(keys.invalid(
            "rope.scaling.type",
            format!("`{other}`"),
            "`none`, `linear`, `yarn` or `longrope`",
        )),
    }
}

/// Context extension factor: context length by training context length.
fn read_factor(keys: &Keys<'_>) -> Result<f32> {
    // Files of 2023 have `rope.scale_linear` and no type.
    let legacy = keys.real("rope.scale_linear", Real::Within(FACTORS))?;
    let factor = keys.real("rope.scaling.factor", Real::Within(FACTORS))?;
    Ok(factor.or(legacy).unwrap_or(1.0))
}

/// `LongRoPE` (arXiv 2402.13753). Files may leave its name out and have the divisors alone.
fn read_long_rope(
    keys: &Keys<'_>,
    checkpoint: &dyn Checkpoint,
    pairs: usize,
    context_length: usize,
) -> Result<RopeScaling> {
    if let Some(other) = keys.text("rope.scaling.type")?.filter(|&name| name != "longrope") {
        let expected = format!("`longrope` beside the tensor `{SHORT_FACTORS}` or `{LONG_FACTORS}`");
        return Err(keys.invalid("rope.scaling.type", format!("`{other}`"), expected));
    }
    let factor = read_factor(keys)?;
    if factor != 1.0 {
        return Err(keys.invalid("rope.scaling.factor", factor, "1 where divisors scale the frequencies"));
    }
    let original_context = read_original_context(keys)?.unwrap_or(context_length);
    let read = |name| -> Result<Vec<f64>> {
        Ok(read_divisors(checkpoint, name, pairs)?.into_iter().map(f64::from).collect())
    };
    Ok(RopeScaling::LongRope {
        short_factors: read(SHORT_FACTORS)?,
        long_factors: read(LONG_FACTORS)?,
        original_context,
        max_context: context_length,
        attention_factor: keys.real("rope.scaling.attn_factor", Real::Within(MAGNITUDES))?.map(f64::from),
    })
}

fn read_original_context(keys: &Keys<'_>) -> Result<Option<usize>> {
    keys.count("rope.scaling.original_context_length", 1..=MAX_ORIGINAL_CONTEXT)
}

/// `YaRN` (arXiv 2309.00071). Cosines and sines are multiplied by `0.1 ln(factor) + 1`, or by what
/// converters write down in its place: a factor, or the `m` of a divisor `0.1 m ln(factor) + 1`.
fn read_yarn(
    keys: &Keys<'_>,
    factor: f32,
    context_length: usize,
    decoder: &DecoderSpec,
) -> Result<RopeScaling> {
    let original_context = read_original_context(keys)?.unwrap_or(context_length);
    // A negative mix means "not set"; only the full mix of the paper is implemented.
    if let Some(mix) = keys.real("rope.scaling.yarn_ext_factor", Real::Finite)?
        && mix >= 0.0
        && mix != 1.0
    {
        return Err(keys.invalid("rope.scaling.yarn_ext_factor", mix, "1, or a negative number for not set"));
    }
    let log_multiplier =
        keys.real("rope.scaling.yarn_log_multiplier", Real::Within(LOG_MULTIPLIERS))?.unwrap_or(0.0);
    let attention_factor = match keys.real("rope.scaling.yarn_attn_factor", Real::Within(MAGNITUDES))? {
        Some(named) => named.into(),
        // It multiplies the scores.
        None if decoder.latent.is_some() && log_multiplier > 0.0 => 1.0,
        None => yarn_attention_factor(factor.into(), 1.0, log_multiplier.into()),
    };
    let multiplier = keys.real("rope.scaling.attn_factor", Real::Within(MAGNITUDES))?.unwrap_or(1.0);
    Ok(RopeScaling::Yarn {
        factor: factor.into(),
        original_context,
        beta_fast: keys.real("rope.scaling.yarn_beta_fast", Real::Within(TURNS))?.unwrap_or(32.0).into(),
        beta_slow: keys.real("rope.scaling.yarn_beta_slow", Real::Within(TURNS))?.unwrap_or(1.0).into(),
        attention_factor: Some(attention_factor * f64::from(multiplier)),
        truncate: decoder.yarn_truncate,
    })
}

/// A tensor with a divisor for each pair.
fn read_divisors(checkpoint: &dyn Checkpoint, name: &str, pairs: usize) -> Result<Vec<f32>> {
    let divisors = read_vector(checkpoint, name, pairs)?;
    match divisors.iter().position(|&divisor| !DIVISORS.allows(divisor)) {
        None => Ok(divisors),
        Some(index) => Err(Error::TensorValue {
            name: name.into(),
            index,
            found: divisors[index],
            expected: DIVISORS.describe(),
        }),
    }
}
