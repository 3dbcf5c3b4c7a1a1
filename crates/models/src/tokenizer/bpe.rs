//! Byte-level byte-pair encoding (GPT-2 and its many descendants): a text is cut by the
//! pre-tokenizer, each piece starts as single bytes, and neighbours are joined in the order of the
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
use crate::{Error, Result, TokenId};

/// Encoder of one vocabulary.
#[derive(Debug, Clone)]
pub(crate) struct ByteLevelBpe {
    pre_tokenizer: PreTokenizer,
    /// The token of each single byte, or [`NONE`].
    byte_tokens: [TokenId; 256],
    /// Rank and result of a pair of tokens, see [`pair_key`].
    merges: HashMap<u64, Merge, PairHasherBuilder>,
    /// Tokens by the bytes they stand for, when a piece that is a token as a whole is taken as it is.
    whole_pieces: Option<TextIndex>,
}

impl ByteLevelBpe {
    /// Builds the encoder. `merges` are the lines of the merge list, two token texts with a space between.
    ///
    /// # Errors
    /// [`Error::InvalidKey`] if a merge is malformed or names a text that is not in the vocabulary.
    pub(crate) fn new(
        vocab: &Vocab,
        merge_lines: &[String],
        merges_key: &str,
        pre_tokenizer: PreTokenizer,
    ) -> Result<Self> {
        let mut byte_tokens = [NONE; 256];
        for (byte, slot) in (0..=255).zip(&mut byte_tokens) {
            *slot = vocab.id(bytes::char_of(byte).encode_utf8(&mut [0; 4])).unwrap_or(NONE);
        }
        let mut merges = HashMap::with_capacity_and_hasher(merge_lines.len(), PairHasherBuilder::default());
        let mut joined = String::new();
        for (rank, line) in merge_lines.iter().enumerate() {
            let (left, right, id) =
                parse_merge(vocab, line, &mut joined).ok_or_else(|| Error::InvalidKey {
                    key: format!("{merges_key}[{rank}]"),
                    found: format!("{line:?}"),
                    expected: "two tokens with a space between that join to a token".to_owned(),
                })?;
            let rank = u32::try_from(rank).map_err(|_| Error::InvalidKey {
                key: merges_key.to_owned(),
                found: format!("{} merges", merge_lines.len()),
                expected: "at most 4294967295 merges".to_owned(),
            })?;
            merges.entry(pair_key(left, right)).or_insert(Merge { rank, id });
        }
        let whole_pieces = pre_tokenizer
            .ignores_merges()
            .then(|| vocab.index_bytes(|id| matches!(vocab.kind(id), TokenKind::Normal | TokenKind::Unused)));
        Ok(Self { pre_tokenizer, byte_tokens, merges, whole_pieces })
    }

    /// Appends the tokens of a text without special tokens. Its length must fit `u32`.
    ///
    /// A byte that has no token is left out, as all readers of such vocabularies do: some lack bytes of rare
    /// characters, and their unknown-token is the end marker, which must not come from plain text.
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
            merger.run(&mut symbols, |a, b| self.merges.get(&pair_key(a.id, b.id)).copied());
            out.extend(symbols.iter().map(|symbol| symbol.id));
        });
    }
}

fn pair_key(left: TokenId, right: TokenId) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// Left, right and joined token of a line of the merge list. The space is looked for behind the
/// first character, as other readers do. `joined` is a buffer.
fn parse_merge(vocab: &Vocab, line: &str, joined: &mut String) -> Option<(TokenId, TokenId, TokenId)> {
    let first = line.chars().next()?.len_utf8();
    let space = first + line[first..].find(' ')?;
    let (left, right) = (&line[..space], &line[space + 1..]);
    joined.clear();
    joined.push_str(left);
    joined.push_str(right);
    Some((vocab.id(left)?, vocab.id(right)?, vocab.id(joined)?))
}
