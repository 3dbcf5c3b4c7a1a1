//! Rotary positions of a `config.json`, in the forms of transformers 4 (`rope_theta`,
//! `rope_scaling`) and 5 (`rope_parameters`, with one object per kind of layer where kinds differ).

use std::f32::consts::PI;

use gguf_rs_lite::Array;
use ruvllm_kernels::rope::yarn_attention_factor;
use serde_json::Value;

use super::family::Decoder;
use super::fields::Fields;
use super::keys::Keys;
use super::sizes::Sizes;
use crate::config::keys::{Limits, MAX_BASE, short};
use crate::config::rope::{DIVISORS, FACTORS, FREQUENCY_DIVISORS, MAGNITUDES, TURNS};
use crate::error::Result;
use crate::family::YARN_TRUNCATE;

/// Largest context that a file may name; positions are counted in 32 bits.
const MAX_CONTEXT: usize = u32::MAX as usize;

/// Rotation of a share of each head at the speeds of a head that rotates as a whole.
const PROPORTIONAL: &str = "proportional";

/// A tensor that follows from the hyperparameters: a name and a vector of f32.
pub(super) struct Generated {
    pub(super) name: &'static str,
    pub(super) values: Vec<f32>,
}

/// The fields of one model, wherever they stand.
struct Rope<'a> {
    /// `rope_parameters` or `rope_scaling`, or the file itself when there is neither.
    scaling: Fields<'a>,
    /// Name of the scaling.
    kind: Option<&'a str>,
    base: Option<f64>,
    /// Of layers with a window, where that is another one.
    window_base: Option<f64>,
    original_context: Option<usize>,
    /// Share of a head that is rotated.
    partial: f64,
}

impl<'a> Rope<'a> {
    fn read(config: &Fields<'a>, usual_share: f64) -> Result<Self> {
        let outer = match config.object("rope_parameters")? {
            Some(parameters) => Some(parameters),
            None => config.object("rope_scaling")?,
        };
        let nested = |key: &str| outer.as_ref().map_or(Ok(None), |outer| outer.object(key));
        let (global, window) = (nested("full_attention")?, nested("sliding_attention")?);
        let window_base = match window {
            Some(window) => read_base(&window, "rope_theta")?,
            None => read_base(config, "rope_local_base_freq")?,
        };
        let has_scaling = outer.is_some();
        let scaling = global.or(outer).unwrap_or_else(|| config.clone());
        let kind = match (has_scaling, scaling.text("rope_type")?) {
            (false, _) => None,
            (true, Some(kind)) => Some(kind),
            (true, None) => scaling.text("type")?,
        };
        const ORIGINAL: &str = "original_max_position_embeddings";
        let original_context = match scaling.count(ORIGINAL, 1..=MAX_CONTEXT)? {
            Some(original) => Some(original),
            None => config.count(ORIGINAL, 1..=MAX_CONTEXT)?,
        };
        const PARTIAL: &str = "partial_rotary_factor";
        let partial = match scaling.positive(PARTIAL)? {
            Some(partial) => partial,
            None => config.positive(PARTIAL)?.unwrap_or(usual_share),
        };
        if partial > 1.0 {
            return Err(scaling.invalid(PARTIAL, "a number above 0 and at most 1"));
        }
        let base = match read_base(&scaling, "rope_theta")? {
            Some(base) => Some(base),
            None => read_base(config, "rope_theta")?,
        };
        Ok(Self { scaling, kind, base, window_base, original_context, partial })
    }

    /// The factor that every scaling has.
    fn factor(&self) -> Result<f64> {
        let missing = || self.scaling.missing("factor", FACTORS.describe());
        self.scaling.within("factor", FACTORS)?.ok_or_else(missing)
    }
}

/// A rotation base, if the field is there.
fn read_base(fields: &Fields<'_>, key: &str) -> Result<Option<f64>> {
    match fields.real(key)? {
        Some(base) if base as f32 > 1.0 && base as f32 <= MAX_BASE => Ok(Some(base)),
        None => Ok(None),
        Some(_) => Err(fields.invalid(key, format!("a number above 1 and at most {}", short(MAX_BASE)))),
    }
}

