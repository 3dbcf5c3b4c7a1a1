//! Texts of a pass, alone or in pairs.

use std::ops::Range;

use ruvllm_text::TokenId;

use super::config::EncoderConfig;
use crate::error::{Error, Result};

/// A text of a pass, or two texts as one sequence.
#[derive(Debug, Clone, Copy)]
pub struct EncoderText<'t> {
    /// Ids, with the special tokens of the model.
    pub tokens: &'t [TokenId],
    /// Index of the first token of type 1; the number of tokens if all have type 0. Without effect
    /// in models with fewer than two types.
    pub second_type: usize,
}

impl<'t> EncoderText<'t> {
    /// A text alone: all tokens have type 0.
    pub fn new(tokens: &'t [TokenId]) -> Self {
        Self { tokens, second_type: tokens.len() }
    }
}

/// Checks the texts of a pass.
pub(super) fn check(texts: &[EncoderText<'_>], config: &EncoderConfig) -> Result<()> {
    if texts.is_empty() {
        return Err(Error::EmptyBatch);
    }
    let (context_length, vocab_size) = (config.context_length, config.vocab_size);
    for (segment, text) in texts.iter().map(|text| text.tokens).enumerate() {
        if text.is_empty() {
            return Err(Error::EmptySegment { segment });
        }
        if text.len() > context_length {
            return Err(Error::TextOfTokens { segment, tokens: text.len(), context_length });
        }
        if let Some(index) = text.iter().position(|&token| token as usize >= vocab_size) {
            return Err(Error::TokenOutOfRange { segment, index, token: text[index], vocab_size });
        }
    }
    Ok(())
}

/// The tokens of each text among those of all.
pub(super) fn spans(texts: &[EncoderText<'_>]) -> Vec<Range<usize>> {
    let mut end = 0;
    let span = |text: &EncoderText<'_>| {
        let start = end;
        end += text.tokens.len();
        start..end
    };
    texts.iter().map(span).collect()
}
