//! Tokenizers from GGUF metadata (`tokenizer.ggml.*`). Files are untrusted: every id, length and
//! text is checked here, so that encoding and decoding need not.

use gguf_rs_lite::{Array, Metadata, Value};

use super::{
    bpe::{ByteLevelBpe, MergeTable},
    bytes::{self, byte_token},
    character_bpe::CharacterBpe,
    charsmap::CharacterMap,
    decode::{Joining, Lead},
    end_of_generation,
    pipeline::{Backend, PairRules, Specials, Tokenizer},
    pre::{self, PreTokenizer},
    spm::{SentencePieceBpe, sentence_piece_bytes},
    unigram::{Normalization, Unigram},
    vocab::{TokenKind, Vocab},
    wordpiece::WordPiece,
};
use crate::error::{Error, Result};
use crate::token::TokenId;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
/// True if pairs of texts have a separator besides the tokens that end a text.
const ADD_SEPARATOR: &str = "tokenizer.ggml.add_sep_token";
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

/// Supported kinds of vocabularies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Byte-level BPE, `gpt2`.
    ByteLevel,
    /// BPE over characters, `gemma4`, and `gpt2` with some values of `tokenizer.ggml.pre`.
    Characters,
    /// `SentencePiece` BPE, `llama`.
    SentencePiece,
    /// `SentencePiece` unigram, `t5`.
    Unigram,
    /// `WordPiece`, `bert`.
    WordPiece,
}

impl Kind {
    fn read(metadata: &Metadata) -> Result<Self> {
        Ok(match required(metadata.get_str(MODEL)?, MODEL, "the kind of tokenizer")? {
            "gpt2" if metadata.get_str(PRE)?.is_some_and(pre::is_over_characters) => Self::Characters,
            "gpt2" => Self::ByteLevel,
            "gemma4" => Self::Characters,
            "llama" => Self::SentencePiece,
            "t5" => Self::Unigram,
            "bert" => Self::WordPiece,
            other => {
                return Err(Error::UnsupportedTokenizer {
                    found: other.to_owned(),
                    supported: "bert, gemma4, gpt2, llama, t5".to_owned(),
                });
            }
        })
    }

    /// True if tokens such as `<0x0A>` stand for bytes.
    fn has_byte_tokens(self) -> bool {
        !matches!(self, Self::ByteLevel | Self::WordPiece)
    }
}

/// Encoder and decoding rule of a kind of vocabulary, with its defaults for BOS and EOS.
struct Parts {
    backend: Backend,
    joining: Joining,
    adds_bos: bool,
    adds_eos: bool,
}

