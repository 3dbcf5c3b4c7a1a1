//! `SentencePiece` byte-pair encoding (Llama 2, Mistral, Phi-3, Gemma). Spaces become `▁`, a text
//! starts as single characters, and the neighbours whose merged text is the token of the best score
//! are merged first. Characters without a token become byte tokens.
//!
//! Source: Kudo and Richardson 2018 (arXiv 1808.06226); the order of merges (score, then leftmost)
//! is that of the `SentencePiece` library.

use super::{
    index::NONE,
    merge::{Merge, Merger, Symbol},
    vocab::{TokenKind, Vocab},
};
use crate::error::{Error, Result};
use crate::token::TokenId;

/// Character for a space in token texts.
pub(crate) const SPACE_MARK: char = '▁';

/// Encoder of one vocabulary.
#[derive(Debug, Clone)]
pub(crate) struct SentencePieceBpe {
    /// Merge rank of each token, lower first: scores in descending order.
    ranks: Vec<u32>,
    fallback: Fallback,
    /// Length of the longest text that a merge can give, in bytes.
    longest: usize,
    /// True if no token has a `▁` after another character. A text can then be split before each run
    /// of `▁` without losing a merge.
    cuts_before_spaces: bool,
    /// True if a space is prepended to a text, and to text after a special token.
    add_space_prefix: bool,
}

impl SentencePieceBpe {
    /// Builds the encoder; `scores` has one number per token, not NaN.
    pub(crate) fn new(
        vocab: &Vocab,
        scores: &[f32],
        unknown: Option<TokenId>,
        add_space_prefix: bool,
    ) -> Self {
        let pieces = || vocab.ids().filter(|&id| is_piece(vocab.kind(id))).map(|id| vocab.text(id));
        Self {
            ranks: scores.iter().map(|&score| descending(score)).collect(),
            fallback: Fallback { byte_tokens: byte_tokens(vocab), unknown },
            longest: pieces().map(str::len).max().unwrap_or(0),
            cuts_before_spaces: no_mark_inside(pieces()),
            add_space_prefix,
        }
    }

    /// Appends the tokens of a text without special tokens, three times whose length must fit
    /// `u32`. `after_token`: it starts the input or follows a special token.
    ///
    /// # Errors
    /// [`Error::Unencodable`] if a character has no token, its bytes have none, and there is no
    /// unknown token.
    pub(crate) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        after_token: bool,
        out: &mut Vec<TokenId>,
    ) -> Result<()> {
        let marked = mark_spaces(text, after_token && self.add_space_prefix);
        let mut merger = Merger::default();
        let mut symbols = Vec::new();
        let mut unknown_open = false;
        for part in words(&marked, self.cuts_before_spaces) {
            self.encode_part(vocab, part, &mut merger, &mut symbols, &mut unknown_open, out)?;
        }
        Ok(())
    }

    fn encode_part(
        &self,
        vocab: &Vocab,
        part: &str,
        merger: &mut Merger,
        symbols: &mut Vec<Symbol>,
        unknown_open: &mut bool,
        out: &mut Vec<TokenId>,
    ) -> Result<()> {
        let piece_at = |start: u32, len: u32| {
            let len = len as usize;
            if len > self.longest {
                return None;
            }
            piece(vocab, &part[start as usize..][..len])
        };
        symbols.clear();
        symbols.extend(part.char_indices().map(|(start, c)| {
            let (start, len) = (start as u32, c.len_utf8() as u32);
            Symbol { id: piece_at(start, len).unwrap_or(NONE), start, len }
        }));
        merger.run(symbols, |a, b| {
            piece_at(a.start, a.len + b.len).map(|id| Merge { rank: self.ranks[id as usize], id })
        });
        for symbol in symbols {
            if symbol.id == NONE {
                let bytes = &part.as_bytes()[symbol.start as usize..][..symbol.len as usize];
                self.fallback.encode(bytes, unknown_open, out)?;
            } else {
                *unknown_open = false;
                out.push(symbol.id);
            }
        }
        Ok(())
    }
}

/// Fallback for characters without a token.
#[derive(Debug, Clone)]
pub(crate) struct Fallback {
    /// Token of each byte, or [`NONE`].
    pub(crate) byte_tokens: [TokenId; 256],
    pub(crate) unknown: Option<TokenId>,
}

