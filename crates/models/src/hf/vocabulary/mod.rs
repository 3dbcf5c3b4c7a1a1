//! The vocabulary of a folder under the keys of GGUF: tokens, their kinds, scores or merges, and
//! special tokens.
//!
//! Source: the layout that llama.cpp's converter writes. Left out are the separator flag of pairs
//! of texts, which no decoder uses, and normalization, for which the format has no place.

mod byte_level;
mod protobuf;
mod sentence_piece;
mod specials;
mod word_piece;

use std::collections::BTreeMap;
use std::path::Path;

use gguf_rs_lite::Metadata;
use ruvllm_text::TokenId;
use serde_json::{Map, Value};

use self::specials::Specials;
use super::fields::{CONFIG_BYTES, Fields, TOKENIZER_BYTES, read_file, read_object};
use crate::error::{Error, Result};

/// Name of the file that defines a tokenizer.
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// Name of the file with the tokenizer's special tokens and chat template.
pub(super) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// Largest part of a wrong definition that an error shows, in characters.
const SHOWN_CHARS: usize = 60;

/// Values of `tokenizer.ggml.token_type`.
mod kind {
    pub(super) const NORMAL: i32 = 1;
    pub(super) const UNKNOWN: i32 = 2;
    pub(super) const CONTROL: i32 = 3;
    pub(super) const USER_DEFINED: i32 = 4;
    pub(super) const UNUSED: i32 = 5;
    pub(super) const BYTE: i32 = 6;
}

/// Score of a token that stands outside of the merges.
const ADDED_SCORE: f32 = -1000.0;

/// One token.
#[derive(Debug, Clone)]
struct Token {
    text: String,
    score: f32,
    kind: i32,
}

/// All tokens by id, as many as the embedding has rows.
struct Tokens(Vec<Token>);

impl Tokens {
    /// Ids without a token.
    fn unused(rows: usize) -> Self {
        let unused = |id| Token { text: format!("[PAD{id}]"), score: -10_000.0, kind: kind::UNUSED };
        Self((0..rows).map(unused).collect())
    }

    fn set(&mut self, id: usize, token: Token) -> Result<()> {
        let embedding = self.0.len();
        let slot = self.0.get_mut(id).ok_or(Error::VocabularySize { tokenizer: id + 1, embedding })?;
        *slot = token;
        Ok(())
    }
}

/// Encoder settings beside the tokens.
enum Encoder {
    /// Byte-level BPE: the name of the pre-tokenizer, and the merges.
    ByteLevel { pre: &'static str, merges: Vec<String> },
    /// `SentencePiece` BPE, which goes by the scores.
    SentencePiece { add_space_prefix: bool },
    /// `WordPiece`: what happens to a text before.
    WordPiece { lowercase: bool, strip_accents: bool },
}

/// A token that is found in a text before anything else.
#[derive(Debug)]
struct Added {
    text: String,
    is_special: bool,
}

/// Adds the vocabulary of `folder` to `metadata`. `rows` are those of the embedding, `ends` the
/// tokens that end an answer.
pub(super) fn write(
    folder: &Path,
    config: &Fields<'_>,
    rows: usize,
    ends: &[TokenId],
    metadata: &mut Metadata,
) -> Result<()> {
    let definition = read_object(&folder.join(TOKENIZER), TOKENIZER_BYTES)?;
    let definition = definition.as_ref().map(|map| Fields::new(TOKENIZER, map));
    let settings = read_object(&folder.join(TOKENIZER_CONFIG), CONFIG_BYTES)?.unwrap_or_default();
    let settings = Fields::new(TOKENIZER_CONFIG, &settings);
    let mut tokens = Tokens::unused(rows);
    let encoder = match &definition {
        Some(definition) if byte_level::is_byte_level(definition)? => {
            byte_level::read(definition, &mut tokens)?
        }
        Some(definition) if word_piece::is_word_piece(definition)? => {
            word_piece::read(definition, &mut tokens)?
        }
        definition => match read_file(&folder.join("tokenizer.model"), TOKENIZER_BYTES)? {
            Some(bytes) => sentence_piece::read_model(&bytes, &mut tokens)?,
            None => match definition {
                Some(definition) => sentence_piece::read_json(definition, &mut tokens)?,
                None => {
                    return Err(Error::NotAModelFolder {
                        path: folder.to_owned(),
                        reason: "it has neither tokenizer.json nor tokenizer.model",
                    });
                }
            },
        },
    };
    let added = read_added(folder, &settings, definition.as_ref())?;
    for (&id, token) in &added {
        match tokens.set(id, added_token(token)) {
            // Some models share a tokenizer with larger relatives, which have markers more.
            Err(_) if token.is_special => {}
            result => result?,
        }
    }
    let specials =
        Specials { config, settings: &settings, definition: definition.as_ref(), added: &added, ends };
    insert(metadata, tokens, encoder);
    specials.write(rows, metadata)
}

fn insert(metadata: &mut Metadata, tokens: Tokens, encoder: Encoder) {
    let (model, pre) = match &encoder {
        Encoder::ByteLevel { pre, .. } => ("gpt2", *pre),
        Encoder::SentencePiece { .. } => ("llama", "default"),
        Encoder::WordPiece { .. } => ("bert", "default"),
    };
    metadata.insert("tokenizer.ggml.model", model);
    metadata.insert("tokenizer.ggml.pre", pre);
    let scores: Vec<f32> = tokens.0.iter().map(|token| token.score).collect();
    let kinds: Vec<i32> = tokens.0.iter().map(|token| token.kind).collect();
    let texts: Vec<String> = tokens.0.into_iter().map(|token| token.text).collect();
    metadata.insert("tokenizer.ggml.tokens", texts);
    match encoder {
        Encoder::ByteLevel { merges, .. } => {
            metadata.insert("tokenizer.ggml.token_type", kinds);
            metadata.insert("tokenizer.ggml.merges", merges);
        }
        Encoder::SentencePiece { add_space_prefix } => {
            metadata.insert("tokenizer.ggml.scores", scores);
            metadata.insert("tokenizer.ggml.token_type", kinds);
            if !add_space_prefix {
                metadata.insert("tokenizer.ggml.add_space_prefix", false);
            }
        }
        Encoder::WordPiece { lowercase, strip_accents } => {
            metadata.insert("tokenizer.ggml.token_type", kinds);
            metadata.insert("tokenizer.ggml.normalizer.lowercase", lowercase);
            metadata.insert("tokenizer.ggml.normalizer.strip_accents", strip_accents);
        }
    }
}

/// The added tokens of all files that list some, by id.
fn read_added(
    folder: &Path,
    settings: &Fields<'_>,
    definition: Option<&Fields<'_>>,
) -> Result<BTreeMap<usize, Added>> {
    const LIST: &str = "added_tokens.json";
    const DECODER: &str = "added_tokens_decoder";
    const TOKENS: &str = "added_tokens";
    let mut added = BTreeMap::new();
    let list = read_object(&folder.join(LIST), CONFIG_BYTES)?.unwrap_or_default();
    let list = Fields::new(LIST, &list);
    for (text, id) in list.iter() {
        let id = as_id(id).ok_or_else(|| list.invalid(text, "a token id"))?;
        added.insert(id, Added { text: text.clone(), is_special: false });
    }
    if let Some(decoder) = settings.object(DECODER)? {
        for (id, token) in decoder.iter() {
            let id = id.parse().ok();
            let token = id.and_then(|id| Some((id, as_added(token)?)));
            let (id, token) =
                token.ok_or_else(|| settings.invalid(DECODER, "an object from ids to tokens"))?;
            added.insert(id, token);
        }
    }
    if let Some(definition) = definition {
        for token in definition.list(TOKENS)?.unwrap_or_default() {
            let read = as_id(&token["id"]).and_then(|id| Some((id, as_added(token)?)));
            let (id, token) = read.ok_or_else(|| definition.invalid(TOKENS, "a list of tokens with ids"))?;
            added.insert(id, token);
        }
    }
    Ok(added)
}

fn as_id(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|id| TokenId::try_from(id).ok()).map(|id| id as usize)
}

