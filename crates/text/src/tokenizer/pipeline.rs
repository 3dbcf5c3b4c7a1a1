//! Tokenizer: special tokens around and within a text, the encoder of its vocabulary, and decoding.

use std::ops::Range;

use super::{
    bpe::ByteLevelBpe,
    character_bpe::CharacterBpe,
    decode::{self, Joining},
    end_of_generation,
    library::Library,
    special::{Fragment, TokenMatcher},
    spm::SentencePieceBpe,
    unigram::Unigram,
    vocab::{TokenKind, Vocab},
    wordpiece::WordPiece,
};
use crate::error::{Error, Result};
use crate::token::TokenId;

/// Options of [`Tokenizer::encode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Add BOS and EOS as the model's rules say.
    pub add_special: bool,
    /// Parse special tokens written out in the text, such as `<|im_end|>`; otherwise they are plain
    /// text. User-defined tokens that are not special are found either way.
    pub parse_special: bool,
}

impl Default for EncodeOptions {
    /// Both on, as for a prompt.
    fn default() -> Self {
        Self { add_special: true, parse_special: true }
    }
}

/// Maximum bytes of text per call: offsets are 32-bit, and `▁` is three times as long as a space.
const LONGEST_TEXT: usize = u32::MAX as usize / 4;

/// A tokenizer. Immutable: one value serves all threads.
///
/// ```no_run
/// use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};
///
/// let tokenizer = Tokenizer::from_file("tokenizer.json".as_ref())?;
/// let ids = tokenizer.encode("Hello!", EncodeOptions::default())?;
/// assert_eq!(tokenizer.decode(&ids, true)?, "Hello!");
/// # Ok::<(), ruvllm_text::Error>(())
/// ```
#[derive(Debug)]
pub struct Tokenizer {
    vocab: Vocab,
    backend: Backend,
    joining: Joining,
    specials: Specials,
    /// End-of-generation tokens, ascending.
    ends: Vec<TokenId>,
    /// Matcher of special and user-defined tokens.
    any_token: TokenMatcher,
    /// Matcher of special tokens.
    special_token: TokenMatcher,
    /// Matcher of user-defined tokens.
    plain_token: TokenMatcher,
}

/// Encoder of a vocabulary.
#[derive(Debug)]
pub(super) enum Backend {
    ByteLevel(Box<ByteLevelBpe>),
    Characters(Box<CharacterBpe>),
    SentencePiece(Box<SentencePieceBpe>),
    Unigram(Box<Unigram>),
    WordPiece(Box<WordPiece>),
    Library(Box<Library>),
}

/// Special tokens that the model's files name.
#[derive(Debug)]
pub(super) struct Specials {
    pub(super) bos: Option<TokenId>,
    pub(super) eos: Option<TokenId>,
    /// Tokens before every text.
    pub(super) prefix: Vec<TokenId>,
    /// Tokens after every text.
    pub(super) suffix: Vec<TokenId>,
    /// `None`: the files have no rule for pairs of texts.
    pub(super) pairs: Option<PairRules>,
    /// Tokens that the files name as end of generation.
    pub(super) ends: Vec<TokenId>,
    /// True if white space after a special token belongs to it.
    pub(super) take_space_after: bool,
}

/// Rules of pairs: tokens between the two texts, and the type of the second.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PairRules {
    /// Tokens after the first text.
    pub(super) between: Vec<TokenId>,
    /// True if the second text and the tokens behind it have token type 1.
    pub(super) second_has_type: bool,
}

impl Tokenizer {
    pub(super) fn assemble(vocab: Vocab, backend: Backend, joining: Joining, specials: Specials) -> Self {
        let ends = end_of_generation::collect(&vocab, &specials.ends);
        let matcher = |keep: fn(TokenKind) -> bool| {
            TokenMatcher::new(vocab.ids().filter(|&id| keep(vocab.kind(id))).map(|id| {
                let text = vocab.text(id);
                let is_plain_marker = matches!(text, "<unk>" | "<s>" | "<|endoftext|>");
                (text, id, specials.take_space_after && !is_plain_marker)
            }))
        };
        let any_token = matcher(|kind| kind.is_special() || kind == TokenKind::UserDefined);
        let special_token = matcher(TokenKind::is_special);
        let plain_token = matcher(|kind| kind == TokenKind::UserDefined);
        Self { vocab, backend, joining, specials, ends, any_token, special_token, plain_token }
    }

    /// Sets the BOS and EOS tokens of a configuration.
    pub(super) fn name_specials(&mut self, bos: Option<TokenId>, eos: Option<TokenId>) {
        self.specials.bos = bos.or(self.specials.bos);
        self.specials.eos = eos.or(self.specials.eos);
        for id in [bos, eos].into_iter().flatten() {
            if self.vocab.kind(id) == TokenKind::Normal {
                self.vocab.set_kind(id, TokenKind::Control);
            }
        }
        self.specials.ends.extend(eos);
        self.ends = end_of_generation::collect(&self.vocab, &self.specials.ends);
    }

