//! Sliding windows of a `config.json`: how far back layers see, and which of them.

use serde_json::Value;

use super::fields::Fields;
use super::keys::Keys;
use super::sizes::{MAX_LAYERS, MAX_POSITIONS, Sizes};
use crate::error::Result;

const LENGTH: &str = "sliding_window";
const LAYER_TYPES: &str = "layer_types";

/// The sliding windows of a family.
#[derive(Debug)]
pub(super) struct Window {
    /// Length in tokens where a file does not name it; `None`: there is no window then.
    pub(super) length: Option<usize>,
    /// A value of `model_type` without that default.
    pub(super) without_default: Option<&'static str>,
    /// The field that must be true for a window.
    pub(super) switch: Option<&'static str>,
    /// Layers with a window where a file does not say.
    pub(super) layers: Rule,
    /// Fields with the number of the rule.
    pub(super) number: &'static [&'static str],
    /// `layer_types` may choose others.
    pub(super) is_chosen: bool,
    /// The length is written also if it is 0: that tells Phi-4 from the older models, and readers
    /// have another default for Gemma.
    pub(super) is_always_written: bool,
}

/// Layers that have a window.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rule {
    None,
    All,
    /// This one and those behind it.
    From(usize),
    /// All but the last of every so many.
    ButEvery(usize),
}

impl Window {
    /// A window of the usual length in each layer.
    pub(super) const EVERY_LAYER: Self = Self {
        length: Some(4096),
        without_default: None,
        switch: None,
        layers: Rule::All,
        number: &[],
        is_chosen: false,
        is_always_written: false,
    };

    /// Window size in tokens; `None` if no layer has a window. An absent field differs from `null`.
    fn read_length(&self, config: &Fields<'_>) -> Result<Option<usize>> {
        if let Some(switch) = self.switch
            && config.flag(switch)? != Some(true)
        {
            return Ok(None);
        }
        let has_default = match self.without_default {
            Some(model_type) => config.text("model_type")? != Some(model_type),
            None => true,
        };
        let default = self.length.filter(|_| has_default && config.is_absent(LENGTH));
        Ok(config.count(LENGTH, 0..=MAX_POSITIONS)?.or(default).filter(|&length| length > 0))
    }

    fn read_rule(&self, config: &Fields<'_>) -> Result<Rule> {
        let read = |least| -> Result<Option<usize>> {
            let mut number = None;
            for key in self.number {
                let read = match config.get(key).and_then(Value::as_str) {
                    Some(letters) => Some(period_of(letters).ok_or_else(|| {
                        config.invalid(key, "a number, or letters such as `LLLG`, the last one `G`")
                    })?),
                    None => config.count(key, least..=MAX_LAYERS)?,
                };
                number = number.or(read);
            }
            Ok(number)
        };
        Ok(match self.layers {
            Rule::From(first) => Rule::From(read(0)?.unwrap_or(first)),
            Rule::ButEvery(period) => Rule::ButEvery(read(1)?.unwrap_or(period)),
            rule => rule,
        })
    }
}

/// Period of a pattern of letters: `L` for layers with a window, and a `G` behind them.
fn period_of(letters: &str) -> Option<usize> {
    let local = letters.strip_suffix('G')?;
    (local.bytes().all(|letter| letter == b'L') && local.len() < MAX_LAYERS).then_some(letters.len())
}

impl Rule {
    fn layers(self, n_layers: usize) -> Vec<bool> {
        let is_windowed = |layer: usize| match self {
            Self::None => false,
            Self::All => true,
            Self::From(first) => layer >= first,
            Self::ButEvery(period) => !(layer + 1).is_multiple_of(period),
        };
        (0..n_layers).map(is_windowed).collect()
    }
}

/// Writes the length of the windows and, where readers would not guess it, which layers have one.
pub(super) fn write(
    config: &Fields<'_>,
    window: Option<&Window>,
    sizes: &Sizes,
    keys: &mut Keys,
) -> Result<()> {
    let length = window.map_or(Ok(None), |window| window.read_length(config))?;
    let windowed = read_layers(config, window.filter(|_| length.is_some()), sizes)?;
    let guessed = match window.map(|window| window.layers) {
        Some(rule @ Rule::ButEvery(_)) => rule,
        _ => Rule::All,
    };
    let length = length.filter(|_| windowed.contains(&true)).unwrap_or(0);
    if length > 0 || window.is_some_and(|window| window.is_always_written) {
        keys.count("attention.sliding_window", length);
    }
    if length > 0 && windowed != guessed.layers(sizes.n_layers) {
        keys.flags("attention.sliding_window_pattern", windowed);
    }
    Ok(())
}

/// Layers with a window, `[n_layers]`.
pub(super) fn read(config: &Fields<'_>, window: Option<&Window>, sizes: &Sizes) -> Result<Vec<bool>> {
    let length = window.map_or(Ok(None), |window| window.read_length(config))?;
    read_layers(config, window.filter(|_| length.is_some()), sizes)
}

/// Reads the windowed layers, `[n_layers]`: by the family's rule, or as the file lists them if the
/// family leaves the choice.
fn read_layers(config: &Fields<'_>, window: Option<&Window>, sizes: &Sizes) -> Result<Vec<bool>> {
    let rule = window.map_or(Ok(Rule::None), |window| window.read_rule(config))?;
    let by_rule = rule.layers(sizes.n_layers);
    let Some(types) = config.list(LAYER_TYPES)? else { return Ok(by_rule) };
    let is_windowed = |name: &Value| match name.as_str() {
        Some("full_attention") => Some(false),
        Some("sliding_attention") => Some(true),
        _ => None,
    };
    let listed: Option<Vec<bool>> = types.iter().map(is_windowed).collect();
    let has_choice = window.is_some_and(|window| window.is_chosen);
    match listed {
        Some(listed) if listed == by_rule || has_choice && listed.len() == sizes.n_layers => Ok(listed),
        _ => {
            let expected = match has_choice {
                true => {
                    format!("`full_attention` or `sliding_attention` for each of {} layers", sizes.n_layers)
                }
                false => format!("that of the family for each of {} layers", sizes.n_layers),
            };
            Err(config.invalid(LAYER_TYPES, expected))
        }
    }
}
