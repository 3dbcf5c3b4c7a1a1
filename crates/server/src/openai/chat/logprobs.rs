//! `logprobs` of a choice.

use ruvllm::{Logprobs, Tokenizer};
use serde::Serialize;
use utoipa::ToSchema;

use crate::generation::token_text;
use crate::openai::finite;

/// Log-probabilities of the tokens of an answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChoiceLogprobs {
    content: Vec<TokenLogprob>,
    refusal: Option<()>,
}

/// Log-probability of a token, with those of the most likely ones.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct TokenLogprob {
    #[serde(flatten)]
    token: Candidate,
    top_logprobs: Vec<Candidate>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
struct Candidate {
    token: String,
    logprob: f64,
    /// The token's bytes: its text may be part of a character.
    bytes: Vec<u8>,
}

impl Candidate {
    fn new(of: &ruvllm::TokenLogprob, tokenizer: &Tokenizer) -> Self {
        Self {
            token: token_text(tokenizer, of.token),
            logprob: finite(of.logprob),
            bytes: tokenizer.token_bytes(of.token).unwrap_or_default(),
        }
    }
}

impl ChoiceLogprobs {
    pub(crate) fn new(logprobs: &[Logprobs], tokenizer: &Tokenizer) -> Self {
        Self { content: token_logprobs(logprobs, tokenizer), refusal: None }
    }
}

/// Log-probabilities of tokens in their JSON form.
pub(crate) fn token_logprobs(logprobs: &[Logprobs], tokenizer: &Tokenizer) -> Vec<TokenLogprob> {
    let token = |position: &Logprobs| TokenLogprob {
        token: Candidate::new(&position.token, tokenizer),
        top_logprobs: position.top.iter().map(|top| Candidate::new(top, tokenizer)).collect(),
    };
    logprobs.iter().map(token).collect()
}