/// Writes the keys of rotary positions, and gives the tensors that belong to them.
pub(super) fn write(
    config: &Fields<'_>,
    decoder: &Decoder,
    sizes: &Sizes,
    keys: &mut Keys,
) -> Result<Vec<Generated>> {
    if let Some(switch) = decoder.rotation_switch {
        keys.flag("rope.scaling.finetuned", read_rotation(config, switch)?);
    }
    let rope = Rope::read(config, decoder.partial_rotary)?;
    if decoder.needs_scaling && rope.kind.is_none() {
        let is_nested = decoder.has_layer_kinds || config.get("rope_parameters").is_some();
        let field = if is_nested { "rope_parameters" } else { "rope_scaling" };
        return Err(config.missing(field, "an object with the `rope_type`"));
    }
    let rotary_dim = match &sizes.latent {
        Some(latent) => latent.rotary_dim,
        // Heads rotate as a whole; other dimensions do so at no speed.
        None if decoder.has_layer_kinds => sizes.head_dim,
        None => (sizes.head_dim as f64 * rope.partial) as usize,
    };
    if decoder.writes_rotary_dim || rotary_dim != sizes.head_dim {
        keys.count("rope.dimension_count", rotary_dim);
    }
    if let Some(usual) = decoder.rotary_sections {
        keys.array("rope.dimension_sections", Array::I32(read_sections(&rope.scaling, usual)?));
    }
    let base = rope.base.or(decoder.rope_base);
    write_bases(config, decoder, (base, rope.window_base), keys)?;
    if decoder.has_long_rope {
        keys.count("rope.scaling.original_context_length", rope.original_context.unwrap_or(sizes.context));
    }
    write_temperature(&rope, decoder, sizes, keys)?;
    match rope.kind {
        Some(kind) if decoder.has_long_rope_scales && !["default", "longrope"].contains(&kind) => {
            let key = if rope.scaling.get("rope_type").is_some() { "rope_type" } else { "type" };
            Err(rope.scaling.invalid(key, "`default` or `longrope`"))
        }
        Some(PROPORTIONAL) if decoder.has_layer_kinds => proportional_divisors(&rope, sizes.head_dim),
        // The base of `dynamic` grows with texts that are longer than the context, and none is
        // taken.
        None | Some("default" | "dynamic") => Ok(Vec::new()),
        Some("linear") => {
            keys.text("rope.scaling.type", "linear");
            keys.real("rope.scaling.factor", rope.factor()?);
            Ok(Vec::new())
        }
        Some("yarn") if !decoder.has_long_rope => {
            write_yarn(&rope, decoder, sizes, keys).map(|()| Vec::new())
        }
        Some("llama3") => {
            let base = base.unwrap_or(10_000.0) as f32;
            let values = llama3_divisors(&rope, base, rotary_dim)?;
            Ok(vec![Generated { name: FREQUENCY_DIVISORS, values }])
        }
        // The first files have other names for it.
        Some("longrope" | "su" | "yarn") if decoder.has_long_rope => {
            write_longrope(&rope, decoder, (sizes, rotary_dim), keys)
        }
        Some(_) => {
            let key = if rope.scaling.get("rope_type").is_some() { "rope_type" } else { "type" };
            let expected = match decoder.has_long_rope {
                true => "`default`, `dynamic`, `linear`, `llama3` or `longrope`",
                false => "`default`, `dynamic`, `linear`, `yarn` or `llama3`",
            };
            Err(rope.scaling.invalid(key, expected))
        }
    }
}

/// Writes the factor of queries that grows with their position.
fn write_temperature(rope: &Rope<'_>, decoder: &Decoder, sizes: &Sizes, keys: &mut Keys) -> Result<()> {
    const TEMPERATURE: &str = "llama_4_scaling_beta";
    match rope.scaling.within(TEMPERATURE, MAGNITUDES)? {
        Some(scale) if decoder.is_mistral3 => {
            keys.real("attention.temperature_scale", scale);
            if decoder.is_latent {
                // llama.cpp stops at a file of Mistral 4 without it.
                keys.count("attention.temperature_length", rope.original_context.unwrap_or(sizes.context));
            }
            Ok(())
        }
        Some(_) => Err(rope.scaling.invalid(TEMPERATURE, "absent: only Mistral 3 has it")),
        None => Ok(()),
    }
}

