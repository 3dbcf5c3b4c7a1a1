//! Encoding of chats in which message text cannot forge the model's special tokens.
//!
//! Special tokens are recognized only in the template's own text (`origin`); message text is
//! encoded as plain text, whatever the template did to it.

use std::sync::{Arc, atomic::AtomicBool};

use serde_json::Value;

use super::{input::ChatInput, message::Message, template::ChatTemplate};
use crate::error::Result;
use crate::token::TokenId;
use crate::tokenizer::Tokenizer;

impl Tokenizer {
    /// Renders a conversation and encodes it.
    ///
    /// Special tokens written by the template become their ids; the same text in a message or a
    /// tool definition stays plain text, even if the template changes it or joins it with its own.
    /// (Names of common roles count as template text, since some templates build special tokens
    /// from them.) A BOS token is added if the model's rules say so and the template did not write
    /// it.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`] and [`encode`](Self::encode).
    pub fn encode_chat(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
        tools: Option<&Value>,
        add_generation_prompt: bool,
    ) -> Result<Vec<TokenId>> {
        let input = ChatInput { messages, tools, add_generation_prompt, ..ChatInput::default() };
        self.encode_chat_until(template, &input, None)
    }

    /// As [`encode_chat`](Self::encode_chat), with further variables of the template; ends with an
    /// error once `stop` is set.
    ///
    /// # Errors
    /// As [`encode_chat`](Self::encode_chat), and
    /// [`Error::TemplateStopped`](crate::Error::TemplateStopped).
    pub fn encode_chat_until(
        &self,
        template: &ChatTemplate,
        input: &ChatInput<'_>,
        stop: Option<&Arc<AtomicBool>>,
    ) -> Result<Vec<TokenId>> {
        let prompt = template.prompt(input, stop)?;
        let text = prompt.text.as_str();
        let markers = self.markers(text, &prompt.runs)?;

        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        let begins_with_bos =
            markers.first().is_some_and(|(place, id)| place.start == 0 && self.prefix().contains(id));
        if !begins_with_bos {
            ids.extend_from_slice(self.prefix());
        }
        let at = self.encode_marked(text, markers, &mut ids)?;
        self.encode_between(&text[at..], at == 0, &mut ids)?;
        Ok(ids)
    }
}
