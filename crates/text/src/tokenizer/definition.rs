//! Tokenizers from a Hugging Face `tokenizer.json`.

use std::path::Path;

use gguf_rs_lite::read_bounded;
use serde_json::Value;
use tokenizers::{
    Encoding, ModelWrapper, Token,
    decoders::DecoderWrapper,
    pre_tokenizers::metaspace::{Metaspace, PrependScheme},
};

use super::{
    bytes::{self, byte_token},
    decode::{Joining, Lead},
    library::{Library, guarded},
    limits,
    pipeline::{Backend, PairRules, Specials, Tokenizer},
    spm::{SPACE_MARK, sentence_piece_bytes},
    unigram::LONGEST_TOKEN,
    vocab::{TokenKind, Vocab},
};
use crate::error::{Error, Result};
use crate::token::TokenId;

/// Maximum size of a `tokenizer.json` in bytes; published ones have up to 33 MB.
const TOKENIZER_BYTES: u64 = 64 << 20;

/// Maximum size of a `tokenizer_config.json` in bytes.
const CONFIG_BYTES: u64 = 4 << 20;

impl Tokenizer {
    /// Reads a `tokenizer.json`, with the `tokenizer_config.json` beside it, if any.
    ///
    /// # Errors
    /// [`Error::TokenizerIo`] if a file cannot be read, is no regular file, or has more than 64 MiB
    /// (4 MiB for the `tokenizer_config.json`), [`Error::TokenizerDefinition`] if it is not
    /// valid.
    pub fn from_file(path: &Path) -> Result<Self> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::TokenizerIo { path, source }
        };
        let tokenizer = Self::from_json(&read_bounded(path, TOKENIZER_BYTES).map_err(failed(path))?)?;
        let config = path.with_file_name("tokenizer_config.json");
        match read_bounded(&config, CONFIG_BYTES) {
            Ok(json) => tokenizer.with_config(&json),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(tokenizer),
            Err(error) => Err(failed(&config)(error)),
        }
    }

    /// Parses a Hugging Face `tokenizer.json`. Its truncation and padding are ignored.
    ///
    /// The format names no end token; [`Tokenizer::with_config`] adds that of
    /// `tokenizer_config.json`.
    ///
    /// # Errors
    /// [`Error::TokenizerDefinition`] if the JSON is no valid tokenizer, or one that could take
    /// unbounded time or memory: more than 64 steps, 32 patterns, or 4 MiB for a compiled pattern,
    /// a normalizer that lengthens a text 4096 times, words of more than 1000 characters for
    /// `WordPiece`, tokens of more than 1024 bytes for unigram.
    pub fn from_json(json: &[u8]) -> Result<Self> {
        limits::check(json).map_err(definition)?;
        let mut inner = guarded(|| tokenizers::Tokenizer::from_bytes(json)).map_err(definition)?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| definition(error.to_string()))?;
        let joining = joining_of(inner.get_decoder());
        let vocab = read_vocab(&inner, joining)?;
        let (prefix, suffix) = added_around(&inner)?;
        let bos = match prefix.as_slice() {
            [bos] => Some(*bos),
            _ => None,
        };
        let pairs = pair_rules(&inner, &prefix, &suffix)?;
        let (ends, take_space_after) = (Vec::new(), false);
        let specials = Specials { bos, eos: None, prefix, suffix, pairs, ends, take_space_after };
        let library = guarded(|| Library::new(inner)).map_err(definition)?;
        let library = Box::new(library);
        Ok(Self::assemble(vocab, Backend::Library(library), joining, specials))
    }

    /// Applies a `tokenizer_config.json`: the BOS and EOS tokens.
    ///
    /// # Errors
    /// [`Error::TokenizerDefinition`] if the JSON is not valid or names a token that is not in the
    /// vocabulary.
    pub fn with_config(mut self, json: &[u8]) -> Result<Self> {
        let config: Value = serde_json::from_slice(json).map_err(|error| definition(error.to_string()))?;
        let token = |key: &str| {
            let text = match &config[key] {
                Value::String(text) => text,
                Value::Object(token) => token.get("content").and_then(Value::as_str).unwrap_or_default(),
                _ => return Ok(None),
            };
            match self.token_to_id(text) {
                Some(id) => Ok(Some(id)),
                None => Err(definition(format!("{key} is {text:?}, which is not in the vocabulary"))),
            }
        };
        let (bos, eos) = (token("bos_token")?, token("eos_token")?);
        self.name_specials(bos, eos);
        Ok(self)
    }
}

fn definition(message: impl Into<String>) -> Error {
    Error::TokenizerDefinition { message: message.into() }
}

