//! Rotary position parameters from GGUF metadata and the optional `rope_freqs.weight` tensor.

use gguf_rs_lite::Gguf;
use ruvllm_kernels::{RopeConfig, RopeScaling, yarn_attention_factor};

use super::keys::{Keys, Real};
use crate::error::{Error, Result};
use crate::weights::read_vector;

/// Rotation base of models that do not name one.
const DEFAULT_BASE: f32 = 10_000.0;

/// Largest context that a file may name; positions are counted in 32 bits.
const MAX_ORIGINAL_CONTEXT: usize = u32::MAX as usize;

/// Name of the tensor with one divisor per rotated pair (Llama 3.1 and later).
pub(crate) const FREQUENCY_DIVISORS: &str = "rope_freqs.weight";

/// Reads base, rotary dimension, scaling and frequency divisors.
pub(crate) fn read_rope(
    keys: &Keys<'_>,
    gguf: &Gguf,
    head_dim: usize,
    context_length: usize,
) -> Result<RopeConfig> {
    let rotary_dim = keys.count("rope.dimension_count", 1..=head_dim)?.unwrap_or(head_dim);
    if rotary_dim % 2 != 0 {
        return Err(keys.invalid("rope.dimension_count", rotary_dim, "an even number"));
    }
    let base = keys.real("rope.freq_base", Real::AboveOne)?.unwrap_or(DEFAULT_BASE);
    let scaling = read_scaling(keys, context_length)?;
    let frequency_divisors = read_divisors(gguf, rotary_dim / 2)?;
    Ok(RopeConfig { base: base.into(), rotary_dim, scaling, frequency_divisors })
}

fn read_scaling(keys: &Keys<'_>, context_length: usize) -> Result<RopeScaling> {
    // Files of 2023 have `rope.scale_linear` and no type.
    let legacy = keys.real("rope.scale_linear", Real::Positive)?;
    let factor = keys.real("rope.scaling.factor", Real::NotNegative)?.filter(|&factor| factor > 0.0);
    let factor = factor.or(legacy).unwrap_or(1.0);
    match keys.text("rope.scaling.type")? {
        None if factor == 1.0 => Ok(RopeScaling::None),
        None | Some("linear") => Ok(RopeScaling::Linear { factor: factor.into() }),
        Some("none") => Ok(RopeScaling::None),
        Some("yarn") => read_yarn(keys, factor, context_length),
        Some(other) => {
            Err(keys.invalid("rope.scaling.type", format!("`{other}`"), "`none`, `linear` or `yarn`"))
        }
    }
}

/// `YaRN` (arXiv 2309.00071). The files' attention factors are multipliers of the usual
/// `0.1 ln(factor) + 1`.
fn read_yarn(keys: &Keys<'_>, factor: f32, context_length: usize) -> Result<RopeScaling> {
    let original_context = keys
        .count("rope.scaling.original_context_length", 1..=MAX_ORIGINAL_CONTEXT)?
        .unwrap_or(context_length);
    // A negative mix means "not set"; only the full mix of the paper is implemented.
    if let Some(mix) = keys.real("rope.scaling.yarn_ext_factor", Real::Finite)?
        && mix >= 0.0
        && mix != 1.0
    {
        return Err(keys.invalid("rope.scaling.yarn_ext_factor", mix, "1, or a negative number for not set"));
    }
    let multiplier = keys.real("rope.scaling.attn_factor", Real::Positive)?.unwrap_or(1.0)
        * keys.real("rope.scaling.yarn_attn_factor", Real::Positive)?.unwrap_or(1.0);
    let usual = yarn_attention_factor(factor.into(), 1.0, 0.0);
    Ok(RopeScaling::Yarn {
        factor: factor.into(),
        original_context,
        beta_fast: keys.real("rope.scaling.yarn_beta_fast", Real::Positive)?.unwrap_or(32.0).into(),
        beta_slow: keys.real("rope.scaling.yarn_beta_slow", Real::Positive)?.unwrap_or(1.0).into(),
        attention_factor: Some(usual * f64::from(multiplier)),
        truncate: true,
    })
}

fn read_divisors(gguf: &Gguf, pairs: usize) -> Result<Option<Vec<f32>>> {
    if gguf.tensor(FREQUENCY_DIVISORS).is_none() {
        return Ok(None);
    }
    let divisors = read_vector(gguf, FREQUENCY_DIVISORS, pairs)?;
    match divisors.iter().position(|&divisor| !(divisor.is_finite() && divisor > 0.0)) {
        None => Ok(Some(divisors)),
        Some(index) => Err(Error::TensorValue {
            name: FREQUENCY_DIVISORS.into(),
            index,
            found: divisors[index],
            expected: "a finite divisor above 0",
        }),
    }
}