impl Tokenizer {
    /// Reads the tokenizer of a GGUF file.
    ///
    /// Supported are `tokenizer.ggml.model` = `gpt2` (byte-level BPE with any known
    /// `tokenizer.ggml.pre`), `gemma4` (BPE over characters), `llama` (`SentencePiece` BPE), `t5`
    /// (`SentencePiece` unigram) and `bert` (`WordPiece`). Texts for BPE vocabularies are not
    /// Unicode-normalized: the format does not contain the rule.
    ///
    /// # Errors
    /// [`Error::UnsupportedTokenizer`] and [`Error::UnknownPreTokenizer`] for unsupported types;
    /// [`Error::MissingKey`], [`Error::InvalidKey`] and [`Error::Gguf`] for metadata that are
    /// absent, inconsistent or of another type; [`Error::MissingSpecialToken`] if the file asks to
    /// add a token that it does not name, or lacks one that its kind requires.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self> {
        let kind = Kind::read(metadata)?;
        let tokens = required(metadata.get_strings(TOKENS)?, TOKENS, "the token texts")?;
        if tokens.is_empty() {
            return Err(invalid(TOKENS, "empty", "at least one token"));
        }
        let mut kinds = declared_kinds(metadata, tokens, kind)?;
        let ids = Ids::read(metadata, tokens, &kinds, kind)?;
        correct_kinds(&mut kinds, tokens, kind, &ids);
        let bytes_of = |_, text: &str, token_kind, out: &mut Vec<u8>| match kind {
            Kind::ByteLevel => byte_level_bytes(text, token_kind, out),
            _ => sentence_piece_bytes(text, token_kind, out),
        };
        let vocab = Vocab::new(tokens.iter().map(String::as_str).zip(kinds), bytes_of)?;
        let parts = match kind {
            Kind::ByteLevel => byte_level(metadata, &vocab)?,
            Kind::Characters => characters(metadata, &vocab)?,
            Kind::SentencePiece => sentence_piece(metadata, &vocab, ids.unknown)?,
            Kind::Unigram => unigram(metadata, &vocab, ids.unknown)?,
            Kind::WordPiece => word_piece(metadata, &vocab, ids.unknown)?,
        };
        let add = |key: &str, default: bool, name, id: Option<TokenId>| match (metadata.get_bool(key)?, id) {
            (Some(true), None) => Err(Error::MissingSpecialToken { name }),
            (None, None) if default && kind == Kind::WordPiece => Err(Error::MissingSpecialToken { name }),
            (Some(true), Some(id)) => Ok(vec![id]),
            (None, Some(id)) if default => Ok(vec![id]),
            _ => Ok(Vec::new()),
        };
        let suffix = match kind {
            // Whatever `add_sep_token` says, which is about pairs of texts in newer files.
            Kind::WordPiece => {
                vec![ids.separator.ok_or(Error::MissingSpecialToken { name: "separator" })?]
            }
            _ => add("tokenizer.ggml.add_eos_token", parts.adds_eos, "eos", ids.eos)?,
        };
        let mut between = suffix.clone();
        // Files from before the key are of models with one.
        if kind != Kind::WordPiece && metadata.get_bool(ADD_SEPARATOR)?.unwrap_or(!suffix.is_empty()) {
            between.extend(ids.separator);
        }
        let pairs = Some(PairRules { between, second_has_type: kind == Kind::WordPiece });
        let specials = Specials {
            bos: ids.bos,
            eos: ids.eos,
            prefix: match ids.bos {
                // Files of Gemma 4 disable BOS, but the model was trained with it.
                Some(bos) if kind == Kind::Characters && parts.adds_bos => vec![bos],
                bos => add("tokenizer.ggml.add_bos_token", parts.adds_bos, "bos", bos)?,
            },
            suffix,
            pairs,
            ends: [ids.eos, ids.eot, ids.eom].into_iter().flatten().collect(),
            take_space_after: takes_space_after(metadata)?,
        };
        Ok(Self::assemble(vocab, parts.backend, parts.joining, specials))
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
    separator: Option<TokenId>,
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
            // The format's own spelling.
            separator: id("seperator")?,
        };
        // Usual ids of the libraries; the earliest files name none.
        let usual = |id: TokenId, text: &str| {
            let is_marker = kinds.get(id as usize)?.is_special() || tokens[id as usize] == text;
            is_marker.then_some(id)
        };
        let named = |text: &str| tokens.iter().position(|token| token == text).map(|id| id as TokenId);
        match kind {
            Kind::ByteLevel | Kind::Characters => {}
            Kind::SentencePiece => {
                ids.unknown = ids.unknown.or_else(|| usual(0, "<unk>"));
                ids.bos = ids.bos.or_else(|| usual(1, "<s>"));
                ids.eos = ids.eos.or_else(|| usual(2, "</s>"));
            }
            Kind::Unigram => {
                ids.eos = ids.eos.or_else(|| usual(1, "</s>"));
                ids.unknown = ids.unknown.or_else(|| usual(2, "<unk>"));
            }
            Kind::WordPiece => {
                ids.bos = ids.bos.or(id("cls")?).or_else(|| named("[CLS]"));
                ids.separator = ids.separator.or_else(|| named("[SEP]"));
                ids.unknown = ids.unknown.or_else(|| named("[UNK]"));
            }
        }
        Ok(ids)
    }
}

/// Kinds of all tokens as declared by the file.
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
            // Without types only the texts are known.
            None => match byte_token(text) {
                Some(byte) if kind.has_byte_tokens() => TokenKind::Byte(byte),
                _ => TokenKind::Normal,
            },
        })
    };
    tokens.iter().enumerate().map(kind_of).collect()
}

/// Corrects kinds that files often declare wrong: BOS and EOS tokens are special.
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
    for id in [ids.bos, ids.eos, ids.eot, ids.eom, ids.separator] {
        mark(id, TokenKind::Control);
    }
    if kind != Kind::ByteLevel {
        mark(ids.unknown, TokenKind::Unknown);
    }
}

fn merge_table(metadata: &Metadata, vocab: &Vocab) -> Result<MergeTable> {
    MergeTable::new(vocab, required(metadata.get_strings(MERGES)?, MERGES, "the merge list")?, MERGES)
}

fn byte_level(metadata: &Metadata, vocab: &Vocab) -> Result<Parts> {
    let pre_tokenizer = PreTokenizer::named(metadata.get_str(PRE)?.unwrap_or("default"))?;
    let adds_bos = pre_tokenizer.adds_bos();
    let bpe = ByteLevelBpe::new(vocab, merge_table(metadata, vocab)?, pre_tokenizer);
    Ok(Parts {
        backend: Backend::ByteLevel(Box::new(bpe)),
        joining: Joining::Bytes,
        adds_bos,
        adds_eos: false,
    })
}

