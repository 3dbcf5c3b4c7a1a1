//! Normalizer and pre-tokenizer of a `tokenizer.json`, run step by step. Steps that the library
//! runs without limits get limits here.

use std::sync::OnceLock;

use serde_json::Value;
use tokenizers::{
    NormalizedString, Normalizer, NormalizerWrapper, PreTokenizedString, PreTokenizer, PreTokenizerWrapper,
    SplitDelimiterBehavior,
    pattern::{Invert, Pattern},
    pre_tokenizers::split::SplitPattern,
};

use super::search::{Found, Search};

/// Limit on a normalizer's growth of a text: this factor times its length, plus [`SLACK`].
const MOST_GROWTH: usize = 16;

/// Bytes that a normalizer may add to any text.
const SLACK: usize = 4096;

/// Pattern of GPT-2.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// One step of a normalizer.
#[derive(Debug)]
enum Normalization {
    /// Replaces each match by a text.
    Replace(Search, String),
    Other(Box<NormalizerWrapper>),
}

/// Steps of a normalizer.
#[derive(Debug)]
pub(super) struct Normalizers(Vec<Normalization>);

impl Normalizers {
    pub(super) fn new(normalizer: &NormalizerWrapper) -> tokenizers::Result<Self> {
        let mut steps = Vec::new();
        add_normalizer(normalizer, &mut steps)?;
        Ok(Self(steps))
    }
}

fn add_normalizer(normalizer: &NormalizerWrapper, steps: &mut Vec<Normalization>) -> tokenizers::Result<()> {
    match normalizer {
        NormalizerWrapper::Sequence(sequence) => {
            sequence.as_ref().iter().try_for_each(|step| add_normalizer(step, steps))?;
        }
        NormalizerWrapper::Replace(replace) => {
            // The library's pattern is private.
            let json = serde_json::to_value(replace)?;
            let pattern = &json["pattern"];
            let search = match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
                (Some(text), _) => Search::literal(text)?,
                (None, Some(regex)) => Search::new(regex)?,
                (None, None) => return Err("a replacement without a pattern".into()),
            };
            steps.push(Normalization::Replace(search, replace.content.clone()));
        }
        other => steps.push(Normalization::Other(Box::new(other.clone()))),
    }
    Ok(())
}

/// One run of the steps. The library drops errors of normalizers; the first one is kept here.
pub(super) struct Run<'a> {
    steps: &'a Normalizers,
    failure: OnceLock<String>,
}

impl<'a> Run<'a> {
    pub(super) fn new(steps: &'a Normalizers) -> Self {
        Self { steps, failure: OnceLock::new() }
    }

    /// Returns the first failure.
    pub(super) fn into_failure(self) -> Option<String> {
        self.failure.into_inner()
    }
}

impl Normalizer for Run<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        if self.failure.get().is_some() {
            return Ok(());
        }
        let limit = text.get().len().saturating_mul(MOST_GROWTH).saturating_add(SLACK);
        let result = self.steps.0.iter().try_for_each(|step| step.apply(text, limit));
        if let Err(error) = &result {
            // Only the first failure counts.
            let _ = self.failure.set(error.to_string());
        }
        result
    }
}

impl Normalization {
    fn apply(&self, text: &mut NormalizedString, limit: usize) -> tokenizers::Result<()> {
        match self {
            Self::Replace(search, content) => {
                let found = Found(search.find_matches(text.get())?);
                let matches = found.0.iter().filter(|(_, is_match)| *is_match).count();
                check_length(text.get().len().saturating_add(matches.saturating_mul(content.len())), limit)?;
                text.replace(&found, content)
            }
            Self::Other(normalizer) => {
                normalizer.normalize(text)?;
                check_length(text.get().len(), limit)
            }
        }
    }
}

fn check_length(length: usize, limit: usize) -> tokenizers::Result<()> {
    if length > limit {
        return Err(
            format!("the normalizer makes a text of {length} bytes, at most {limit} are taken").into()
        );
    }
    Ok(())
}

/// One step of a pre-tokenizer.
#[derive(Debug)]
enum Cut {
    Split {
        search: Search,
        behavior: SplitDelimiterBehavior,
        invert: bool,
    },
    /// Prepends a space to each part that has none.
    PrefixSpace,
    Other(Box<PreTokenizerWrapper>),
}

/// Steps of a pre-tokenizer.
#[derive(Debug)]
pub(super) struct PreTokenizers(Vec<Cut>);

impl PreTokenizers {
    pub(super) fn new(pre_tokenizer: &PreTokenizerWrapper) -> tokenizers::Result<Self> {
        let mut cuts = Vec::new();
        add_cut(pre_tokenizer, &mut cuts)?;
        Ok(Self(cuts))
    }

