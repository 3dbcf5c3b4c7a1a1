//! `logprobs` of a choice.

use ruvllm::serde_json::{Map, Value};
use ruvllm::{Logprobs, Tokenizer};
use serde::Serialize;

use crate::generation::token_text;
use crate::openai::finite;

/// Lists with one element for each token.
#[derive(Debug, Default, Serialize)]
pub(super) struct TextLogprobs {
    tokens: Vec<String>,
    /// Null for the first token of a prompt.
    token_logprobs: Vec<Option<f64>>,
    /// Texts of the most likely tokens with their log-probabilities.
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
        self.top_logprobs.push(logprobs.map(|logprobs| {
            // The token itself is among them even if it is none of the most likely ones.
            let all = logprobs.top.iter().chain([&logprobs.token]);
            all.map(|top| (token_text(tokenizer, top.token), finite(top.logprob).into())).collect()
        }));
    }

    /// Adds generated tokens.
    pub(super) fn extend(&mut self, all: &[Logprobs], tokenizer: &Tokenizer, offset: &mut usize) {
        for logprobs in all {
            self.push(logprobs.token.token, Some(logprobs), tokenizer, offset);
        }
    }
}
