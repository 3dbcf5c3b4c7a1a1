//! Byte-pair encoding over characters (Gemma 4 and similar models). Spaces become `▁`, a text is
//! split at line ends only, each piece starts as single characters, and neighbours are merged in
//! the order of the merge list. Characters without a token become byte tokens.
//!
//! Source: Sennrich et al. 2016 (arXiv 1508.07909); `▁` and byte fallback as in `SentencePiece`.

use super::{
    bpe::MergeTable,
    index::NONE,
    merge::{Merger, Symbol},
    spm,
    vocab::Vocab,
};
use crate::token::TokenId;

/// Encoder of one vocabulary.
#[derive(Debug, Clone)]
pub(crate) struct CharacterBpe {
    merges: MergeTable,
    /// Token of each byte, or [`NONE`].
    byte_tokens: [TokenId; 256],
}

impl CharacterBpe {
    /// Builds the encoder.
    pub(crate) fn new(vocab: &Vocab, merges: MergeTable) -> Self {
        Self { merges, byte_tokens: spm::byte_tokens(vocab) }
    }

    /// Appends the tokens of a text without special tokens. Three times its length must fit `u32`.
    ///
    /// A byte without a token is dropped, as in all readers of such vocabularies.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &str, out: &mut Vec<TokenId>) {
        let mut merger = Merger::default();
        let mut symbols = Vec::new();
        let marked = spm::mark_spaces(text, false);
        for piece in line_ends_apart(&marked) {
            // A run of line ends that is a token is not built by merges.
            if let Some(id) = vocab.id(piece).filter(|_| piece.starts_with('\n')) {
                out.push(id);
                continue;
            }
            symbols.clear();
            symbols.extend(piece.char_indices().map(|(start, c)| {
                let text = &piece[start..start + c.len_utf8()];
                Symbol {
                    id: spm::piece(vocab, text).unwrap_or(NONE),
                    start: start as u32,
                    len: text.len() as u32,
                }
            }));
            merger.run(&mut symbols, |a, b| self.merges.get(a, b));
            for symbol in &symbols {
                if symbol.id == NONE {
                    let bytes = &piece.as_bytes()[symbol.start as usize..][..symbol.len as usize];
                    let tokens = bytes.iter().map(|&byte| self.byte_tokens[usize::from(byte)]);
                    out.extend(tokens.filter(|&id| id != NONE));
                } else {
                    out.push(symbol.id);
                }
            }
        }
    }
}

/// Splits a text into runs of line ends and the text between them.
fn line_ends_apart(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let is_end = rest.starts_with('\n');
        let len = rest.find(|c| (c == '\n') != is_end).unwrap_or(rest.len());
        let (piece, after) = rest.split_at(len);
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_are_pieces_of_their_own() {
        let pieces: Vec<&str> = line_ends_apart("a▁b\n\n▁c\r\n").collect();
        assert_eq!(pieces, ["a▁b", "\n\n", "▁c\r", "\n"]);
        assert_eq!(line_ends_apart("").count(), 0);
    }
}