/// Writes the base of the rotary embedding, and that of layers with a window.
fn write_bases(
    config: &Fields<'_>,
    decoder: &Decoder,
    (base, window_base): (Option<f64>, Option<f64>),
    keys: &mut Keys,
) -> Result<()> {
    if let Some(base) = base {
        keys.real("rope.freq_base", base);
    }
    if decoder.window_rope_base.is_none()
        && let (Some(window), Some(base)) = (window_base, base)
        && window != base
    {
        return Err(config.invalid("rope_parameters", "one rope_theta for all layers of this family"));
    }
    if let Some(base) = decoder.window_rope_base {
        keys.real("rope.freq_base_swa", window_base.unwrap_or(base));
    }
    Ok(())
}

/// True if layers rotate queries and keys.
fn read_rotation(config: &Fields<'_>, switch: &str) -> Result<bool> {
    match config.text(switch)? {
        Some("rope") => Ok(true),
        None | Some("nope") => Ok(false),
        Some(_) => Err(config.invalid(switch, "`rope`, or `nope` or null for none")),
    }
}

/// Divisors of which those of the pairs that are not rotated are as large as readers take.
fn proportional_divisors(rope: &Rope<'_>, head_dim: usize) -> Result<Vec<Generated>> {
    if rope.scaling.real("factor")?.is_some_and(|factor| factor != 1.0) {
        return Err(rope.scaling.invalid("factor", "1: readers of GGUF know no other"));
    }
    let n_rotated = (rope.partial * head_dim as f64) as usize / 2;
    let divisor = |pair: usize| if pair < n_rotated { 1.0 } else { DIVISORS.most };
    let values = (0..head_dim / 2).map(divisor).collect();
    Ok(vec![Generated { name: FREQUENCY_DIVISORS, values }])
}

/// Pairs of the parts of rotary positions, four of them: those of the file, or the usual ones. The
/// parts of a text's positions are equal, so nothing here depends on them.
fn read_sections(fields: &Fields<'_>, usual: [i32; 4]) -> Result<Vec<i32>> {
    const SECTIONS: &str = "mrope_section";
    let Some(listed) = fields.list(SECTIONS)? else { return Ok(usual.to_vec()) };
    let pairs = |value: &Value| value.as_u64().and_then(|pairs| i32::try_from(pairs).ok());
    let sections: Option<Vec<i32>> = listed.iter().map(pairs).collect();
    match sections.filter(|sections| sections.len() <= usual.len()) {
        Some(mut sections) => {
            sections.resize(usual.len(), 0);
            Ok(sections)
        }
        None => Err(fields.invalid(SECTIONS, "at most four whole numbers")),
    }
}

/// `YaRN` (arXiv 2309.00071).
fn write_yarn(rope: &Rope<'_>, decoder: &Decoder, sizes: &Sizes, keys: &mut Keys) -> Result<()> {
    let fields = &rope.scaling;
    let factor = rope.factor()?;
    keys.text("rope.scaling.type", "yarn");
    keys.real("rope.scaling.factor", factor);
    keys.count("rope.scaling.original_context_length", rope.original_context.unwrap_or(sizes.context));
    if let Some(original) = rope.original_context {
        // Who adds the scaling to a file by hand often leaves `max_position_embeddings` as it is.
        let scaled = (original as f64 * factor) as usize;
        keys.count("context_length", sizes.context.max(scaled));
    }
    let truncate = fields.flag("truncate")?.unwrap_or(true);
    if truncate != decoder.yarn_truncate {
        // A key that other readers do not have.
        keys.flag(YARN_TRUNCATE, truncate);
    }
    let scales = (fields.within("mscale", MAGNITUDES)?, fields.within("mscale_all_dim", MAGNITUDES)?);
    let given = fields.within("attention_factor", MAGNITUDES)?;
    if let (Some(_), (_, Some(all))) = (&sizes.latent, scales) {
        // A factor of scores, and one of cosines and sines, which readers take as 1 beside it.
        keys.real("rope.scaling.yarn_log_multiplier", 0.1 * all);
        let magnitude = match (given, scales.0) {
            (Some(given), _) => given,
            (None, Some(scale)) => yarn_attention_factor(factor, scale, all),
            (None, None) => yarn_attention_factor(factor, 1.0, 0.0),
        };
        if (magnitude - 1.0).abs() > 1e-6 {
            keys.real("rope.scaling.yarn_attn_factor", magnitude);
        }
        return write_turns(fields, keys);
    }
    match (given, scales) {
        (Some(given), _) => keys.real("rope.scaling.yarn_attn_factor", given),
        // Other readers know this key, and of this architecture only.
        (None, (Some(1.0), Some(all))) if decoder.is_mistral3 => {
            keys.real("rope.scaling.yarn_log_multiplier", all);
        }
        (None, (Some(scale), Some(all))) => {
            keys.real("rope.scaling.yarn_attn_factor", yarn_attention_factor(factor, scale, all));
        }
        _ => {}
    }
    write_turns(fields, keys)
}

