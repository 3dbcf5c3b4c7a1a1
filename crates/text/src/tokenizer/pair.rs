//! Pairs of texts as one sequence, such as a query and a document, for models that score them.

use super::pipeline::Tokenizer;
use crate::error::{Error, Result};
use crate::token::TokenId;

/// Two texts as one sequence, with the special tokens of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TextPair {
    /// Ids of the whole sequence.
    pub tokens: Vec<TokenId>,
    /// Index of the first token of type 1; the number of tokens if all have type 0.
    pub second_type: usize,
    /// True if the second text was truncated.
    pub truncated: bool,
}

/// First text of pairs, encoded once for all second texts.
#[derive(Debug)]
pub struct PairEncoder<'t> {
    tokenizer: &'t Tokenizer,
    /// Tokens up to the second text.
    head: Vec<TokenId>,
    second_has_type: bool,
}

impl Tokenizer {
    /// Encodes the first text of pairs. Special tokens written out in either text are plain text,
    /// so that a document cannot end itself.
    ///
    /// # Errors
    /// As [`encode`](Self::encode); [`Error::NoPairs`] if the tokenizer has no rule for pairs.
    pub fn pair_encoder(&self, first: &str) -> Result<PairEncoder<'_>> {
        let rules = self.pair_rules().ok_or(Error::NoPairs)?;
        let mut head = self.prefix().to_vec();
        self.encode_part(first, false, &mut true, &mut head)?;
        head.extend_from_slice(&rules.between);
        Ok(PairEncoder { tokenizer: self, head, second_has_type: rules.second_has_type })
    }
}

impl PairEncoder<'_> {
    /// Number of tokens of a pair without those of its second text.
    #[must_use]
    pub fn tokens_around(&self) -> usize {
        self.head.len() + self.tokenizer.suffix().len()
    }

    /// Encodes a pair with this second text, which is truncated if the pair has more than `limit`
    /// tokens. Tokens of the first text and special tokens stay.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode(&self, second: &str, limit: usize) -> Result<TextPair> {
        let suffix = self.tokenizer.suffix();
        let mut tokens = self.head.clone();
        self.tokenizer.encode_part(second, false, &mut true, &mut tokens)?;
        let end = limit.saturating_sub(suffix.len()).max(self.head.len());
        let truncated = tokens.len() > end;
        tokens.truncate(end);
        tokens.extend_from_slice(suffix);
        let second_type = if self.second_has_type { self.head.len() } else { tokens.len() };
        Ok(TextPair { tokens, second_type, truncated })
    }
}