fn characters(metadata: &Metadata, vocab: &Vocab) -> Result<Parts> {
    let bpe = CharacterBpe::new(vocab, merge_table(metadata, vocab)?);
    Ok(Parts {
        backend: Backend::Characters(Box::new(bpe)),
        joining: Joining::Pieces(Lead::Keep),
        adds_bos: metadata.get_str(PRE)? != Some("sarvam-moe"),
        adds_eos: false,
    })
}

fn sentence_piece(metadata: &Metadata, vocab: &Vocab, unknown: Option<TokenId>) -> Result<Parts> {
    let scores = scores(metadata, vocab.len())?;
    let add_space_prefix = metadata.get_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let spm = SentencePieceBpe::new(vocab, &scores, unknown, add_space_prefix);
    Ok(Parts {
        backend: Backend::SentencePiece(Box::new(spm)),
        joining: Joining::Pieces(lead(add_space_prefix)),
        adds_bos: true,
        adds_eos: false,
    })
}

fn unigram(metadata: &Metadata, vocab: &Vocab, unknown: Option<TokenId>) -> Result<Parts> {
    let add_space_prefix = metadata.get_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(false);
    let normalization = Normalization {
        map: character_map(metadata)?,
        add_space_prefix,
        remove_extra_spaces: metadata.get_bool("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false),
    };
    let unigram = Unigram::new(vocab, scores(metadata, vocab.len())?, unknown, normalization, TOKENS)?;
    Ok(Parts {
        backend: Backend::Unigram(Box::new(unigram)),
        joining: Joining::Pieces(lead(add_space_prefix)),
        adds_bos: false,
        adds_eos: true,
    })
}

fn word_piece(metadata: &Metadata, vocab: &Vocab, unknown: Option<TokenId>) -> Result<Parts> {
    let unknown = unknown.ok_or(Error::MissingSpecialToken { name: "unknown" })?;
    let lowercase = metadata.get_bool("tokenizer.ggml.normalizer.lowercase")?.unwrap_or(true);
    let strip_accents = metadata.get_bool("tokenizer.ggml.normalizer.strip_accents")?.unwrap_or(lowercase);
    let word_piece = WordPiece::new(vocab, unknown, lowercase, strip_accents)?;
    Ok(Parts {
        backend: Backend::WordPiece(Box::new(word_piece)),
        joining: Joining::Pieces(Lead::StripSpace),
        adds_bos: true,
        adds_eos: false,
    })
}

/// Decoder's treatment of the space that the encoder prepends.
fn lead(add_space_prefix: bool) -> Lead {
    if add_space_prefix { Lead::StripSpace } else { Lead::Keep }
}

/// Normalization table of the file, if any.
fn character_map(metadata: &Metadata) -> Result<Option<CharacterMap>> {
    let bytes: Vec<u8> = match metadata.get(CHARSMAP) {
        None => return Ok(None),
        Some(Value::Array(Array::U8(bytes))) => bytes.clone(),
        Some(Value::Array(Array::I8(bytes))) => bytes.iter().map(|byte| byte.cast_unsigned()).collect(),
        Some(_) => return Err(invalid(CHARSMAP, "of another type", "an array of bytes")),
    };
    match CharacterMap::new(&bytes) {
        Some(map) => Ok(Some(map)),
        None => Err(invalid(
            CHARSMAP,
            format!("{} malformed bytes", bytes.len()),
            "a table of replaced characters",
        )),
    }
}

/// Reads one score per token; some writers store integers.
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

/// True if white space after a special token belongs to it. Phi-3's own tokenizer says so; the
/// format has no key for it, so the model's name decides, as in other readers.
fn takes_space_after(metadata: &Metadata) -> Result<bool> {
    let name = metadata.get_str("general.name")?.unwrap_or_default().to_lowercase();
    Ok(name.contains("phi-3") || name.contains("phi3"))
}

/// Appends the bytes of a byte-level token. Normal tokens are in the byte alphabet, special and
/// user-defined ones are text.
fn byte_level_bytes(text: &str, kind: TokenKind, out: &mut Vec<u8>) {
    match (kind, bytes::to_bytes(text)) {
        (TokenKind::Normal | TokenKind::Unused, Some(bytes)) => out.extend(bytes),
        _ => out.extend_from_slice(text.as_bytes()),
    }
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
