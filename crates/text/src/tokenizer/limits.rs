//! Limits of a `tokenizer.json`, checked before the library builds anything from it. The library
//! has none, and normalizes the added tokens while reading.

use serde::Deserialize;
use serde_json::Value;

use super::{search::Search, steps::growth};

/// Limit on the steps of normalizer, pre-tokenizer and decoder together. Published: up to 20.
const MOST_STEPS: usize = 64;

/// Limit on the patterns of all steps, and on the bytes of each.
const MOST_PATTERNS: usize = 32;
const LONGEST_PATTERN: usize = 16 << 10;

/// Largest growth factor of a normalizer. Published ones have up to some 1000.
const MOST_GROWTH: usize = 4096;

/// Limit on the bytes of the normalized added tokens.
const MOST_NORMALIZED: usize = 64 << 20;

/// Largest growth factor of a decoder per token.
const MOST_DECODED: usize = 64;

/// Maximum number of characters in a word for `WordPiece`, whose search takes quadratic time.
/// Published ones have 100.
const LONGEST_WORD: u64 = 1000;

/// Parts of a definition that have limits; the vocabulary is skipped.
#[derive(Deserialize)]
struct Definition {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    model: Option<Model>,
}

#[derive(Deserialize)]
struct AddedToken {
    #[serde(default)]
    content: String,
    #[serde(default)]
    normalized: bool,
}

#[derive(Deserialize)]
struct Model {
    max_input_chars_per_word: Option<u64>,
}

/// Rejects a definition beyond the limits.
///
/// # Errors
/// Reason, as a message.
pub(super) fn check(json: &[u8]) -> Result<(), String> {
    let definition: Definition = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let word = definition.model.and_then(|model| model.max_input_chars_per_word).unwrap_or(0);
    if word > LONGEST_WORD {
        return Err(format!("max_input_chars_per_word is {word}, at most {LONGEST_WORD} are supported"));
    }
    check_steps(&[&definition.normalizer, &definition.pre_tokenizer, &definition.decoder])?;
    // Decoders are run by the library, where a failed match silently ends the matches.
    let (mut steps, mut patterns) = (0, Vec::new());
    collect(&definition.decoder, &mut steps, &mut patterns);
    if patterns.iter().any(|pattern| !matches!(Search::new(pattern), Ok(Search::Linear(..)))) {
        return Err("a decoder with look-around or back-references is not supported".to_owned());
    }
    let factor = growth(&definition.normalizer);
    let added = definition.added_tokens.iter().filter(|token| token.normalized);
    let bytes = added.fold(0, |sum: usize, token| sum.saturating_add(token.content.len()));
    if factor > MOST_GROWTH || bytes.saturating_mul(factor) > MOST_NORMALIZED {
        return Err(format!(
            "the normalizer can make texts {factor} times as long, at most {MOST_GROWTH} times is supported"
        ));
    }
    let factor = decoded_growth(&definition.decoder);
    if factor > MOST_DECODED {
        return Err(format!(
            "the decoder can make tokens {factor} times as long, at most {MOST_DECODED} times is supported"
        ));
    }
    Ok(())
}

/// Rejects parts of a definition with too many steps, or with too many or too large patterns.
///
/// # Errors
/// Reason, as a message.
pub(super) fn check_steps(parts: &[&Value]) -> Result<(), String> {
    let (mut steps, mut patterns) = (0, Vec::new());
    parts.iter().for_each(|part| collect(part, &mut steps, &mut patterns));
    if steps > MOST_STEPS || patterns.len() > MOST_PATTERNS {
        let n_patterns = patterns.len();
        return Err(format!(
            "{steps} steps and {n_patterns} patterns, at most {MOST_STEPS} and {MOST_PATTERNS} are supported"
        ));
    }
    for pattern in patterns {
        if pattern.len() > LONGEST_PATTERN {
            let len = pattern.len();
            return Err(format!("a pattern of {len} bytes, at most {LONGEST_PATTERN} are supported"));
        }
        Search::new(pattern).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Counts the steps and collects their patterns.
fn collect<'v>(part: &'v Value, steps: &mut usize, patterns: &mut Vec<&'v str>) {
    match part {
        Value::Object(fields) => {
            *steps += usize::from(fields.contains_key("type"));
            patterns.extend(fields.get("Regex").and_then(Value::as_str));
            fields.values().for_each(|value| collect(value, steps, patterns));
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, steps, patterns)),
        _ => {}
    }
}

/// As [`growth`], for a decoder.
fn decoded_growth(decoder: &Value) -> usize {
    match decoder["decoders"].as_array() {
        Some(parts) => parts.iter().fold(1, |all: usize, part| all.saturating_mul(decoded_growth(part))),
        None => growth(decoder),
    }
}
