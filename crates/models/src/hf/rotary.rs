//! Rotary positions and windows of an encoder's `config.json`.

use serde_json::Value;

use super::fields::Fields;
use super::keys::Keys;
use super::sizes::{MAX_LAYERS, MAX_POSITIONS, Sizes};
use crate::config::keys::{MAX_BASE, short};
use crate::error::Result;

/// Rotary positions of an encoder.
#[derive(Debug)]
pub(super) struct Rotary {
    /// Field of the base in layers that see the whole text, and its usual value.
    pub(super) base: (&'static str, f64),
    /// Field with the number of positions in training, and its usual value: scaling for longer
    /// texts is left out.
    pub(super) trained: Option<(&'static str, usize)>,
    /// `None`: every layer sees the whole text.
    pub(super) windows: Option<Windows>,
    /// Fields that must be false where they are there.
    pub(super) never: &'static [&'static str],
    /// Field with the number of layers from one mixture of experts to the next.
    pub(super) expert_period: Option<&'static str>,
    /// Field with the rotated share of a head, which must be there and 1.
    pub(super) share: Option<&'static str>,
}

/// Layers that see the tokens around each.
#[derive(Debug)]
pub(super) struct Windows {
    /// Field of the base in these layers, and its usual value; `null` is the other base.
    pub(super) base: (&'static str, f64),
    /// Field of the window's length in tokens, and its usual value.
    pub(super) length: (&'static str, usize),
    /// Field of the number of layers from one that sees the whole text to the next, beginning with
    /// the first layer, and its usual value.
    pub(super) period: (&'static str, usize),
}

/// Checks that the model rotates as it is computed here, and writes bases and windows.
pub(super) fn write(config: &Fields<'_>, rotary: &Rotary, sizes: &Sizes, keys: &mut Keys) -> Result<()> {
    for field in rotary.never {
        if config.flag(field)? == Some(true) {
            return Err(config.invalid(field, "false: other forms of the family are not supported"));
        }
    }
    if let Some(field) = rotary.expert_period
        && config.count(field, 0..=MAX_LAYERS)?.is_some_and(|period| period > 0)
    {
        return Err(config.invalid(field, "0: encoders with experts (`nomic-bert-moe`) are not supported"));
    }
    if let Some(field) = rotary.share {
        let expected = "1: heads that rotate as a whole";
        match config.real(field)? {
            Some(1.0) => {}
            Some(_) => return Err(config.invalid(field, expected)),
            None => return Err(config.missing(field, expected)),
        }
    }
    if config.get("rope_scaling").is_some() {
        return Err(config.invalid("rope_scaling", "null: encoders rotate unscaled"));
    }
    let parameters = config.object("rope_parameters")?;
    let nested = |key| parameters.as_ref().map_or(Ok(None), |parameters| parameters.object(key));
    let full = nested("full_attention")?.or_else(|| parameters.clone());
    let base = read_base(config, full.as_ref(), rotary.base)?.unwrap_or(rotary.base.1);
    keys.real("rope.freq_base", base);
    if let Some(windows) = &rotary.windows {
        let of_windows = read_base(config, nested("sliding_attention")?.as_ref(), windows.base)?;
        keys.real("rope.freq_base_swa", of_windows.unwrap_or(base));
        let (length, usual) = windows.length;
        keys.count("attention.sliding_window", config.count(length, 1..=MAX_POSITIONS)?.unwrap_or(usual));
        write_pattern(config, windows, sizes.n_layers, keys)?;
        keys.text("rope.scaling.type", "none");
    }
    Ok(())
}

/// The base in an object of rotary parameters or in a field, or else the usual one; `None` for
/// `null`.
fn read_base(
    config: &Fields<'_>,
    parameters: Option<&Fields<'_>>,
    (field, usual): (&str, f64),
) -> Result<Option<f64>> {
    const TYPE: &str = "rope_type";
    const BASE: &str = "rope_theta";
    let (fields, key) = match parameters {
        Some(parameters) => {
            if parameters.text(TYPE)?.is_some_and(|found| found != "default") {
                return Err(parameters.invalid(TYPE, "`default`: encoders rotate unscaled"));
            }
            (parameters, BASE)
        }
        None => (config, field),
    };
    match fields.real(key)? {
        Some(base) if base as f32 > 1.0 && base as f32 <= MAX_BASE => Ok(Some(base)),
        Some(_) => Err(fields.invalid(key, format!("a number above 1 and at most {}", short(MAX_BASE)))),
        None => Ok(fields.is_absent(key).then_some(usual)),
    }
}

/// Writes which layers have a window: the period, or a list where the layers have none.
fn write_pattern(config: &Fields<'_>, windows: &Windows, n_layers: usize, keys: &mut Keys) -> Result<()> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    const TYPES: &str = "layer_types";
    let (field, usual) = windows.period;
    let period = config.count(field, 1..=MAX_LAYERS)?.unwrap_or(usual);
    let by_period = |period: usize| (0..n_layers).map(move |layer| !layer.is_multiple_of(period));
    let Some(types) = config.list(TYPES)? else {
        keys.count(PATTERN, period);
        return Ok(());
    };
    let is_windowed = |name: &Value| match name.as_str() {
        Some("full_attention") => Some(false),
        Some("sliding_attention") => Some(true),
        _ => None,
    };
    let listed: Option<Vec<bool>> = types.iter().map(is_windowed).collect();
    let Some(listed) = listed.filter(|listed| listed.len() == n_layers) else {
        let expected = format!("`full_attention` or `sliding_attention` for each of {n_layers} layers");
        return Err(config.invalid(TYPES, expected));
    };
    match [period]
        .into_iter()
        .chain(1..=n_layers)
        .find(|&period| by_period(period).eq(listed.iter().copied()))
    {
        Some(period) => keys.count(PATTERN, period),
        None => keys.flags(PATTERN, listed),
    }
    Ok(())
}
