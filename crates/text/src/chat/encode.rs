//! Encoding a chat so that nobody's text can forge the model's markers.
//!
//! Special tokens are recognized in the text of the template alone (`origin`); what messages say
//! is encoded as plain text, whatever the template did to it.

use std::sync::{Arc, atomic::AtomicBool};

use serde_json::Value;

use super::{message::Message, template::ChatTemplate};
use crate::error::Result;
use crate::token::TokenId;
use crate::tokenizer::Tokenizer;

impl Tokenizer {
    /// Renders a conversation and encodes it.
    ///
    /// Special tokens that the template writes become these tokens; special-token text from a
    /// message or a tool is plain text, also if the template changes it or joins it with its own.
    /// (The names of common roles are the template's text too, since some templates form markers
    /// with them.) A BOS token is added if the model's rules say so and the template did not write
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
        self.encode_chat_until(template, messages, tools, add_generation_prompt, None)
    }

    /// As [`encode_chat`](Self::encode_chat), and ends when `stop` is set.
    ///
    /// # Errors
    /// As [`encode_chat`](Self::encode_chat), and
    /// [`Error::TemplateStopped`](crate::Error::TemplateStopped).
    pub fn encode_chat_until(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
        tools: Option<&Value>,
        add_generation_prompt: bool,
        stop: Option<&Arc<AtomicBool>>,
    ) -> Result<Vec<TokenId>> {
        let prompt = template.prompt(messages, tools, add_generation_prompt, stop)?;
        let text = prompt.text.as_str();
        let markers = self.markers(text, &prompt.runs)?;

        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        let begins_with_bos =
            markers.first().is_some_and(|(place, id)| place.start == 0 && self.prefix().contains(id));
        if !begins_with_bos {
            ids.extend_from_slice(self.prefix());
        }
        let mut after_token = true;
        let mut at = 0;
        for (place, id) in markers {
            self.encode_between(&text[at..place.start], at == 0, &mut after_token, &mut ids)?;
            ids.push(id);
            (at, after_token) = (place.end, true);
        }
        self.encode_between(&text[at..], at == 0, &mut after_token, &mut ids)?;
        Ok(ids)
    }

    /// Appends the tokens of the text between two markers.
    fn encode_between(
        &self,
        text: &str,
        is_first: bool,
        after_token: &mut bool,
        ids: &mut Vec<TokenId>,
    ) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        // For the library only the first part of a text is the first; to the others it matters
        // what came before.
        if self.is_run_by_library() {
            *after_token = is_first;
        }
        self.encode_part(text, false, after_token, ids)
    }
}