    /// Encodes a text to token ids.
    ///
    /// # Errors
    /// [`Error::TextTooLong`] above 1 GiB; [`Error::Unencodable`] if a `SentencePiece` vocabulary
    /// has no token for a character or its bytes, and no unknown token; [`Error::Tokenization`] if
    /// the `tokenizers` library fails.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<TokenId>> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        if options.add_special {
            ids.extend_from_slice(&self.specials.prefix);
        }
        self.encode_part(text, options.parse_special, &mut true, &mut ids)?;
        if options.add_special {
            ids.extend_from_slice(&self.specials.suffix);
        }
        Ok(ids)
    }

    /// Encodes a text with default options, truncated to `limit` ids. The tokens that the model's
    /// rules add around every text are kept. The flag is true if the text was truncated.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_at_most(&self, text: &str, limit: usize) -> Result<(Vec<TokenId>, bool)> {
        let mut ids = self.encode(text, EncodeOptions::default())?;
        let is_longer = ids.len() > limit;
        if is_longer {
            let suffix = &self.specials.suffix;
            ids.truncate(limit.saturating_sub(suffix.len()));
            ids.extend_from_slice(suffix);
        }
        Ok((ids, is_longer))
    }

    /// Number of tokens that the model's rules add around every text.
    #[must_use]
    pub fn tokens_around(&self) -> usize {
        self.specials.prefix.len() + self.specials.suffix.len()
    }

    /// Appends the tokens of a part of a text. `after_token` is true if the part is the first or
    /// follows a special token, and is updated for the next part.
    pub(crate) fn encode_part(
        &self,
        text: &str,
        parse_special: bool,
        after_token: &mut bool,
        out: &mut Vec<TokenId>,
    ) -> Result<()> {
        if text.len() > LONGEST_TEXT {
            return Err(Error::TextTooLong { bytes: text.len(), limit: LONGEST_TEXT });
        }
        if let Backend::Library(library) = &self.backend {
            return if parse_special {
                library.encode(text, *after_token, out)
            } else {
                library.encode_plain(&self.vocab, &self.special_token, text, *after_token, out)
            };
        }
        let matcher = if parse_special { &self.any_token } else { &self.plain_token };
        for fragment in matcher.fragments(text) {
            match fragment {
                Fragment::Token(id) => {
                    out.push(id);
                    *after_token = true;
                }
                Fragment::Text(text) => {
                    match &self.backend {
                        Backend::ByteLevel(bpe) => bpe.encode(&self.vocab, text, out),
                        Backend::Characters(bpe) => bpe.encode(&self.vocab, text, out),
                        Backend::SentencePiece(spm) => spm.encode(&self.vocab, text, *after_token, out)?,
                        Backend::Unigram(unigram) => unigram.encode(&self.vocab, text, *after_token, out)?,
                        Backend::WordPiece(pieces) => pieces.encode(&self.vocab, text, out)?,
                        Backend::Library(_) => {}
                    }
                    *after_token = false;
                }
            }
        }
        Ok(())
    }

    /// Appends the tokens of a text up to its last special token; returns the end of that.
    pub(crate) fn encode_marked(
        &self,
        text: &str,
        markers: Vec<(Range<usize>, TokenId)>,
        ids: &mut Vec<TokenId>,
    ) -> Result<usize> {
        let mut at = 0;
        for (place, id) in markers {
            self.encode_between(&text[at..place.start], at == 0, ids)?;
            ids.push(id);
            at = place.end;
        }
        Ok(at)
    }

    /// Appends the tokens of the text between two special tokens.
    pub(crate) fn encode_between(&self, text: &str, is_first: bool, ids: &mut Vec<TokenId>) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        // For the library only the start of the text counts as its first part; the other encoders
        // depend on what came before.
        let mut after_token = is_first || !self.is_run_by_library();
        self.encode_part(text, false, &mut after_token, ids)
    }

    /// Decodes tokens to text; invalid UTF-8 becomes U+FFFD. `skip_special` leaves special tokens
    /// out.
    ///
    /// # Errors
    /// [`Error::UnknownTokenId`] if an id is not in the vocabulary.
    pub fn decode(&self, ids: &[TokenId], skip_special: bool) -> Result<String> {
        for &id in ids {
            self.vocab.known_kind(id)?;
        }
        let kept = ids.iter().copied().filter(|&id| !skip_special || !self.vocab.kind(id).is_special());
        match &self.backend {
            Backend::Library(library) if self.joining == Joining::Library => {
                library.decode(&kept.collect::<Vec<_>>())
            }
            _ => Ok(decode::decode(&self.vocab, self.joining, kept)),
        }
    }

    /// Number of ids: the highest one plus one.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// BOS token, if the files name one.
    #[must_use]
    pub fn bos(&self) -> Option<TokenId> {
        self.specials.bos
    }

    /// EOS token, if the files name one. Other tokens may end generation too, see
    /// [`is_end_of_generation`](Self::is_end_of_generation).
    #[must_use]
    pub fn eos(&self) -> Option<TokenId> {
        self.specials.eos
    }

    /// True if [`encode`](Self::encode) adds a BOS token when it adds special tokens.
    #[must_use]
    pub fn adds_bos(&self) -> bool {
        self.specials.bos.is_some_and(|bos| self.specials.prefix.contains(&bos))
    }

    /// True if the token ends an answer (EOS, end of turn).
    #[must_use]
    pub fn is_end_of_generation(&self, id: TokenId) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// All end-of-generation tokens, ascending.
    #[must_use]
    pub fn end_of_generation(&self) -> &[TokenId] {
        &self.ends
    }

    /// Looks up a token by its text in the vocabulary, for example `<|im_end|>` or `Ġthe`.
    #[must_use]
    pub fn token_to_id(&self, text: &str) -> Option<TokenId> {
        self.vocab.id(text)
    }

    /// Text of a token in the vocabulary. Its bytes in decoded text are
    /// [`token_bytes`](Self::token_bytes).
    #[must_use]
    pub fn id_to_token(&self, id: TokenId) -> Option<String> {
        self.vocab.known_kind(id).ok().map(|_| self.vocab.text(id).to_owned())
    }

    /// True if a token is special (a marker, not text). False for ids outside the vocabulary.
    #[must_use]
    pub fn is_special(&self, id: TokenId) -> bool {
        self.vocab.kind(id).is_special()
    }

    /// Bytes of a token in decoded text; of a special token, its name. They need not be whole
    /// characters. `None` for ids outside the vocabulary.
    #[must_use]
    pub fn token_bytes(&self, id: TokenId) -> Option<Vec<u8>> {
        self.vocab.known_kind(id).ok().map(|_| self.vocab.bytes(id).to_vec())
    }

    /// Highest id of a token that is not special, plus one. Special tokens may have higher ids:
    /// some models share a tokenizer with larger relatives.
    #[must_use]
    pub fn text_vocab_size(&self) -> usize {
        let is_text = |&id: &TokenId| self.vocab.known_kind(id).is_ok_and(|kind| !kind.is_special());
        (0..self.vocab.len() as TokenId).rev().find(is_text).map_or(0, |last| last as usize + 1)
    }

    /// Adds end-of-generation tokens, as a `generation_config.json` lists them. Ids outside the
    /// vocabulary are ignored: models share such files.
    #[must_use]
    pub fn with_end_tokens(mut self, ids: &[TokenId]) -> Self {
        self.specials.ends.extend(ids.iter().filter(|&&id| self.vocab.known_kind(id).is_ok()));
        self.ends = end_of_generation::collect(&self.vocab, &self.specials.ends);
        self
    }

    pub(super) fn vocab(&self) -> &Vocab {
        &self.vocab
    }

    pub(super) fn joining(&self) -> Joining {
        self.joining
    }

    /// Tokens before every text.
    pub(crate) fn prefix(&self) -> &[TokenId] {
        &self.specials.prefix
    }

    /// Tokens after every text.
    pub(super) fn suffix(&self) -> &[TokenId] {
        &self.specials.suffix
    }

    pub(super) fn pair_rules(&self) -> Option<&PairRules> {
        self.specials.pairs.as_ref()
    }

    /// True if the `tokenizers` library encodes.
    pub(crate) fn is_run_by_library(&self) -> bool {
        matches!(self.backend, Backend::Library(_))
    }

    /// Finds special tokens written out within parts of a text, with their byte ranges. They are in
    /// order, without overlap; white space that belongs to a token is included.
    pub(crate) fn markers(&self, text: &str, parts: &[Range<usize>]) -> Result<Vec<(Range<usize>, TokenId)>> {
        let mut found = Vec::new();
        for part in parts {
            let Range { start, end } = *part;
            let text = text.get(start..end).unwrap_or_default();
            let before = found.len();
            match &self.backend {
                Backend::Library(library) => library.markers(&self.vocab, text, &mut found)?,
                _ => self.special_token.markers(text, &mut found),
            }
            for (place, _) in &mut found[before..] {
                *place = place.start + start..place.end + start;
            }
        }
        Ok(found)
    }
}
