//! Vocabulary: texts, bytes and kinds of all tokens in a few flat buffers.

use super::index::{NONE, TextIndex};
use crate::error::{Error, Result};
use crate::token::TokenId;

/// Role of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// Text.
    Normal,
    /// Token for text that has no other.
    Unknown,
    /// Special token such as BOS; never part of plain text.
    Control,
    /// Text that is matched before anything else and never split.
    UserDefined,
    /// In the vocabulary but unused by the model.
    Unused,
    /// One byte of a character that has no token (`SentencePiece` byte fallback).
    Byte(u8),
    /// An id without a token.
    Absent,
}

impl TokenKind {
    /// True for special tokens, which `skip_special` leaves out and merges never produce.
    pub(crate) fn is_special(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }
}

/// All tokens of a tokenizer, by id.
#[derive(Debug, Clone)]
pub(crate) struct Vocab {
    /// Token texts as in the file, concatenated.
    text: String,
    /// Ends of the texts in `text`, one per token.
    text_ends: Vec<u32>,
    /// Bytes of the tokens in decoded text, concatenated.
    bytes: Vec<u8>,
    /// Ends of the tokens' bytes in `bytes`.
    byte_ends: Vec<u32>,
    kinds: Vec<TokenKind>,
    by_text: TextIndex,
}

impl Vocab {
    /// Builds the vocabulary from token texts and kinds, in the order of their ids. `bytes_of`
    /// appends the decoded bytes of a token with this id, text and kind.
    ///
    /// # Errors
    /// [`Error::TokenizerDefinition`] if the texts exceed 4 GiB in all.
    pub(crate) fn new<'t>(
        tokens: impl ExactSizeIterator<Item = (&'t str, TokenKind)>,
        bytes_of: impl Fn(TokenId, &str, TokenKind, &mut Vec<u8>),
    ) -> Result<Self> {
        let n = tokens.len();
        if n >= NONE as usize {
            return Err(too_large(n));
        }
        let (mut text, mut bytes) = (String::new(), Vec::new());
        let (mut text_ends, mut byte_ends) = (Vec::with_capacity(n), Vec::with_capacity(n));
        let mut kinds = Vec::with_capacity(n);
        for (id, (token, kind)) in (0..).zip(tokens) {
            text.push_str(token);
            bytes_of(id, token, kind, &mut bytes);
            text_ends.push(u32::try_from(text.len()).map_err(|_| too_large(n))?);
            byte_ends.push(u32::try_from(bytes.len()).map_err(|_| too_large(n))?);
            kinds.push(kind);
        }
        let named: Vec<TokenId> =
            (0..n as TokenId).filter(|&id| !slice(&text_ends, id as usize).is_empty()).collect();
        let text_of = |id: TokenId| &text.as_bytes()[slice(&text_ends, id as usize)];
        let by_text = TextIndex::build(named.into_iter(), text_of);
        Ok(Self { text, text_ends, bytes, byte_ends, kinds, by_text })
    }

    /// Number of ids, with or without a token.
    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }

    /// Kind of a token; [`TokenKind::Absent`] beyond the vocabulary.
    pub(crate) fn kind(&self, id: TokenId) -> TokenKind {
        self.kinds.get(id as usize).copied().unwrap_or(TokenKind::Absent)
    }

    /// Kind of a token that must exist.
    ///
    /// # Errors
    /// [`Error::UnknownTokenId`] if it does not.
    pub(crate) fn known_kind(&self, id: TokenId) -> Result<TokenKind> {
        match self.kind(id) {
            TokenKind::Absent => Err(Error::UnknownTokenId { id, vocab_size: self.len() }),
            kind => Ok(kind),
        }
    }

    /// Text of a token as in the file. Empty for an absent id.
    pub(crate) fn text(&self, id: TokenId) -> &str {
        if (id as usize) < self.len() { &self.text[slice(&self.text_ends, id as usize)] } else { "" }
    }

    /// Bytes of a token in decoded text. Empty for an absent id.
    pub(crate) fn bytes(&self, id: TokenId) -> &[u8] {
        if (id as usize) < self.len() { &self.bytes[slice(&self.byte_ends, id as usize)] } else { &[] }
    }

    /// Looks up the id of a token text.
    pub(crate) fn id(&self, text: &str) -> Option<TokenId> {
        self.by_text.get(text.as_bytes(), |id| self.text(id).as_bytes())
    }

    /// All ids that have a token.
    pub(crate) fn ids(&self) -> impl Iterator<Item = TokenId> + '_ {
        (0..self.len() as TokenId).filter(|&id| self.kind(id) != TokenKind::Absent)
    }

    /// Builds an index by decoded bytes of the tokens that `keep` accepts.
    pub(crate) fn index_bytes(&self, keep: impl Fn(TokenId) -> bool) -> TextIndex {
        let ids: Vec<TokenId> = self.ids().filter(|&id| !self.bytes(id).is_empty() && keep(id)).collect();
        TextIndex::build(ids.into_iter(), |id| self.bytes(id))
    }

    /// Changes the kind of a token.
    pub(crate) fn set_kind(&mut self, id: TokenId, kind: TokenKind) {
        if let Some(slot) = self.kinds.get_mut(id as usize) {
            *slot = kind;
        }
    }
}

/// Range of element `i` in a buffer with the given ends.
fn slice(ends: &[u32], i: usize) -> std::ops::Range<usize> {
    let start = if i == 0 { 0 } else { ends[i - 1] as usize };
    start..ends[i] as usize
}

fn too_large(n_tokens: usize) -> Error {
    Error::TokenizerDefinition { message: format!("a vocabulary of {n_tokens} tokens is larger than 4 GiB") }
}