fn as_added(token: &Value) -> Option<Added> {
    let is_special = token["special"].as_bool().unwrap_or(false);
    Some(Added { text: token["content"].as_str()?.to_owned(), is_special })
}

fn added_token(token: &Added) -> Token {
    if token.is_special || looks_special(&token.text) {
        Token { text: token.text.clone(), score: ADDED_SCORE, kind: kind::CONTROL }
    } else {
        // Found in the text as it is, not as the normalizer leaves it.
        Token { text: token.text.replace('▁', " "), score: ADDED_SCORE, kind: kind::USER_DEFINED }
    }
}

/// True if a token is a marker although its file does not say so, as some of `DeepSeek`, Command R
/// and Gemma do not.
fn looks_special(text: &str) -> bool {
    let within = |start: &str, end: &str| text.starts_with(start) && text.ends_with(end);
    matches!(text, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || within("<|", "|>")
        || within("<｜", "｜>")
        || within("<unused", ">")
}

/// The texts and ids of `model.vocab`.
fn vocab<'a>(model: &Fields<'a>) -> Result<&'a Map<String, Value>> {
    const KEY: &str = "vocab";
    let expected = "an object from token texts to ids";
    let value = model.get(KEY).ok_or_else(|| model.missing(KEY, expected))?;
    value.as_object().ok_or_else(|| model.invalid(KEY, expected))
}

/// The pairs of `model.merges`, which are lists of two in newer files and texts with a space in
/// older ones.
fn merges<'a>(model: &Fields<'a>) -> Result<Vec<(&'a str, &'a str)>> {
    const KEY: &str = "merges";
    let expected = "a list of pairs of texts";
    let list = model.list(KEY)?.ok_or_else(|| model.missing(KEY, expected))?;
    let pair = |merge: &'a Value| match merge {
        Value::String(text) => text.split_once(' '),
        Value::Array(pair) => match pair.as_slice() {
            [left, right] => Some((left.as_str()?, right.as_str()?)),
            _ => None,
        },
        _ => None,
    };
    list.iter().map(|merge| pair(merge).ok_or_else(|| model.invalid(KEY, expected))).collect()
}

/// The error for a definition that a GGUF vocabulary cannot express.
fn not_expressible(what: &str, value: &Value) -> Error {
    let shown: String = value.to_string().chars().take(SHOWN_CHARS).collect();
    let message = format!("{what} {shown} cannot be written to a GGUF file");
    ruvllm_text::Error::TokenizerDefinition { message }.into()
}
