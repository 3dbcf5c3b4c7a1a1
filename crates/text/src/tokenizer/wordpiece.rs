//! `WordPiece` (BERT): words and punctuation marks, split greedily into the longest tokens. A word
//! that cannot be split becomes the unknown token.
//!
//! In a GGUF vocabulary a token that begins a word is written with `▁`, one within a word without.
//! Source: Wu et al. 2016 (arXiv 1609.08144); normalization and word boundaries are those of the
//! tokenizers library.

use tokenizers::{
    NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
    normalizers::BertNormalizer, pre_tokenizers::bert::BertPreTokenizer,
};

use super::{
    spm::{self, SPACE_MARK},
    vocab::Vocab,
};
use crate::error::{Error, Result};
use crate::token::TokenId;

/// Maximum characters of a word, as in BERT; longer words are unknown.
const LONGEST_WORD: usize = 100;

/// Encoder of one vocabulary.
#[derive(Debug, Clone)]
pub(crate) struct WordPiece {
    normalizer: BertNormalizer,
    unknown: TokenId,
    /// Length of the longest token in bytes.
    longest: usize,
}

impl WordPiece {
    /// Builds the encoder.
    ///
    /// # Errors
    /// None; without the feature `tokenizer-json` there is no encoder to build.
    pub(crate) fn new(vocab: &Vocab, unknown: TokenId, lowercase: bool, strip_accents: bool) -> Result<Self> {
        let pieces = vocab.ids().filter(|&id| spm::is_piece(vocab.kind(id)));
        Ok(Self {
            normalizer: BertNormalizer::new(true, true, Some(strip_accents), lowercase),
            unknown,
            longest: pieces.map(|id| vocab.text(id).len()).max().unwrap_or(0),
        })
    }

    /// Appends the tokens of a text without special tokens.
    ///
    /// # Errors
    /// [`Error::Tokenization`] if the tokenizers library fails.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &str, out: &mut Vec<TokenId>) -> Result<()> {
        let failed = |error: tokenizers::Error| Error::Tokenization { message: error.to_string() };
        // Split where words end in any case: the library keeps a table of all characters it works
        // on.
        for chunk in text.split([' ', '\t', '\n', '\r']).filter(|chunk| !chunk.is_empty()) {
            let mut normalized = NormalizedString::from(chunk);
            self.normalizer.normalize(&mut normalized).map_err(failed)?;
            let mut words = PreTokenizedString::from(normalized);
            BertPreTokenizer.pre_tokenize(&mut words).map_err(failed)?;
            for (word, ..) in words.get_splits(OffsetReferential::Normalized, OffsetType::None) {
                self.encode_word(vocab, word, out);
            }
        }
        Ok(())
    }

    fn encode_word(&self, vocab: &Vocab, word: &str, out: &mut Vec<TokenId>) {
        if word.is_empty() {
            return;
        }
        let before = out.len();
        if word.chars().count() <= LONGEST_WORD {
            let marked = format!("{SPACE_MARK}{word}");
            let mut rest = marked.as_str();
            // The mark alone is no part of a word.
            let mut least = SPACE_MARK.len_utf8() + 1;
            while let Some((len, id)) = self.longest_piece(vocab, rest, least) {
                out.push(id);
                rest = &rest[len..];
                least = 1;
                if rest.is_empty() {
                    return;
                }
            }
        }
        out.truncate(before);
        out.push(self.unknown);
    }

    /// Longest token of at least `least` bytes at the start of a text, with its length.
    fn longest_piece(&self, vocab: &Vocab, text: &str, least: usize) -> Option<(usize, TokenId)> {
        (least..=text.len().min(self.longest))
            .rev()
            .find_map(|len| Some((len, spm::piece(vocab, text.get(..len)?)?)))
    }
}
