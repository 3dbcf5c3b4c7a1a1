//! Tokenizers described by a Hugging Face `tokenizer.json`, run by the `tokenizers` library.
//!
//! The library's pipeline is called part by part (added tokens, normalizer, pre-tokenizer, model),
//! because reading special tokens as text must be possible per call and for single parts of a text.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::Value;
use tokenizers::{
    AddedVocabulary, Encoding, Model, NormalizedString, OffsetReferential, OffsetType, PreTokenizer,
    PreTokenizerWrapper, Token,
    decoders::DecoderWrapper,
    normalizer::Range,
    pre_tokenizers::metaspace::{Metaspace, PrependScheme},
};

use super::{
    Backend, Specials, Tokenizer, bytes,
    decode::{Joining, Lead},
    gguf::{byte_token, sentence_piece_bytes},
    special::{Fragment, Occurrence, TokenMatcher},
    vocab::{TokenKind, Vocab},
};
use crate::{Error, Result, TokenId};

/// A tokenizer of the library, with what is needed to run its parts.
#[derive(Debug)]
pub(crate) struct Library {
    inner: tokenizers::Tokenizer,
    /// The added tokens without the special ones, which are then read as text.
    plain_tokens: AddedVocabulary,
    /// The pre-tokenizer for parts of a text other than the first, when it treats those otherwise.
    inner_pre_tokenizer: Option<PreTokenizerWrapper>,
}

impl Tokenizer {
    /// Reads a Hugging Face `tokenizer.json`. Truncation and padding in it are ignored.
    ///
    /// The format names no end token; [`Tokenizer::with_config`] adds what `tokenizer_config.json` says.
    ///
    /// # Errors
    /// [`Error::TokenizerDefinition`] if the JSON is no valid tokenizer.
    pub fn from_json(json: &[u8]) -> Result<Self> {
        let mut inner = guarded(|| tokenizers::Tokenizer::from_bytes(json)).map_err(definition)?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| definition(error.to_string()))?;
        let joining = joining_of(inner.get_decoder());
        let vocab = read_vocab(&inner, joining)?;
        let (prefix, suffix) = added_around(&inner)?;
        let mut plain_tokens = inner.get_added_vocabulary().clone();
        plain_tokens.set_encode_special_tokens(true);
        let inner_pre_tokenizer = inner.get_pre_tokenizer().and_then(for_later_parts);
        let bos = match prefix.as_slice() {
            [bos] => Some(*bos),
            _ => None,
        };
        let specials = Specials { bos, eos: None, prefix, suffix, ends: Vec::new(), take_space_after: false };
        let library = Library { inner, plain_tokens, inner_pre_tokenizer };
        Ok(Self::assemble(vocab, Backend::Library(Box::new(library)), joining, specials))
    }

    /// Adds what a `tokenizer_config.json` says: the BOS and EOS tokens.
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

impl Library {
    /// Appends the tokens of a text, in which special tokens may be written out. `is_first` says
    /// that nothing comes before it.
    pub(super) fn encode(&self, text: &str, is_first: bool, out: &mut Vec<TokenId>) -> Result<()> {
        self.run(text, self.inner.get_added_vocabulary(), is_first, None, out)
    }

    /// Appends the tokens of a text in which special tokens are plain text.
    ///
    /// The models of some vocabularies hold the special tokens too and would find them in the text
    /// by themselves; such a text is cut inside of these.
    pub(super) fn encode_plain(
        &self,
        vocab: &Vocab,
        specials: &TokenMatcher,
        text: &str,
        is_first: bool,
        out: &mut Vec<TokenId>,
    ) -> Result<()> {
        let start = out.len();
        self.run(text, &self.plain_tokens, is_first, None, out)?;
        if out[start..].iter().any(|&id| vocab.kind(id) == TokenKind::Control) {
            out.truncate(start);
            self.run(text, &self.plain_tokens, is_first, Some(specials), out)?;
        }
        Ok(())
    }

    /// The pipeline. `cut_inside` are texts that no token may hold as a whole.
    fn run(
        &self,
        text: &str,
        added: &AddedVocabulary,
        is_first: bool,
        cut_inside: Option<&TokenMatcher>,
        out: &mut Vec<TokenId>,
    ) -> Result<()> {
        let pre_tokenizer = match &self.inner_pre_tokenizer {
            Some(inner) if !is_first => Some(inner),
            _ => self.inner.get_pre_tokenizer(),
        };
        let parts = guarded(|| {
            let mut parts = added.extract_and_normalize(self.inner.get_normalizer(), text);
            if let Some(pre_tokenizer) = pre_tokenizer {
                pre_tokenizer.pre_tokenize(&mut parts)?;
            }
            if let Some(texts) = cut_inside {
                parts.split(|_, part| Ok(cut_up(&part, texts)))?;
            }
            self.inner.get_model().tokenize_in_pretokenized(&mut parts, None)?;
            Ok(parts)
        })
        .map_err(|message| Error::Tokenization { message })?;
        for (_, _, tokens) in parts.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            out.extend(tokens.iter().flatten().map(|token| token.id));
        }
        Ok(())
    }

    /// Cuts a text at the special tokens written out in it.
    pub(super) fn special_fragments<'t>(&self, vocab: &Vocab, text: &'t str) -> Result<Vec<Fragment<'t>>> {
        let parts = guarded(|| {
            Ok(self.inner.get_added_vocabulary().extract_and_normalize(self.inner.get_normalizer(), text))
        })
        .map_err(|message| Error::Tokenization { message })?;
        let mut fragments = Vec::new();
        let mut text_start = 0;
        for (_, (start, end), tokens) in parts.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            let Some([token]) = tokens.as_deref() else { continue };
            if vocab.kind(token.id).is_special() {
                let before = text.get(text_start..start).unwrap_or_default();
                if !before.is_empty() {
                    fragments.push(Fragment::Text(before));
                }
                fragments.push(Fragment::Token(token.id));
                text_start = end;
            }
        }
        let rest = text.get(text_start..).unwrap_or_default();
        if !rest.is_empty() {
            fragments.push(Fragment::Text(rest));
        }
        Ok(fragments)
    }

    /// Decodes by the library's decoder.
    pub(super) fn decode(&self, ids: &[TokenId]) -> Result<String> {
        guarded(|| self.inner.decode(ids, false)).map_err(|message| Error::Tokenization { message })
    }
}