/// Reads texts, kinds and bytes of all tokens.
fn read_vocab(inner: &tokenizers::Tokenizer, joining: Joining) -> Result<Vocab> {
    let texts = inner.get_vocab(true);
    let added = inner.get_added_tokens_decoder();
    let Some(highest) = texts.values().chain(added.keys()).max().copied() else {
        return Err(definition("the vocabulary is empty"));
    };
    // Ids without a token cost memory: a definition must not make us allocate billions of them.
    let len = highest as usize + 1;
    if len > 64 * (texts.len() + 1024) {
        return Err(definition(format!("the highest id is {highest} in a vocabulary of {}", texts.len())));
    }
    // Each position of a text is compared with tokens up to the longest.
    if let ModelWrapper::Unigram(_) = inner.get_model()
        && let Some(text) = texts.keys().find(|text| text.len() > LONGEST_TOKEN)
    {
        let len = text.len();
        return Err(definition(format!("a token has {len} bytes, at most {LONGEST_TOKEN} are supported")));
    }
    let mut tokens: Vec<(&str, TokenKind)> = vec![("", TokenKind::Absent); len];
    for (text, &id) in &texts {
        let kind = match byte_token(text) {
            Some(byte) if matches!(joining, Joining::Pieces(Lead::StripSpace | Lead::Keep)) => {
                TokenKind::Byte(byte)
            }
            _ => TokenKind::Normal,
        };
        tokens[id as usize] = (text, kind);
    }
    for (&id, token) in &added {
        let kind = if token.special { TokenKind::Control } else { TokenKind::UserDefined };
        tokens[id as usize] = (&token.content, kind);
    }
    Vocab::new(tokens.into_iter(), |id, text, kind, out| {
        // The library decodes an added token to its normalized form.
        let normalized = inner.get_added_vocabulary().simple_id_to_token(id);
        let text = normalized.as_deref().unwrap_or(text);
        match joining {
            Joining::Pieces(_) => sentence_piece_bytes(text, kind, out),
            // Added tokens are decoded as all others: by the byte alphabet if their characters are
            // in it.
            Joining::Bytes => out.extend(bytes::to_bytes(text).unwrap_or_else(|| text.as_bytes().to_vec())),
            Joining::Library => out.extend_from_slice(text.as_bytes()),
        }
    })
}

/// Tokens that the post-processor adds before and after every text.
fn added_around(inner: &tokenizers::Tokenizer) -> Result<(Vec<TokenId>, Vec<TokenId>)> {
    const TEXT: TokenId = TokenId::MAX;
    let text = Encoding::from_tokens(vec![Token::new(TEXT, "text".to_owned(), (0, 4))], 0);
    let processed = guarded(|| inner.post_process(text, None, true)).map_err(definition)?;
    let ids = processed.get_ids();
    match ids.iter().position(|&id| id == TEXT) {
        Some(at) if !ids[at + 1..].contains(&TEXT) => Ok((ids[..at].to_vec(), ids[at + 1..].to_vec())),
        _ => Err(definition("the post-processor does not keep the text once and in one piece")),
    }
}

/// Tokens that the post-processor adds between two texts; `None` if it does more to a pair than to
/// its texts alone.
fn pair_rules(
    inner: &tokenizers::Tokenizer,
    prefix: &[TokenId],
    suffix: &[TokenId],
) -> Result<Option<PairRules>> {
    const FIRST: TokenId = TokenId::MAX;
    const SECOND: TokenId = TokenId::MAX - 1;
    let text = |id, kind| Encoding::from_tokens(vec![Token::new(id, "text".to_owned(), (0, 4))], kind);
    let processed = guarded(|| inner.post_process(text(FIRST, 0), Some(text(SECOND, 1)), true));
    let processed = processed.map_err(definition)?;
    let (ids, types) = (processed.get_ids(), processed.get_type_ids());
    let place = |text| ids.iter().position(|&id| id == text);
    let (Some(first), Some(second)) = (place(FIRST), place(SECOND)) else { return Ok(None) };
    if first >= second || ids[..first] != *prefix || ids[second + 1..] != *suffix {
        return Ok(None);
    }
    let of_second = types[second];
    let is_usual = types[..second].iter().all(|&kind| kind == 0)
        && types[second..].iter().all(|&kind| kind == of_second)
        && of_second <= 1;
    let between = ids[first + 1..second].to_vec();
    Ok(is_usual.then_some(PairRules { between, second_has_type: of_second == 1 }))
}

/// Decoding rule of a decoder; [`Joining::Library`] for uncommon ones.
fn joining_of(decoder: Option<&DecoderWrapper>) -> Joining {
    match decoder {
        Some(DecoderWrapper::ByteLevel(_)) => Joining::Bytes,
        Some(DecoderWrapper::Metaspace(metaspace)) if is_usual(metaspace) => {
            Joining::Pieces(match metaspace.get_prepend_scheme() {
                // Without byte tokens this equals `Keep`, but texts such as `<0x0A>` would be
                // decoded as bytes.
                PrependScheme::Never => return Joining::Library,
                PrependScheme::First | PrependScheme::Always => Lead::StripFirstToken,
            })
        }
        Some(sequence @ DecoderWrapper::Sequence(_)) => joining_of_sequence(sequence),
        _ => Joining::Library,
    }
}

fn is_usual(metaspace: &Metaspace) -> bool {
    metaspace.get_replacement() == SPACE_MARK
}

/// Decoding rule of a sequence. `SentencePiece` models have the decoders Replace `▁`,
/// `ByteFallback`, Fuse and sometimes Strip, in this order.
fn joining_of_sequence(sequence: &DecoderWrapper) -> Joining {
    let Ok(json) = serde_json::to_value(sequence) else { return Joining::Library };
    let replace = serde_json::json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let strip = serde_json::json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
    let byte_fallback = serde_json::json!({"type": "ByteFallback"});
    let fuse = serde_json::json!({"type": "Fuse"});
    match json["decoders"].as_array().map(Vec::as_slice) {
        Some([a, b, c]) if *a == replace && *b == byte_fallback && *c == fuse => Joining::Pieces(Lead::Keep),
        Some([a, b, c, d]) if *a == replace && *b == byte_fallback && *c == fuse && *d == strip => {
            Joining::Pieces(Lead::StripSpace)
        }
        _ => Joining::Library,
    }
}
