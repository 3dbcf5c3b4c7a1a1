//! Byte-level BPE of a `tokenizer.json`: texts in the byte alphabet, merges, and the name of the
//! pre-tokenizer.

use ruvllm_text::tokenizer::pre_tokenizer_name;
use serde_json::Value;

use super::{Encoder, Token, Tokens, as_id, kind, merges, not_expressible, vocab};
use crate::error::Result;
use crate::hf::fields::Fields;

/// True for byte-level BPE: merges, a byte-level pre-tokenizer, and no byte fallback.
pub(super) fn is_byte_level(definition: &Fields<'_>) -> Result<bool> {
    let Some(model) = definition.object("model")? else { return Ok(false) };
    // Older files name no type.
    let is_bpe = model.text("type")?.is_none_or(|name| name == "BPE") && model.get("merges").is_some();
    let falls_back = model.flag("byte_fallback")?.unwrap_or(false);
    Ok(is_bpe && !falls_back && definition.get("pre_tokenizer").and_then(byte_level_part).is_some())
}

/// The part of a pre-tokenizer that maps bytes to the byte alphabet.
fn byte_level_part(pre_tokenizer: &Value) -> Option<&Value> {
    match pre_tokenizer["pretokenizers"].as_array() {
        Some(parts) => parts.iter().find_map(byte_level_part),
        None => Some(pre_tokenizer).filter(|part| part["type"] == "ByteLevel"),
    }
}

pub(super) fn read(definition: &Fields<'_>, tokens: &mut Tokens) -> Result<Encoder> {
    if let Some(normalizer) = definition.get("normalizer")
        && normalizer["type"] != "NFC"
    {
        return Err(not_expressible("the normalizer", normalizer));
    }
    let Some(model) = definition.object("model")? else {
        return Err(definition.missing("model", "an object"));
    };
    for (text, id) in vocab(&model)? {
        let id = as_id(id).ok_or_else(|| model.invalid("vocab", "an object from token texts to ids"))?;
        tokens.set(id, Token { text: text.clone(), score: 0.0, kind: kind::NORMAL })?;
    }
    let pre_tokenizer = definition.get("pre_tokenizer").unwrap_or(&Value::Null);
    if byte_level_part(pre_tokenizer).is_some_and(|part| part["add_prefix_space"] == true) {
        return Err(not_expressible("a space before the text, as of the pre-tokenizer", pre_tokenizer));
    }
    let ignores_merges = model.flag("ignore_merges")?.unwrap_or(false);
    let pre = pre_tokenizer_name(pre_tokenizer, ignores_merges)?;
    // A space in a part would end it; in the byte alphabet a space is `Ġ`.
    let part = |text: &str| text.replace(' ', "Ġ");
    let merges = merges(&model)?.into_iter().map(|(a, b)| format!("{} {}", part(a), part(b))).collect();
    Ok(Encoder::ByteLevel { pre, merges })
}
