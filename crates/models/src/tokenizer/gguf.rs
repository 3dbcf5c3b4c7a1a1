//! Reads a tokenizer from GGUF metadata (`tokenizer.ggml.*`). Files are untrusted: every id, length
//! and text is checked here, so that encoding and decoding need not.

use gguf_rs_lite::{Array, Metadata, Value};

use super::{
    Backend, Specials, Tokenizer,
    bpe::ByteLevelBpe,
    bytes,
    decode::{Joining, Lead},
    end_of_generation,
    pre::PreTokenizer,
    spm::{SPACE_MARK, SentencePieceBpe},
    vocab::{TokenKind, Vocab},
};
use crate::{Error, Result, TokenId};

const MODEL: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";

/// The two kinds of vocabulary that can be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Byte-level BPE, `gpt2`.
    ByteLevel,
    /// `SentencePiece` BPE, `llama`.
    SentencePiece,
}

impl Tokenizer {
    /// Reads the tokenizer of a GGUF file.
    ///
    /// Supported are `tokenizer.ggml.model` = `gpt2` (byte-level BPE with any known
    /// `tokenizer.ggml.pre`) and `llama` (`SentencePiece` BPE). Text is not Unicode-normalized: the
    /// format does not carry the rule.
    ///
    /// # Errors
    /// [`Error::UnsupportedTokenizer`] and [`Error::UnknownPreTokenizer`] for what is not
    /// implemented; [`Error::MissingKey`], [`Error::InvalidKey`] and [`Error::Gguf`] for metadata
    /// that is absent, inconsistent or of another type; [`Error::MissingSpecialToken`] if the file
    /// asks to add a token that it does not name.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self> {
        let kind = match required(metadata.get_str(MODEL)?, MODEL, "the kind of tokenizer")? {
            "gpt2" => Kind::ByteLevel,
            "llama" => Kind::SentencePiece,
            other => {
                return Err(Error::UnsupportedTokenizer {
                    found: other.to_owned(),
                    supported: "gpt2, llama".to_owned(),
                });
            }
        };
        let tokens = required(metadata.get_strings(TOKENS)?, TOKENS, "the token texts")?;
        if tokens.is_empty() {
            return Err(invalid(TOKENS, "empty", "at least one token"));
        }
        let mut kinds = declared_kinds(metadata, tokens, kind)?;
        let ids = Ids::read(metadata, tokens, &kinds, kind)?;
        correct_kinds(&mut kinds, tokens, kind, &ids);
        let vocab =
            Vocab::new(
                tokens.iter().map(String::as_str).zip(kinds),
                |_, text, token_kind, out| match kind {
                    Kind::ByteLevel => byte_level_bytes(text, token_kind, out),
                    Kind::SentencePiece => sentence_piece_bytes(text, token_kind, out),
                },
            )?;
        let (backend, joining, adds_bos) = match kind {
            Kind::ByteLevel => byte_level(metadata, &vocab)?,
            Kind::SentencePiece => sentence_piece(metadata, &vocab, ids.unknown)?,
        };
        let add = |key: &str, default: bool, name, id: Option<TokenId>| match (metadata.get_bool(key)?, id) {
            (Some(true), None) => Err(Error::MissingSpecialToken { name }),
            (Some(true), Some(id)) => Ok(vec![id]),
            (None, Some(id)) if default => Ok(vec![id]),
            _ => Ok(Vec::new()),
        };
        let specials = Specials {
            bos: ids.bos,
            eos: ids.eos,
            prefix: add("tokenizer.ggml.add_bos_token", adds_bos, "bos", ids.bos)?,
            suffix: add("tokenizer.ggml.add_eos_token", false, "eos", ids.eos)?,
            ends: [ids.eos, ids.eot, ids.eom].into_iter().flatten().collect(),
            take_space_after: takes_space_after(metadata)?,
        };
        Ok(Self::assemble(vocab, backend, joining, specials))
    }
}

