//! `WordPiece` of a `tokenizer.json`: texts with the mark of the beginning of a word instead of
//! that of its middle.

use serde_json::Value;

use super::{Encoder, Token, Tokens, as_id, kind, not_expressible, vocab};
use crate::error::Result;
use crate::hf::fields::Fields;

/// Prefix of a piece within a word, in published definitions and for readers of GGUF.
const WITHIN: &str = "##";

/// The longest word that is cut, in characters, likewise.
const LONGEST_WORD: usize = 100;

/// True for a `WordPiece` model.
pub(super) fn is_word_piece(definition: &Fields<'_>) -> Result<bool> {
    let Some(model) = definition.object("model")? else { return Ok(false) };
    Ok(model.text("type")? == Some("WordPiece"))
}

pub(super) fn read(definition: &Fields<'_>, tokens: &mut Tokens) -> Result<Encoder> {
    let normalizer = definition.get("normalizer").unwrap_or(&Value::Null);
    let pre_tokenizer = definition.get("pre_tokenizer").unwrap_or(&Value::Null);
    let is_set = |key: &str| normalizer[key].as_bool().unwrap_or(true);
    if normalizer["type"] != "BertNormalizer" || !is_set("clean_text") || !is_set("handle_chinese_chars") {
        return Err(not_expressible("the normalizer", normalizer));
    }
    if pre_tokenizer["type"] != "BertPreTokenizer" {
        return Err(not_expressible("the pre-tokenizer", pre_tokenizer));
    }
    let Some(model) = definition.object("model")? else {
        return Err(definition.missing("model", "an object"));
    };
    const PREFIX: &str = "continuing_subword_prefix";
    if model.text(PREFIX)?.is_some_and(|prefix| prefix != WITHIN) {
        return Err(model.invalid(PREFIX, WITHIN));
    }
    const LONGEST: &str = "max_input_chars_per_word";
    if model.count(LONGEST, 0..=usize::MAX)?.is_some_and(|longest| longest != LONGEST_WORD) {
        return Err(model.invalid(LONGEST, LONGEST_WORD.to_string()));
    }
    for (text, id) in vocab(&model)? {
        let id = as_id(id).ok_or_else(|| model.invalid("vocab", "an object from token texts to ids"))?;
        let text = match text.strip_prefix(WITHIN) {
            Some(rest) => rest.to_owned(),
            None => format!("▁{text}"),
        };
        tokens.set(id, Token { text, score: 0.0, kind: kind::NORMAL })?;
    }
    let lowercase = is_set("lowercase");
    Ok(Encoder::WordPiece {
        lowercase,
        strip_accents: normalizer["strip_accents"].as_bool().unwrap_or(lowercase),
    })
}
