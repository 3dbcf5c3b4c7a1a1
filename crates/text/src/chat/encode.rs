//! Encoding a chat so that nobody's text can forge the model's markers.
//!
//! The template's output is one string in which the template's own markers and a user's text look
//! alike. So before rendering, every marker in the messages is broken up by a private character;
//! after rendering, markers are looked for with these characters in place, and what lies between is
//! encoded as plain text without them.

use serde_json::Value;

use super::{
    message::{Message, visit_strings},
    template::ChatTemplate,
};
use crate::error::{Error, Result};
use crate::token::TokenId;
use crate::tokenizer::{Fragment, Occurrence, Tokenizer};

/// Unicode reserves these code points for private use inside a program; text should not contain
/// them.
const NONCHARACTERS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

impl Tokenizer {
    /// Renders a conversation and encodes it.
    ///
    /// Special tokens that the template writes become these tokens; special-token text inside a
    /// message or a tool is plain text. A BOS token is added if the model's rules say so and the
    /// template did not write it.
    ///
    /// # Errors
    /// Those of [`ChatTemplate::render`] and [`encode`](Self::encode), and [`Error::NoFreeMarker`]
    /// if the messages contain all 32 noncharacters U+FDD0 to U+FDEF.
    pub fn encode_chat(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
        tools: Option<&Value>,
        add_generation_prompt: bool,
    ) -> Result<Vec<TokenId>> {
        let guard = Guard::new(self, template, messages, tools)?;
        let guarded: Vec<Message> = messages.iter().map(|message| guard.message(message)).collect();
        let guarded_tools = tools.map(|tools| guard.value(tools));
        let text = template.render(&guarded, guarded_tools.as_ref(), add_generation_prompt)?;
        let fragments = self.special_fragments(&text)?;

        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        let begins_with_bos =
            matches!(fragments.first(), Some(Fragment::Token(id)) if self.prefix().contains(id));
        if !begins_with_bos {
            ids.extend_from_slice(self.prefix());
        }
        let mut after_token = true;
        for (i, fragment) in fragments.iter().enumerate() {
            match fragment {
                Fragment::Token(id) => {
                    ids.push(*id);
                    after_token = true;
                }
                Fragment::Text(text) => {
                    // For the library only the first part of a text is the first; to the others it
                    // matters what came before.
                    if self.is_run_by_library() {
                        after_token = i == 0;
                    }
                    self.encode_part(&guard.remove(text), false, &mut after_token, &mut ids)?;
                }
            }
        }
        Ok(ids)
    }
}

/// Breaks up special tokens in untrusted text, and undoes it.
struct Guard<'a> {
    tokenizer: &'a Tokenizer,
    /// Occurs nowhere in the input; put inside special tokens.
    breaker: char,
    /// Special tokens of one character cannot be broken, they are replaced.
    stand_ins: Vec<(char, char)>,
}

impl<'a> Guard<'a> {
    fn new(
        tokenizer: &'a Tokenizer,
        template: &ChatTemplate,
        messages: &[Message],
        tools: Option<&Value>,
    ) -> Result<Self> {
        let mut used = template.source().to_owned();
        for message in messages {
            message.visit_strings(&mut |text| used.push_str(text));
        }
        if let Some(tools) = tools {
            visit_strings(tools, &mut |text| used.push_str(text));
        }
        let mut free = NONCHARACTERS.filter(|&c| !used.contains(c));
        let breaker = free.next().ok_or(Error::NoFreeMarker)?;
        let mut stand_ins = Vec::new();
        for text in tokenizer.special_texts() {
            let mut chars = text.chars();
            if let (Some(only), None) = (chars.next(), chars.next()) {
                stand_ins.push((only, free.next().ok_or(Error::NoFreeMarker)?));
            }
        }
        Ok(Self { tokenizer, breaker, stand_ins })
    }

    fn message(&self, message: &Message) -> Message {
        message.map(|role| self.text(role, false), |value| self.value(value), |key| self.text(key, true))
    }

    fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text, true)),
            Value::Array(values) => values.iter().map(|value| self.value(value)).collect(),
            Value::Object(map) => {
                map.iter().map(|(key, value)| (self.text(key, true), self.value(value))).collect()
            }
            other => other.clone(),
        }
    }

    /// Breaks up every special token in a text, and with `beginnings` also one that the text ends
    /// within. (Templates form markers around roles, as in `<|user|>`, so the beginnings in those
    /// must stay.)
    fn text(&self, text: &str, beginnings: bool) -> String {
        let mut guarded = String::with_capacity(text.len());
        for (at, c) in text.char_indices() {
            let stand_in = self.stand_ins.iter().find(|&&(only, _)| only == c);
            guarded.push(stand_in.map_or(c, |&(_, stand_in)| stand_in));
            let breaks = match self.tokenizer.special_at(text, at) {
                Occurrence::Whole => true,
                Occurrence::Beginning => beginnings,
                Occurrence::No => false,
            };
            if breaks {
                guarded.push(self.breaker);
            }
        }
        guarded
    }

    fn remove(&self, text: &str) -> String {
        text.chars()
            .filter(|&c| c != self.breaker)
            .map(|c| self.stand_ins.iter().find(|&&(_, stand_in)| stand_in == c).map_or(c, |&(only, _)| only))
            .collect()
    }
}