/// Ids of the special tokens that the metadata names, checked against the vocabulary.
#[derive(Debug)]
struct Ids {
    bos: Option<TokenId>,
    eos: Option<TokenId>,
    eot: Option<TokenId>,
    eom: Option<TokenId>,
    unknown: Option<TokenId>,
}

impl Ids {
    fn read(metadata: &Metadata, tokens: &[String], kinds: &[TokenKind], kind: Kind) -> Result<Self> {
        let n_tokens = tokens.len();
        let id = |name: &str| {
            let key = format!("tokenizer.ggml.{name}_token_id");
            match metadata.get_u64(&key)? {
                None => Ok(None),
                Some(id) if id < n_tokens as u64 => Ok(Some(id as TokenId)),
                Some(id) => Err(invalid(key, id, format!("an id below {n_tokens}"))),
            }
        };
        let mut ids = Self {
            bos: id("bos")?,
            eos: id("eos")?,
            eot: id("eot")?,
            eom: id("eom")?,
            unknown: id("unknown")?,
        };
        if kind == Kind::SentencePiece {
            // The places where SentencePiece puts them; files of the first years name no ids.
            let usual = |id: TokenId, text: &str| {
                let is_marker = kinds.get(id as usize)?.is_special() || tokens[id as usize] == text;
                is_marker.then_some(id)
            };
            ids.unknown = ids.unknown.or_else(|| usual(0, "<unk>"));
            ids.bos = ids.bos.or_else(|| usual(1, "<s>"));
            ids.eos = ids.eos.or_else(|| usual(2, "</s>"));
        }
        Ok(ids)
    }
}

/// Kinds of all tokens as the file declares them.
fn declared_kinds(metadata: &Metadata, tokens: &[String], kind: Kind) -> Result<Vec<TokenKind>> {
    let types = metadata.get_i32s(TOKEN_TYPE)?;
    if let Some(types) = types {
        same_length(TOKEN_TYPE, types.len(), tokens.len())?;
    }
    let kind_of = |(id, text): (usize, &String)| {
        Ok(match types.map(|types| types[id]) {
            Some(2) => TokenKind::Unknown,
            Some(3) => TokenKind::Control,
            Some(4) => TokenKind::UserDefined,
            Some(5) => TokenKind::Unused,
            Some(6) => TokenKind::Byte(byte_token(text).ok_or_else(|| {
                invalid(
                    format!("{TOKENS}[{id}]"),
                    format!("{text:?}"),
                    "`<0x00>` to `<0xFF>` for a byte token",
                )
            })?),
            Some(_) => TokenKind::Normal,
            // Without types the texts say what can be said.
            None => match byte_token(text) {
                Some(byte) if kind == Kind::SentencePiece => TokenKind::Byte(byte),
                _ => TokenKind::Normal,
            },
        })
    };
    tokens.iter().enumerate().map(kind_of).collect()
}

/// Corrects kinds where files are known to lie: tokens that begin or end a text are markers.
fn correct_kinds(kinds: &mut [TokenKind], tokens: &[String], kind: Kind, ids: &Ids) {
    for (kind, text) in kinds.iter_mut().zip(tokens) {
        if end_of_generation::is_known(text, *kind) {
            *kind = TokenKind::Control;
        }
    }
    let mut mark = |id: Option<TokenId>, marker| {
        if let Some(kind) = id.and_then(|id| kinds.get_mut(id as usize))
            && *kind == TokenKind::Normal
        {
            *kind = marker;
        }
    };
    for id in [ids.bos, ids.eos, ids.eot, ids.eom] {
        mark(id, TokenKind::Control);
    }
    if kind == Kind::SentencePiece {
        mark(ids.unknown, TokenKind::Unknown);
    }
}

