//! Sliding windows of a `config.json`: how far back layers see, and which of them.

use serde_json::Value;

use super::config::{Keys, MAX_LAYERS, MAX_POSITIONS, Sizes};
use super::family::Kind;
use super::fields::Fields;
use crate::error::Result;

const LENGTH: &str = "sliding_window";
const LAYER_TYPES: &str = "layer_types";

/// The length where a file does not name it.
const USUAL_LENGTH: usize = 4096;
/// The first layer of Qwen with a window, where a file does not name it.
const USUAL_FIRST: usize = 28;

/// Which layers have a window.
#[derive(Clone, Copy)]
enum Rule {
    None,
    All,
    /// This one and those behind it.
    From(usize),
    /// All but the last of every so many.
    ButEvery(usize),
}

impl Rule {
    const GEMMA2: Self = Self::ButEvery(2);
    const GEMMA3: Self = Self::ButEvery(6);

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
pub(super) fn write(config: &Fields<'_>, kind: Kind, sizes: &Sizes, keys: &mut Keys) -> Result<()> {
    let length = read_length(config, kind)?;
    let windowed = read_layers(config, kind, sizes, length)?;
    let guessed = match kind {
        Kind::Gemma2 => Rule::GEMMA2,
        Kind::Gemma3 => Rule::GEMMA3,
        _ => Rule::All,
    };
    // These say it also if it is 0: that tells Phi-4 from the older models, and readers have another default for Gemma.
    let always = matches!(kind, Kind::Phi3 | Kind::Gemma2 | Kind::Gemma3);
    let length = length.filter(|_| windowed.contains(&true)).unwrap_or(0);
    if length > 0 || always {
        keys.count("attention.sliding_window", length);
    }
    if length > 0 && windowed != guessed.layers(sizes.n_layers) {
        keys.flags("attention.sliding_window_pattern", windowed);
    }
    Ok(())
}

/// How many tokens a layer with a window sees; `None` if no layer has one. Left out is another thing than `null`.
fn read_length(config: &Fields<'_>, kind: Kind) -> Result<Option<usize>> {
    let usual = match kind {
        Kind::Llama | Kind::Gemma => return Ok(None),
        Kind::Qwen if config.flag("use_sliding_window")? != Some(true) => return Ok(None),
        Kind::Phi3 => None,
        Kind::Mistral3 if config.text("model_type")? == Some("ministral3") => None,
        Kind::Qwen | Kind::Mistral | Kind::Mistral3 | Kind::Gemma2 | Kind::Gemma3 => Some(USUAL_LENGTH),
    };
    let length = config.count(LENGTH, 0..=MAX_POSITIONS)?;
    Ok(length.or(usual.filter(|_| config.is_absent(LENGTH))).filter(|&length| length > 0))
}

/// Whether each layer has a window: as the family has it, or as the file lists it, if the family leaves the choice.
fn read_layers(config: &Fields<'_>, kind: Kind, sizes: &Sizes, length: Option<usize>) -> Result<Vec<bool>> {
    let rule = match kind {
        _ if length.is_none() => Rule::None,
        Kind::Llama | Kind::Gemma => Rule::None,
        Kind::Mistral | Kind::Mistral3 | Kind::Phi3 => Rule::All,
        Kind::Qwen => Rule::From(config.count("max_window_layers", 0..=MAX_LAYERS)?.unwrap_or(USUAL_FIRST)),
        Kind::Gemma2 => Rule::GEMMA2,
        Kind::Gemma3 => {
            let mut pattern = None;
            for key in ["sliding_window_pattern", "_sliding_window_pattern"] {
                pattern = pattern.or(config.count(key, 1..=MAX_LAYERS)?);
            }
            pattern.map_or(Rule::GEMMA3, Rule::ButEvery)
        }
    };
    let by_rule = rule.layers(sizes.n_layers);
    let Some(types) = config.list(LAYER_TYPES)? else { return Ok(by_rule) };
    let is_windowed = |name: &Value| match name.as_str() {
        Some("full_attention") => Some(false),
        Some("sliding_attention") => Some(true),
        _ => None,
    };
    let listed: Option<Vec<bool>> = types.iter().map(is_windowed).collect();
    let has_choice = length.is_some() && matches!(kind, Kind::Qwen | Kind::Gemma2 | Kind::Gemma3);
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
