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

/// A part of the prompt before the second text of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptPart<'a> {
    /// Text of the prompt itself; special tokens written in it are parsed.
    Template(&'a str),
    /// Text that is put in; special tokens written in it are plain text.
    Text(&'a str),
}

/// First text of pairs, encoded once for all second texts.
#[derive(Debug)]
pub struct PairEncoder<'t> {
    tokenizer: &'t Tokenizer,
    /// Tokens up to the text before the second text.
    head: Vec<TokenId>,
    /// Text before the second text, encoded together with it: a token may have characters of both.
    lead: String,
    /// True if `lead` is the beginning of the sequence.
    lead_is_first: bool,
    /// Tokens behind the second text.
    tail: Vec<TokenId>,
    /// Number of tokens of `head` and `lead`.
    tokens_before: usize,
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
        Ok(PairEncoder {
            tokenizer: self,
            tokens_before: head.len(),
            head,
            lead: String::new(),
            lead_is_first: true,
            tail: self.suffix().to_vec(),
            second_has_type: rules.second_has_type,
        })
    }

    /// As [`pair_encoder`](Self::pair_encoder), for models that are asked about a pair by a prompt:
    /// `before` and `after` stand around the second text. Nothing is added to them.
    ///
    /// # Errors
    /// As [`encode`](Self::encode); [`Error::OpenPrompt`] if `after` does not begin with a special
    /// token, so that its tokens would depend on the second text.
    pub fn prompt_encoder(&self, before: &[PromptPart<'_>], after: &str) -> Result<PairEncoder<'_>> {
        let (mut text, mut runs) = (String::new(), Vec::new());
        for part in before {
            match *part {
                PromptPart::Template(part) => {
                    runs.push(text.len()..text.len() + part.len());
                    text.push_str(part);
                }
                PromptPart::Text(part) => text.push_str(part),
            }
        }
        let mut head = Vec::new();
        let at = self.encode_marked(&text, self.markers(&text, &runs)?, &mut head)?;
        let lead = text.split_off(at);
        let mut with_lead = head.clone();
        self.encode_between(&lead, at == 0, &mut with_lead)?;

        let mut tail = Vec::new();
        let whole = 0..after.len();
        let markers = self.markers(after, std::slice::from_ref(&whole))?;
        if !after.is_empty() && markers.first().is_none_or(|(place, _)| place.start > 0) {
            return Err(Error::OpenPrompt { text: after.chars().take(20).collect() });
        }
        let end = self.encode_marked(after, markers, &mut tail)?;
        self.encode_between(&after[end..], false, &mut tail)?;
        Ok(PairEncoder {
            tokenizer: self,
            head,
            lead,
            lead_is_first: at == 0,
            tail,
            tokens_before: with_lead.len(),
            second_has_type: false,
        })
    }
}

impl PairEncoder<'_> {
    /// Number of tokens of a pair without those of its second text.
    #[must_use]
    pub fn tokens_around(&self) -> usize {
        self.tokens_before + self.tail.len()
    }

    /// Tokens behind the second text.
    #[must_use]
    pub fn tail(&self) -> &[TokenId] {
        &self.tail
    }

    /// Encodes a pair with this second text, which is truncated if the pair has more than `limit`
    /// tokens. Tokens of the first text and special tokens stay.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode(&self, second: &str, limit: usize) -> Result<TextPair> {
        let mut tokens = self.head.clone();
        let text = [self.lead.as_str(), second].concat();
        self.tokenizer.encode_between(&text, self.lead_is_first, &mut tokens)?;
        let end = limit.saturating_sub(self.tail.len()).max(self.tokens_before);
        let truncated = tokens.len() > end;
        tokens.truncate(end);
        tokens.extend_from_slice(&self.tail);
        let second_type = if self.second_has_type { self.head.len() } else { tokens.len() };
        Ok(TextPair { tokens, second_type, truncated })
    }
}