fn byte_level(metadata: &Metadata, vocab: &Vocab) -> Result<(Backend, Joining, bool)> {
    let name = metadata.get_str("tokenizer.ggml.pre")?.unwrap_or("default");
    let pre_tokenizer = PreTokenizer::named(name)?;
    let adds_bos = pre_tokenizer.adds_bos();
    let merges = required(metadata.get_strings(MERGES)?, MERGES, "the merge list")?;
    let bpe = ByteLevelBpe::new(vocab, merges, MERGES, pre_tokenizer)?;
    Ok((Backend::ByteLevel(Box::new(bpe)), Joining::Bytes, adds_bos))
}

fn sentence_piece(
    metadata: &Metadata,
    vocab: &Vocab,
    unknown: Option<TokenId>,
) -> Result<(Backend, Joining, bool)> {
    let scores = scores(metadata, vocab.len())?;
    let add_space_prefix = metadata.get_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let spm = SentencePieceBpe::new(vocab, &scores, unknown, add_space_prefix);
    let lead = if add_space_prefix { Lead::StripSpace } else { Lead::Keep };
    Ok((Backend::SentencePiece(Box::new(spm)), Joining::Pieces(lead), true))
}

/// One number per token; some writers store integers.
fn scores(metadata: &Metadata, n_tokens: usize) -> Result<Vec<f32>> {
    let scores = match metadata.get(SCORES) {
        Some(Value::Array(Array::I32(scores))) => scores.iter().map(|&score| score as f32).collect(),
        _ => required(metadata.get_f32s(SCORES)?, SCORES, "one score per token")?.to_vec(),
    };
    same_length(SCORES, scores.len(), n_tokens)?;
    match scores.iter().position(|score| score.is_nan()) {
        Some(at) => Err(invalid(format!("{SCORES}[{at}]"), "not a number", "a number")),
        None => Ok(scores),
    }
}

/// Whether white space after a marker belongs to it. Phi-3's own tokenizer says so; the format has
/// no place for it, so the model's name decides, as in other readers.
fn takes_space_after(metadata: &Metadata) -> Result<bool> {
    let name = metadata.get_str("general.name")?.unwrap_or_default().to_lowercase();
    Ok(name.contains("phi-3") || name.contains("phi3"))
}

/// What a byte-level token stands for: pieces are in the byte alphabet, markers and user-defined
/// tokens are text.
fn byte_level_bytes(text: &str, kind: TokenKind, out: &mut Vec<u8>) {
    match (kind, bytes::to_bytes(text)) {
        (TokenKind::Normal | TokenKind::Unused, Some(bytes)) => out.extend(bytes),
        _ => out.extend_from_slice(text.as_bytes()),
    }
}

/// What a `SentencePiece` token stands for.
pub(super) fn sentence_piece_bytes(text: &str, kind: TokenKind, out: &mut Vec<u8>) {
    if let TokenKind::Byte(byte) = kind {
        return out.push(byte);
    }
    for (i, part) in text.split(SPACE_MARK).enumerate() {
        if i > 0 {
            out.push(b' ');
        }
        out.extend_from_slice(part.as_bytes());
    }
}

/// The byte of a token text such as `<0x0A>`.
pub(crate) fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    // `from_str_radix` takes a sign.
    (digits.len() == 2 && !digits.starts_with('+')).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

fn same_length(key: &str, found: usize, tokens: usize) -> Result<()> {
    if found == tokens {
        Ok(())
    } else {
        Err(invalid(key, format!("an array of {found}"), format!("{tokens} elements, one per token")))
    }
}

fn required<T>(value: Option<T>, key: &str, expected: &str) -> Result<T> {
    value.ok_or_else(|| Error::MissingKey { key: key.to_owned(), expected: expected.to_owned() })
}

fn invalid(key: impl Into<String>, found: impl ToString, expected: impl Into<String>) -> Error {
    Error::InvalidKey { key: key.into(), found: found.to_string(), expected: expected.into() }
}
