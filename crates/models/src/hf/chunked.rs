//! Chunked attention of a `config.json` (Llama 4): the length of chunks, and the layers between
//! that see all tokens, do not rotate and scale their queries.

use serde_json::Value;

use super::fields::Fields;
use super::keys::Keys;
use super::sizes::{MAX_LAYERS, MAX_POSITIONS, Sizes};
use crate::error::Result;
use crate::family::llama4::{CHUNK, EXPERTS_WITHOUT_NORMS, PERIOD, TEMPERATURE};

/// Layers that rotate queries and keys; an empty list stands for the rule.
const ROTATED: &str = "no_rope_layers";
const TYPES: &str = "layer_types";

/// Checks what files have no keys for, and writes what readers would not guess.
pub(super) fn write(config: &Fields<'_>, sizes: &Sizes, keys: &mut Keys) -> Result<()> {
    check_norms(config, sizes)?;
    if !read_chunked(config, sizes.n_layers)? {
        // Readers take it that all layers rotate then.
        keys.count("attention.sliding_window", 0);
        return Ok(());
    }
    const LENGTH: &str = "attention_chunk_size";
    let chunk = match config.count(LENGTH, 1..=MAX_POSITIONS)? {
        Some(chunk) => chunk,
        None if config.is_absent(LENGTH) => CHUNK,
        None => return Err(config.invalid(LENGTH, "a whole number: the tokens of a chunk")),
    };
    if chunk != CHUNK {
        keys.count("attention.sliding_window", chunk);
    }
    write_temperature(config, keys)
}

/// True if layers have chunks: all but the last of every [`PERIOD`], which do not rotate. False if
/// all layers rotate and see all tokens.
fn read_chunked(config: &Fields<'_>, n_layers: usize) -> Result<bool> {
    const INTERVAL: &str = "no_rope_layer_interval";
    let by_rule: Vec<bool> = (0..n_layers).map(|layer| !(layer + 1).is_multiple_of(PERIOD)).collect();
    let rotated = match config.list(ROTATED)?.filter(|listed| !listed.is_empty()) {
        Some(listed) => listed.iter().map(|value| value.as_u64() == Some(1)).collect(),
        None if config.count(INTERVAL, 1..=MAX_LAYERS)?.is_some_and(|interval| interval != PERIOD) => {
            return Err(config.invalid(INTERVAL, PERIOD.to_string()));
        }
        None => by_rule.clone(),
    };
    let is_chunk = |kind: &Value| kind.as_str() == Some("chunked_attention");
    let chunked = match config.list(TYPES)? {
        Some(types) => types.iter().map(is_chunk).collect(),
        None => rotated.clone(),
    };
    if rotated == by_rule && chunked == by_rule {
        return Ok(true);
    }
    if rotated == vec![true; n_layers] && chunked == vec![false; n_layers] {
        return Ok(false);
    }
    let is_of_rotation = rotated == by_rule || rotated == vec![true; n_layers];
    let (field, value) = if is_of_rotation { (TYPES, "`full_attention`") } else { (ROTATED, "0") };
    let expected =
        format!("{value} for the last of every {PERIOD} of {n_layers} layers, or the same for all");
    Err(config.invalid(field, expected))
}

/// Norms of queries and keys follow from the number of experts.
fn check_norms(config: &Fields<'_>, sizes: &Sizes) -> Result<()> {
    const NORMS: &str = "use_qk_norm";
    let usual = sizes.experts.is_none_or(|experts| experts.count != EXPERTS_WITHOUT_NORMS);
    if config.flag(NORMS)?.unwrap_or(true) == usual {
        return Ok(());
    }
    let expected = format!("false for {EXPERTS_WITHOUT_NORMS} experts, else true: GGUF has no key for it");
    Err(config.invalid(NORMS, expected))
}

/// The temperature of layers that do not rotate, by keys that other readers know of other
/// architectures.
fn write_temperature(config: &Fields<'_>, keys: &mut Keys) -> Result<()> {
    // Published files have the number 4, and mean true.
    let is_on = match config.get("attn_temperature_tuning") {
        None => true,
        Some(Value::Number(number)) => number.as_f64() != Some(0.0),
        Some(_) => config.flag("attn_temperature_tuning")?.unwrap_or(true),
    };
    let scale = match config.real("attn_scale")? {
        _ if !is_on => 0.0,
        Some(scale) if scale < 0.0 => return Err(config.invalid("attn_scale", "a number, 0 or above")),
        scale => scale.unwrap_or(TEMPERATURE.scale.into()),
    };
    if scale as f32 != TEMPERATURE.scale {
        keys.real("attention.temperature_scale", scale);
    }
    if let Some(every) = config.count("floor_scale", 1..=MAX_POSITIONS)?
        && every != TEMPERATURE.every
    {
        keys.count("attention.temperature_length", every);
    }
    Ok(())
}