impl Fallback {
    /// Appends the tokens of a character without its own: its bytes, or one unknown token per run.
    /// `unknown_open` is true within such a run.
    ///
    /// # Errors
    /// [`Error::Unencodable`] if its bytes have no tokens either and there is no unknown token.
    pub(crate) fn encode(&self, bytes: &[u8], unknown_open: &mut bool, out: &mut Vec<TokenId>) -> Result<()> {
        let missing = bytes.iter().find(|&&byte| self.byte_tokens[usize::from(byte)] == NONE);
        match (missing, self.unknown) {
            (None, _) => {
                *unknown_open = false;
                out.extend(bytes.iter().map(|&byte| self.byte_tokens[usize::from(byte)]));
            }
            (Some(_), Some(unknown)) => {
                if !std::mem::replace(unknown_open, true) {
                    out.push(unknown);
                }
            }
            (Some(&byte), None) => return Err(Error::Unencodable { byte }),
        }
        Ok(())
    }
}

/// Token of each byte (`<0x00>` to `<0xFF>`), or [`NONE`]; of several the first.
pub(crate) fn byte_tokens(vocab: &Vocab) -> [TokenId; 256] {
    let mut tokens = [NONE; 256];
    for id in vocab.ids() {
        if let TokenKind::Byte(byte) = vocab.kind(id) {
            let slot = &mut tokens[usize::from(byte)];
            *slot = (*slot).min(id);
        }
    }
    tokens
}

/// Replaces spaces by `▁`; with `prefix` one more is prepended.
pub(crate) fn mark_spaces(text: &str, prefix: bool) -> String {
    let mut marked = String::with_capacity(text.len() + text.len() / 2 + SPACE_MARK.len_utf8());
    marked.extend(prefix.then_some(SPACE_MARK));
    for (i, part) in text.split(' ').enumerate() {
        marked.extend((i > 0).then_some(SPACE_MARK));
        marked.push_str(part);
    }
    marked
}

/// True if no text has a `▁` after another character, so that texts can be split before each run of
/// `▁`.
pub(crate) fn no_mark_inside<'t>(mut pieces: impl Iterator<Item = &'t str>) -> bool {
    pieces
        .all(|text| !text.chars().zip(text.chars().skip(1)).any(|(a, b)| a != SPACE_MARK && b == SPACE_MARK))
}

/// Splits a marked text before each run of `▁`; without `cut` returns it whole.
pub(crate) fn words(marked: &str, cut: bool) -> impl Iterator<Item = &str> {
    let mut rest = marked;
    std::iter::from_fn(move || {
        let lead = rest.len() - rest.trim_start_matches(SPACE_MARK).len();
        let end = rest[lead..].find(SPACE_MARK).filter(|_| cut).map_or(rest.len(), |at| lead + at);
        let (word, after) = rest.split_at(end);
        rest = after;
        (!word.is_empty()).then_some(word)
    })
}

/// Token of a text, if merges may produce it.
pub(crate) fn piece(vocab: &Vocab, text: &str) -> Option<TokenId> {
    vocab.id(text).filter(|&id| is_piece(vocab.kind(id)))
}

/// True if merges may produce tokens of this kind. Special and byte tokens come from other rules
/// only.
pub(crate) fn is_piece(kind: TokenKind) -> bool {
    matches!(kind, TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused)
}

/// Maps scores to integers, the highest score to the lowest number.
fn descending(score: f32) -> u32 {
    // Adding zero turns -0 into +0, so that the two tie. Bits of positive floats ascend, those of
    // negative ones descend.
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 0 { 0x7FFF_FFFF - bits } else { bits }
}

/// Appends the bytes of a `SentencePiece` token.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_scores_come_first() {
        let scores = [f32::MAX, 3.5, 1e-30, 0.0, -1e-30, -1.0, -1000.0, f32::MIN];
        let ranks: Vec<u32> = scores.iter().map(|&score| descending(score)).collect();
        assert!(ranks.is_sorted(), "{ranks:?}");
        assert_eq!(descending(0.0), descending(-0.0));
    }

    #[test]
    fn words_begin_with_their_spaces() {
        let cut = |text| words(text, true).collect::<Vec<_>>();
        assert_eq!(cut("▁a▁▁b"), ["▁a", "▁▁b"]);
        assert_eq!(cut("a▁"), ["a", "▁"]);
        assert_eq!(cut("▁▁"), ["▁▁"]);
        assert!(cut("").is_empty());
        assert_eq!(words("a▁b", false).collect::<Vec<_>>(), ["a▁b"]);
    }
}
