//! `logprobs` of a choice.

use ruvllm::serde_json::{Map, Value};
use ruvllm::{Logprobs, Tokenizer};
use serde::Serialize;
use utoipa::ToSchema;

use crate::generation::token_text;
use crate::openai::finite;

/// Lists with one element for each token.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(super) struct TextLogprobs {
    tokens: Vec<String>,
    /// Null for the first token of a prompt.
    token_logprobs: Vec<Option<f64>>,
    /// Texts of the most likely tokens with their log-probabilities.
    #[schema(value_type = Vec<Option<Object>>)]
    top_logprobs: Vec<Option<Map<String, Value>>>,
    /// Place of the token in the choice's text, in characters.
    text_offset: Vec<usize>,
}

impl TextLogprobs {
    /// Adds a token at `offset`, and moves that behind it.
    pub(super) fn push(
        &mut self,
        token: ruvllm::TokenId,
        logprobs: Option<&Logprobs>,
        tokenizer: &Tokenizer,
        offset: &mut usize,
    ) {
        let text = token_text(tokenizer, token);
        self.text_offset.push(*offset);
        *offset += text.chars().count();
        self.tokens.push(text);
        self.token_logprobs.push(logprobs.map(|logprobs| finite(logprobs.token.logprob)));
        self.top_logprobs.push(logprobs.map(|logprobs| texts(logprobs, tokenizer)));
    }

    /// Adds generated tokens.
    pub(super) fn extend(&mut self, all: &[Logprobs], tokenizer: &Tokenizer, offset: &mut usize) {
        for logprobs in all {
            self.push(logprobs.token.token, Some(logprobs), tokenizer, offset);
        }
    }
}

/// Log-probabilities by text: of the most likely tokens, and of the token itself even if it is none
/// of them. Of tokens with the same text the most likely one counts.
fn texts(logprobs: &Logprobs, tokenizer: &Tokenizer) -> Map<String, Value> {
    let mut texts = Map::new();
    let mut all: Vec<_> = logprobs.top.iter().chain([&logprobs.token]).collect();
    all.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
    for top in all {
        texts.entry(token_text(tokenizer, top.token)).or_insert_with(|| finite(top.logprob).into());
    }
    texts
}
