//! `SentencePiece` byte-pair encoding (Llama 2, Mistral, Phi-3, Gemma): spaces become `▁`, a text
//! starts as single characters, and the neighbours whose joined text is the token of the best score
//! are joined first. Characters without a token become byte tokens.
//!
//! Source: Kudo and Richardson 2018 (arXiv 1808.06226); the order of joining (score, then leftmost)
//! is that of the `SentencePiece` library.

use super::{
    index::NONE,
    merge::{Merge, Merger, Symbol},
    vocab::{TokenKind, Vocab},
};
use crate::{Error, Result, TokenId};

/// Stands for a space in token texts.
pub(crate) const SPACE_MARK: char = '▁';

/// Encoder of one vocabulary.
#[derive(Debug, Clone)]
pub(crate) struct SentencePieceBpe {
    /// Order of joining of each token, lower first: scores from high to low.
    ranks: Vec<u32>,
    /// The token of each byte, or [`NONE`].
    byte_tokens: [TokenId; 256],
    unknown: Option<TokenId>,
    /// Length of the longest text that joining can give, in bytes.
    longest: usize,
    /// No token has a `▁` behind another character, so a text can be cut before each run of `▁` and
    /// no join is lost.
    cuts_before_spaces: bool,
    /// A text, and each text after a token written out, begins with a space of its own.
    add_space_prefix: bool,
}

impl SentencePieceBpe {
    /// Builds the encoder; `scores` has one finite number per token.
    pub(crate) fn new(
        vocab: &Vocab,
        scores: &[f32],
        unknown: Option<TokenId>,
        add_space_prefix: bool,
    ) -> Self {
        let mut byte_tokens = [NONE; 256];
        let (mut longest, mut cuts_before_spaces) = (0, true);
        for id in vocab.ids() {
            if let TokenKind::Byte(byte) = vocab.kind(id) {
                let slot = &mut byte_tokens[usize::from(byte)];
                *slot = (*slot).min(id);
            } else if is_piece(vocab.kind(id)) {
                let text = vocab.text(id);
                longest = longest.max(text.len());
                cuts_before_spaces &=
                    !text.chars().zip(text.chars().skip(1)).any(|(a, b)| a != SPACE_MARK && b == SPACE_MARK);
            }
        }
        let ranks = scores.iter().map(|&score| descending(score)).collect();
        Self { ranks, byte_tokens, unknown, longest, cuts_before_spaces, add_space_prefix }
    }

    /// Appends the tokens of a text without special tokens. `after_token` says that it starts the
    /// input or follows a token written out. Three times its length must fit `u32`.
    ///
    /// # Errors
    /// [`Error::Unencodable`] if a character has no token, its bytes have none, and there is no
    /// unknown-token.
    pub(crate) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        after_token: bool,
        out: &mut Vec<TokenId>,
    ) -> Result<()> {
        let mut marked = String::with_capacity(text.len() + text.len() / 2 + SPACE_MARK.len_utf8());
        if after_token && self.add_space_prefix {
            marked.push(SPACE_MARK);
        }
        for (i, part) in text.split(' ').enumerate() {
            if i > 0 {
                marked.push(SPACE_MARK);
            }
            marked.push_str(part);
        }
        let mut merger = Merger::default();
        let mut symbols = Vec::new();
        let mut start = 0;
        let mut previous = SPACE_MARK;
        let mut unknown_open = false;
        if self.cuts_before_spaces {
            for (at, c) in marked.char_indices() {
                if c == SPACE_MARK && previous != SPACE_MARK {
                    self.encode_part(
                        vocab,
                        &marked[start..at],
                        &mut merger,
                        &mut symbols,
                        &mut unknown_open,
                        out,
                    )?;
                    start = at;
                }
                previous = c;
            }
        }
        self.encode_part(vocab, &marked[start..], &mut merger, &mut symbols, &mut unknown_open, out)
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
        let piece = |start: u32, len: u32| {
            let len = len as usize;
            if len > self.longest {
                return None;
            }
            vocab.id(&part[start as usize..][..len]).filter(|&id| is_piece(vocab.kind(id)))
        };
        symbols.clear();
        symbols.extend(part.char_indices().map(|(start, c)| {
            let (start, len) = (start as u32, c.len_utf8() as u32);
            Symbol { id: piece(start, len).unwrap_or(NONE), start, len }
        }));
        merger.run(symbols, |a, b| {
            piece(a.start, a.len + b.len).map(|id| Merge { rank: self.ranks[id as usize], id })
        });
        for symbol in symbols {
            if symbol.id == NONE {
                let bytes = &part.as_bytes()[symbol.start as usize..][..symbol.len as usize];
                self.fall_back(bytes, unknown_open, out)?;
            } else {
                *unknown_open = false;
                out.push(symbol.id);
            }
        }
        Ok(())
    }

    /// The tokens of a character that has none of its own: its bytes, or one unknown-token for a run of such
    /// characters.
    fn fall_back(&self, bytes: &[u8], unknown_open: &mut bool, out: &mut Vec<TokenId>) -> Result<()> {
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

/// Whether joining may give tokens of this kind. Markers and bytes only come about by other rules,
/// whatever the text says.
fn is_piece(kind: TokenKind) -> bool {
    matches!(kind, TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused)
}

/// Maps scores to integers, the highest score to the lowest number.
fn descending(score: f32) -> u32 {
    // Adding zero makes -0 a +0, so that the two tie. For other numbers the bits of positive floats
    // ascend and those of negative ones descend.
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 0 { 0x7FFF_FFFF - bits } else { bits }
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
}
