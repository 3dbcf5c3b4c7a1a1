//! Byte-level byte-pair encoding (GPT-2 and its many descendants). The pre-tokenizer splits a text
//! into pieces; each piece starts as single bytes, and neighbours are merged in the order of the
//! merge list.
//!
//! Source: Sennrich et al. 2016 (arXiv 1508.07909); the byte-level form is GPT-2's.

use std::collections::HashMap;

use super::{
    bytes,
    index::{NONE, PairHasherBuilder, TextIndex},
    merge::{Merge, Merger, Symbol},
    pre::PreTokenizer,
    vocab::{TokenKind, Vocab},
};
use crate::error::{Error, Result};
use crate::token::TokenId;

/// Merge list of a vocabulary: rank and result of every pair of tokens that may be merged.
#[derive(Debug, Clone)]
pub(crate) struct MergeTable(HashMap<u64, Merge, PairHasherBuilder>);

impl MergeTable {
    /// Reads the lines of a merge list: two token texts, separated by a space. `key` names the list
    /// in errors.
    ///
    /// # Errors
    /// [`Error::InvalidKey`] if a merge is malformed or names a text that is not in the vocabulary.
    pub(crate) fn new(vocab: &Vocab, lines: &[String], key: &str) -> Result<Self> {
        let mut merges = HashMap::with_capacity_and_hasher(lines.len(), PairHasherBuilder::default());
        let mut joined = String::new();
        for (rank, line) in lines.iter().enumerate() {
            let (left, right, id) =
                parse_merge(vocab, line, &mut joined).ok_or_else(|| Error::InvalidKey {
                    key: format!("{key}[{rank}]"),
                    found: format!("{line:?}"),
                    expected: "two tokens with a space between that join to a token".to_owned(),
                })?;
            let rank = u32::try_from(rank).map_err(|_| Error::InvalidKey {
                key: key.to_owned(),
                found: format!("{} merges", lines.len()),
                expected: "at most 4294967295 merges".to_owned(),
            })?;
            // Text must not merge into a special token, whatever the list says.
            if !vocab.kind(id).is_special() {
                merges.entry(pair_key(left, right)).or_insert(Merge { rank, id });
            }
        }
        Ok(Self(merges))
    }

    /// Merge of two neighbouring symbols, if any.
    pub(crate) fn get(&self, left: &Symbol, right: &Symbol) -> Option<Merge> {
        self.0.get(&pair_key(left.id, right.id)).copied()
    }
}

/// Encoder of one vocabulary.
#[derive(Debug, Clone)]
pub(crate) struct ByteLevelBpe {
    pre_tokenizer: PreTokenizer,
    /// Token of each single byte, or [`NONE`].
    byte_tokens: [TokenId; 256],
    merges: MergeTable,
    /// Tokens by their bytes, if a piece that is a token as a whole takes precedence over merges.
    whole_pieces: Option<TextIndex>,
}

impl ByteLevelBpe {
    /// Builds the encoder.
    pub(crate) fn new(vocab: &Vocab, merges: MergeTable, pre_tokenizer: PreTokenizer) -> Self {
        let mut byte_tokens = [NONE; 256];
        for (byte, slot) in (0..=255).zip(&mut byte_tokens) {
            *slot = vocab.id(bytes::char_of(byte).encode_utf8(&mut [0; 4])).unwrap_or(NONE);
        }
        let whole_pieces = pre_tokenizer
            .ignores_merges()
            .then(|| vocab.index_bytes(|id| matches!(vocab.kind(id), TokenKind::Normal | TokenKind::Unused)));
        Self { pre_tokenizer, byte_tokens, merges, whole_pieces }
    }

    /// Appends the tokens of a text without special tokens, whose length must fit `u32`.
    ///
    /// A byte without a token is dropped, as in all readers of such vocabularies: some lack bytes
    /// of rare characters, and their unknown token is the end marker, which must not come from
    /// plain text.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &str, out: &mut Vec<TokenId>) {
        let mut merger = Merger::default();
        let mut symbols = Vec::new();
        self.pre_tokenizer.split(text, &mut |piece| {
            let bytes = piece.as_bytes();
            if let Some(whole) = &self.whole_pieces
                && let Some(id) = whole.get(bytes, |id| vocab.bytes(id))
            {
                out.push(id);
                return;
            }
            symbols.clear();
            symbols.extend(
                (0..)
                    .zip(bytes)
                    .map(|(start, &byte)| Symbol { id: self.byte_tokens[usize::from(byte)], start, len: 1 })
                    .filter(|symbol| symbol.id != NONE),
            );
            merger.run(&mut symbols, |a, b| self.merges.get(a, b));
            out.extend(symbols.iter().map(|symbol| symbol.id));
        });
    }
}

fn pair_key(left: TokenId, right: TokenId) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// Parses a line of the merge list into left, right and merged token. The space is searched after
/// the first character, as in other readers. `joined` is a buffer.
fn parse_merge(vocab: &Vocab, line: &str, joined: &mut String) -> Option<(TokenId, TokenId, TokenId)> {
    let first = line.chars().next()?.len_utf8();
    let space = first + line[first..].find(' ')?;
    let (left, right) = (&line[..space], &line[space + 1..]);
    joined.clear();
    joined.push_str(left);
    joined.push_str(right);
    Some((vocab.id(left)?, vocab.id(right)?, vocab.id(joined)?))
}
