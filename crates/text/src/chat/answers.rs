//! Answers in a conversation, as the model would have had to generate them.

use std::ops::Range;

use serde_json::Value;

use super::{message::Message, template::ChatTemplate};
use crate::error::Result;
use crate::token::TokenId;
use crate::tokenizer::Tokenizer;

/// Role of the messages that a model generates.
const ASSISTANT: &str = "assistant";

/// Tokens of a conversation, and which of them are answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnsweredChat {
    /// All tokens.
    pub tokens: Vec<TokenId>,
    /// Places of the answers, each with the token that ends it.
    pub answers: Vec<Range<usize>>,
}

impl Tokenizer {
    /// Encodes a conversation for training: the answers are what `assistant` messages add to the
    /// prompt before them.
    ///
    /// Answers that the template shows otherwise later than in their own turn (without their
    /// reasoning, for example) have no place; the last message always has one if it is an answer.
    ///
    /// # Errors
    /// As [`encode_chat`](Self::encode_chat).
    pub fn encode_answers(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
        tools: Option<&Value>,
    ) -> Result<AnsweredChat> {
        let tokens = self.encode_chat(template, messages, tools, false)?;
        let mut answers = Vec::new();
        for (at, _) in messages.iter().enumerate().filter(|(_, message)| message.role == ASSISTANT) {
            let prompt = self.encode_chat(template, &messages[..at], tools, true)?;
            let answered = match at + 1 == messages.len() {
                true => tokens.clone(),
                false => self.encode_chat(template, &messages[..=at], tools, false)?,
            };
            let Some(answer) = answered.strip_prefix(&*prompt) else { continue };
            // Behind the end of an answer a template may write more, such as a line break.
            let end = answer.iter().position(|&token| self.is_end_of_generation(token));
            let place = prompt.len()..prompt.len() + end.map_or(answer.len(), |end| end + 1);
            if !place.is_empty() && tokens.starts_with(&answered[..place.end]) {
                answers.push(place);
            }
        }
        Ok(AnsweredChat { tokens, answers })
    }
}