/// Turns over the original context at which the blend of frequencies begins and ends.
fn write_turns(fields: &Fields<'_>, keys: &mut Keys) -> Result<()> {
    for (key, field) in [("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")] {
        if let Some(beta) = fields.within(field, TURNS)? {
            keys.real(&format!("rope.scaling.{key}"), beta);
        }
    }
    Ok(())
}

/// Divisors of Llama 3.1's RoPE frequencies, `[rotary_dim / 2]`: 1 for short wavelengths, the
/// factor for long ones, and a blend between. In f32 throughout, as the model's own code computes
/// it.
fn llama3_divisors(rope: &Rope<'_>, base: f32, rotary_dim: usize) -> Result<Vec<f32>> {
    let fields = &rope.scaling;
    let real = |key: &str, limits: Limits, default: f64| {
        fields.within(key, limits).map(|value| value.unwrap_or(default) as f32)
    };
    let factor = real("factor", FACTORS, 8.0)?;
    let (low, high) = (real("low_freq_factor", TURNS, 1.0)?, real("high_freq_factor", TURNS, 4.0)?);
    if low > high {
        return Err(fields.invalid("low_freq_factor", "a number up to high_freq_factor"));
    }
    let original = rope.original_context.unwrap_or(8192) as f32;
    let divisor = |pair: usize| {
        let frequency = 1.0 / base.powf((2 * pair) as f32 / rotary_dim as f32);
        let wavelength = 2.0 * PI / frequency;
        if wavelength < original / high {
            1.0
        } else if wavelength > original / low || low == high {
            // Llama 4 has no blend.
            factor
        } else {
            let smooth = (original / wavelength - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    Ok((0..rotary_dim / 2).map(divisor).collect())
}

/// The factor of cosines and sines that `LongRoPE` names, one for short and long sequences.
fn read_long_rope_scale(fields: &Fields<'_>) -> Result<f64> {
    const LONG: &str = "long_mscale";
    let read = |key: &str| {
        let missing = || fields.missing(key, MAGNITUDES.describe());
        fields.within(key, MAGNITUDES)?.ok_or_else(missing)
    };
    let (short, long) = (read("short_mscale")?, read(LONG)?);
    if short == long { Ok(short) } else { Err(fields.invalid(LONG, format!("{short}, the short_mscale"))) }
}

/// `LongRoPE` (arXiv 2402.13753): one list of divisors for short sequences and one for long ones.
fn write_longrope(
    rope: &Rope<'_>,
    decoder: &Decoder,
    (sizes, rotary_dim): (&Sizes, usize),
    keys: &mut Keys,
) -> Result<Vec<Generated>> {
    let fields = &rope.scaling;
    let original = rope.original_context.unwrap_or(sizes.context);
    let scale = sizes.context as f64 / original as f64;
    let usual = if scale > 1.0 { (1.0 + scale.ln() / (original as f64).ln()).sqrt() } else { 1.0 };
    let attention_factor = match decoder.has_long_rope_scales {
        true => read_long_rope_scale(fields)?,
        false => fields.within("attention_factor", MAGNITUDES)?.unwrap_or(usual),
    };
    if !attention_factor.is_finite() {
        return Err(fields.missing("original_max_position_embeddings", "a whole number above 1"));
    }
    keys.real("rope.scaling.attn_factor", attention_factor);
    let factors = |field: &'static str, name| {
        let numbers = rotary_dim / 2;
        let expected = || format!("{numbers} numbers, one per rotated pair, each {}", DIVISORS.describe());
        let list = fields.list(field)?.ok_or_else(|| fields.missing(field, expected()))?;
        let values: Vec<f32> = list.iter().filter_map(Value::as_f64).map(|value| value as f32).collect();
        let is_valid = list.len() == rotary_dim / 2
            && values.len() == list.len()
            && values.iter().all(|&value| DIVISORS.allows(value));
        if is_valid { Ok(Generated { name, values }) } else { Err(fields.invalid(field, expected())) }
    };
    Ok(vec![
        factors("long_factor", "rope_factors_long.weight")?,
        factors("short_factor", "rope_factors_short.weight")?,
    ])
}
