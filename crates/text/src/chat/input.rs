//! Input of a chat template.

use serde_json::{Map, Value};

use super::message::{Message, visit_strings};

/// Input of a chat template.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChatInput<'a> {
    /// The conversation.
    pub messages: &'a [Message],
    /// JSON array of tool definitions.
    pub tools: Option<&'a Value>,
    /// Further variables, for example `enable_thinking`. Those of [`FIXED`](Self::FIXED) have
    /// no effect.
    pub variables: Option<&'a Map<String, Value>>,
    /// Ends the prompt where the model's answer begins.
    pub add_generation_prompt: bool,
}

impl ChatInput<'_> {
    /// Names that [`variables`](Self::variables) cannot set.
    pub const FIXED: [&'static str; 6] =
        ["messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"];

    /// Calls `visit` with every string of the input, keys included.
    pub(super) fn visit_strings(&self, visit: &mut impl FnMut(&str)) {
        self.messages.iter().for_each(|message| message.visit_strings(visit));
        let variables = self.variables.into_iter().flat_map(Map::values);
        self.tools.into_iter().chain(variables).for_each(|value| visit_strings(value, visit));
    }
}