/// Cuts a part of a text behind the first character of every text that `texts` finds in it.
fn cut_up(part: &NormalizedString, texts: &TokenMatcher) -> Vec<NormalizedString> {
    let text = part.get();
    let behind =
        |(at, c): (usize, char)| (texts.at(text, at) == Occurrence::Whole).then_some(at + c.len_utf8());
    let mut cuts: Vec<usize> = std::iter::once(0).chain(text.char_indices().filter_map(behind)).collect();
    cuts.push(text.len());
    cuts.windows(2).filter_map(|cut| part.slice(Range::Normalized(cut[0]..cut[1]))).collect()
}

/// Runs a call of the library. It panics on some definitions that pass its own checks, which must
/// not end a server.
pub(super) fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => Err(panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|&message| message.to_owned()))
            .unwrap_or_else(|| "the tokenizers library stopped".to_owned())),
    }
}

fn definition(message: impl Into<String>) -> Error {
    Error::TokenizerDefinition { message: message.into() }
}

/// Texts, kinds and bytes of all tokens.
fn read_vocab(inner: &tokenizers::Tokenizer, joining: Joining) -> Result<Vocab> {
    let texts = inner.get_vocab(true);
    let added = inner.get_added_tokens_decoder();
    let Some(highest) = texts.values().chain(added.keys()).max().copied() else {
        return Err(definition("the vocabulary is empty"));
    };
    // Ids without a token cost memory: a definition may not make us pay for billions of them.
    let len = highest as usize + 1;
    if len > 64 * (texts.len() + 1024) {
        return Err(definition(format!("the highest id is {highest} in a vocabulary of {}", texts.len())));
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
        // The library decodes an added token in its normalized form.
        let normalized = inner.get_added_vocabulary().simple_id_to_token(id);
        let text = normalized.as_deref().unwrap_or(text);
        match joining {
            Joining::Pieces(_) => sentence_piece_bytes(text, kind, out),
            // Added tokens are decoded as all others: in the byte alphabet if they fit it.
            Joining::Bytes => out.extend(bytes::to_bytes(text).unwrap_or_else(|| text.as_bytes().to_vec())),
            Joining::Library => out.extend_from_slice(text.as_bytes()),
        }
    })
}

/// The tokens that the post-processor puts before and after every text.
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

/// How the tokens of a decoder join, if it is one of the common ones.
fn joining_of(decoder: Option<&DecoderWrapper>) -> Joining {
    match decoder {
        Some(DecoderWrapper::ByteLevel(_)) => Joining::Bytes,
        Some(DecoderWrapper::Metaspace(metaspace)) if is_usual(metaspace) => {
            Joining::Pieces(match metaspace.get_prepend_scheme() {
                // Without byte tokens this is `Keep`, but texts such as `<0x0A>` would be read as bytes.
                PrependScheme::Never => return Joining::Library,
                PrependScheme::First | PrependScheme::Always => Lead::StripFirstToken,
            })
        }
        Some(sequence @ DecoderWrapper::Sequence(_)) => joining_of_sequence(sequence),
        _ => Joining::Library,
    }
}

fn is_usual(metaspace: &Metaspace) -> bool {
    metaspace.get_replacement() == super::spm::SPACE_MARK
}

/// `SentencePiece` models have the decoders Replace `▁`, `ByteFallback`, Fuse and sometimes Strip,
/// in this order.
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

/// The pre-tokenizer for parts of a text behind the first: one that prepends a space to the first
/// part only does nothing to these.
fn for_later_parts(pre_tokenizer: &PreTokenizerWrapper) -> Option<PreTokenizerWrapper> {
    match pre_tokenizer {
        PreTokenizerWrapper::Metaspace(metaspace) if metaspace.prepend_scheme == PrependScheme::First => {
            let mut later = metaspace.clone();
            later.prepend_scheme = PrependScheme::Never;
            Some(later.into())
        }
        PreTokenizerWrapper::Sequence(sequence) => {
            let parts = sequence.as_ref();
            let later: Vec<_> =
                parts.iter().map(|part| for_later_parts(part).unwrap_or_else(|| part.clone())).collect();
            let changed = parts.iter().any(|part| for_later_parts(part).is_some());
            changed.then(|| tokenizers::pre_tokenizers::sequence::Sequence::new(later).into())
        }
        _ => None,
    }
}
