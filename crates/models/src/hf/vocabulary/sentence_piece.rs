//! `SentencePiece` BPE: from a `tokenizer.model`, or from a `tokenizer.json` that was made of one.

use std::collections::HashMap;

use ruvllm_text::tokenizer::byte_token;
use serde_json::Value;

use super::protobuf::{Field, Message};
use super::{Encoder, Token, Tokens, as_id, kind, merges, not_expressible, vocab};
use crate::error::{Error, Result};
use crate::hf::fields::Fields;

/// Score of a piece that no merge makes: behind all others.
const NEVER_MERGED: f32 = -1e9;

/// Reads a `tokenizer.model`: a `ModelProto` of sentencepiece's `sentencepiece_model.proto`.
pub(super) fn read_model(bytes: &[u8], tokens: &mut Tokens) -> Result<Encoder> {
    const PIECES: u32 = 1;
    const TRAINER: u32 = 2;
    const NORMALIZER: u32 = 3;
    let mut add_space_prefix = true;
    let (mut id, mut has_kind) = (0, false);
    for field in Message::new(bytes) {
        match field.ok_or_else(damaged)? {
            (PIECES, Field::Bytes(piece)) => {
                tokens.set(id, read_piece(piece)?)?;
                id += 1;
            }
            (TRAINER, Field::Bytes(trainer)) => {
                check_kind(trainer)?;
                has_kind = true;
            }
            (NORMALIZER, Field::Bytes(normalizer)) => {
                const ADD_DUMMY_PREFIX: u32 = 3;
                for field in Message::new(normalizer) {
                    if let (ADD_DUMMY_PREFIX, Field::Varint(add)) = field.ok_or_else(damaged)? {
                        add_space_prefix = add != 0;
                    }
                }
            }
            _ => {}
        }
    }
    // The trainer settings come after the pieces, so a truncated file lacks them.
    if id == 0 || !has_kind {
        return Err(damaged());
    }
    Ok(Encoder::SentencePiece { add_space_prefix })
}

fn read_piece(bytes: &[u8]) -> Result<Token> {
    const PIECE: u32 = 1;
    const SCORE: u32 = 2;
    const TYPE: u32 = 3;
    let mut token = Token { text: String::new(), score: 0.0, kind: kind::NORMAL };
    for field in Message::new(bytes) {
        match field.ok_or_else(damaged)? {
            (PIECE, Field::Bytes(text)) => {
                token.text = String::from_utf8(text.to_vec()).map_err(|_| damaged())?;
            }
            (SCORE, Field::Fixed32(bits)) => token.score = f32::from_bits(bits),
            // The numbers of the two formats agree.
            (TYPE, Field::Varint(number)) => {
                token.kind =
                    i32::try_from(number).ok().filter(|kind| (1..=6).contains(kind)).ok_or_else(damaged)?;
            }
            _ => {}
        }
    }
    Ok(token)
}

/// Only BPE goes by merges; the others would be encoded to other tokens.
fn check_kind(trainer: &[u8]) -> Result<()> {
    const MODEL_TYPE: u32 = 3;
    const BPE: u64 = 2;
    // Default of the format for a field that is absent.
    let mut found = 1;
    for field in Message::new(trainer) {
        if let (MODEL_TYPE, Field::Varint(number)) = field.ok_or_else(damaged)? {
            found = number;
        }
    }
    match found {
        BPE => Ok(()),
        1 => Err(unsupported("SentencePiece unigram")),
        _ => Err(unsupported("SentencePiece of words or characters")),
    }
}

/// Reads a byte-fallback BPE. Its merges are in the order of the scores that the pieces had.
pub(super) fn read_json(definition: &Fields<'_>, tokens: &mut Tokens) -> Result<Encoder> {
    let Some(model) = definition.object("model")? else {
        return Err(definition.missing("model", "an object"));
    };
    let kind_name = model.text("type")?.unwrap_or("BPE");
    if kind_name != "BPE" || model.flag("byte_fallback")? != Some(true) {
        return Err(unsupported(kind_name));
    }
    let mut scores: HashMap<String, f32> = HashMap::new();
    for (left, right) in merges(&model)? {
        let next = -(scores.len() as f32);
        scores.entry(format!("{left}{right}")).or_insert(next);
    }
    let unknown = model.text("unk_token")?;
    for (text, id) in vocab(&model)? {
        let id = as_id(id).ok_or_else(|| model.invalid("vocab", "an object from token texts to ids"))?;
        let (score, kind) = match byte_token(text) {
            Some(_) => (0.0, kind::BYTE),
            None if unknown == Some(text) => (0.0, kind::UNKNOWN),
            None => (scores.get(text).copied().unwrap_or(NEVER_MERGED), kind::NORMAL),
        };
        tokens.set(id, Token { text: text.clone(), score, kind })?;
    }
    let prepends = prepends(definition.get("normalizer"))?;
    let pre_tokenizer = definition.get("pre_tokenizer");
    let scheme = pre_tokenizer.filter(|pre| pre["type"] == "Metaspace").map(|pre| &pre["prepend_scheme"]);
    Ok(Encoder::SentencePiece {
        add_space_prefix: prepends || scheme.is_some_and(|scheme| scheme != "never"),
    })
}

/// True if a normalizer puts a space before a text. One that does more than mark spaces cannot be
/// expressed.
fn prepends(normalizer: Option<&Value>) -> Result<bool> {
    let Some(normalizer) = normalizer else { return Ok(false) };
    match normalizer["type"].as_str() {
        Some("Prepend") if normalizer["prepend"] == "▁" => Ok(true),
        Some("Replace") if normalizer["content"] == "▁" => Ok(false),
        Some("Sequence") => {
            let parts = normalizer["normalizers"].as_array().map(Vec::as_slice).unwrap_or_default();
            parts.iter().try_fold(false, |prepending, part| Ok(prepends(Some(part))? || prepending))
        }
        _ => Err(not_expressible("the normalizer", normalizer)),
    }
}

fn unsupported(found: &str) -> Error {
    let supported = "byte-level BPE, BPE with byte fallback, SentencePiece BPE".to_owned();
    ruvllm_text::Error::UnsupportedTokenizer { found: found.to_owned(), supported }.into()
}

fn damaged() -> Error {
    let message = "tokenizer.model is damaged or of another format".to_owned();
    ruvllm_text::Error::TokenizerDefinition { message }.into()
}