    pub(super) fn apply(&self, parts: &mut PreTokenizedString) -> tokenizers::Result<()> {
        for cut in &self.0 {
            match cut {
                Cut::Split { search, behavior, invert: false } => {
                    parts.split(|_, part| part.split(search, *behavior))?;
                }
                Cut::Split { search, behavior, invert: true } => {
                    parts.split(|_, part| part.split(Invert(search), *behavior))?;
                }
                Cut::PrefixSpace => parts.split(|_, mut part| {
                    if !part.get().starts_with(' ') {
                        part.prepend(" ");
                    }
                    Ok(Some(part))
                })?,
                Cut::Other(other) => other.pre_tokenize(parts)?,
            }
        }
        Ok(())
    }
}

fn add_cut(pre_tokenizer: &PreTokenizerWrapper, cuts: &mut Vec<Cut>) -> tokenizers::Result<()> {
    match pre_tokenizer {
        PreTokenizerWrapper::Sequence(sequence) => {
            sequence.as_ref().iter().try_for_each(|part| add_cut(part, cuts))?;
        }
        PreTokenizerWrapper::Split(split) => {
            let search = match &split.pattern {
                SplitPattern::String(text) => Search::literal(text)?,
                SplitPattern::Regex(pattern) => Search::new(pattern)?,
            };
            cuts.push(Cut::Split { search, behavior: split.behavior, invert: split.invert });
        }
        PreTokenizerWrapper::ByteLevel(bytes) if bytes.use_regex => {
            if bytes.add_prefix_space {
                cuts.push(Cut::PrefixSpace);
            }
            let behavior = SplitDelimiterBehavior::Isolated;
            cuts.push(Cut::Split { search: Search::new(GPT2)?, behavior, invert: false });
            let rest = bytes.add_prefix_space(false).use_regex(false);
            cuts.push(Cut::Other(Box::new(PreTokenizerWrapper::ByteLevel(rest))));
        }
        other => cuts.push(Cut::Other(Box::new(other.clone()))),
    }
    Ok(())
}

/// Growth factor of a normalizer: an upper bound for any character, from its definition.
pub(super) fn growth(normalizer: &Value) -> usize {
    let text = |key: &str| normalizer[key].as_str().unwrap_or_default();
    match normalizer["type"].as_str().unwrap_or_default() {
        "Sequence" => normalizer["normalizers"]
            .as_array()
            .map_or(1, |steps| steps.iter().fold(1, |all: usize, step| all.saturating_mul(growth(step)))),
        "Replace" => match normalizer["pattern"]["String"].as_str() {
            Some(pattern) if !pattern.is_empty() => text("content").len().div_ceil(pattern.len()).max(1),
            // It can match the empty text between all characters.
            _ => 1 + text("content").len(),
        },
        "Prepend" => 1 + text("prepend").len(),
        "NFKC" | "NFKD" => 12,
        "NFC" | "NFD" | "BertNormalizer" | "Nmt" => 3,
        "Lowercase" | "ByteLevel" => 2,
        "Precompiled" => longest_replacement(text("precompiled_charsmap")).max(1),
        _ => 1,
    }
}

/// Length of the longest replacement in a `SentencePiece` table, in bytes. The table is in base 64;
/// its zero-terminated texts follow the trie.
fn longest_replacement(table: &str) -> usize {
    let bytes = from_base64(table);
    let Some((size, rest)) = bytes.split_first_chunk::<4>() else { return 1 };
    let texts = rest.get(u32::from_le_bytes(*size) as usize..).unwrap_or_default();
    texts.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(1)
}

fn from_base64(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut n_bits) = (0u32, 0);
    for byte in text.bytes() {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => break,
        };
        (bits, n_bits) = (bits << 6 | u32::from(digit), n_bits + 6);
        if n_bits >= 8 {
            n_bits -= 8;
            out.push((bits >> n_bits) as u8);
            bits &= (1 << n_bits) - 1;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn growth_is_that_of_the_worst_character() {
        let replace = |pattern: &str, content: &str| json!({"type": "Replace", "pattern": {"String": pattern}, "content": content});
        assert_eq!(growth(&replace(" ", "▁")), 3);
        assert_eq!(growth(&replace("``", "\"")), 1);
        assert_eq!(
            growth(&json!({"type": "Sequence", "normalizers": [replace("a", "bb"), replace("b", "ccc")]})),
            6
        );
        assert_eq!(growth(&json!({"type": "Replace", "pattern": {"Regex": "x*"}, "content": "ab"})), 3);
        assert_eq!(growth(&Value::Null), 1);
        assert_eq!(from_base64("aGVsbG8="), b"hello");
        // Four bytes of size, no trie, the texts "ab" and "c".
        assert_eq!(longest_replacement("AAAAAGFiAGMA"), 2);
    }
}
