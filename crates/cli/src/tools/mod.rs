//! Tools of a conversation: their definitions, and a command that runs calls.

mod exec;

use ruvllm::{GenerateRequest, Prompt, ToolCall, ToolCallFormat, ToolChoice};
use serde::Serialize;
use serde_json::{Map, Value};

pub(crate) use self::exec::{Confirmation, Executor};

/// Tools that a model may call, and the rules for its calls.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tools {
    /// JSON array in the form of the chat-completions API.
    pub(crate) definitions: Value,
    pub(crate) choice: ToolChoice,
    /// Format of calls; `None` is that of the chat template.
    pub(crate) format: Option<ToolCallFormat>,
    pub(crate) parallel: bool,
    pub(crate) constrains: bool,
}

impl Tools {
    /// A request with these tools, if its prompt is a conversation. A call is forced in the first
    /// answer alone: after results the model is to speak.
    pub(crate) fn apply(&self, mut request: GenerateRequest, is_first: bool) -> GenerateRequest {
        if let Prompt::Chat { tools, .. } = &mut request.prompt {
            *tools = Some(self.definitions.clone());
        }
        let is_none = self.choice == ToolChoice::None;
        let choice = if is_first || is_none { self.choice.clone() } else { ToolChoice::Auto };
        request
            .with_tool_choice(choice)
            .with_parallel_tool_calls(self.parallel)
            .with_constrain_tools(self.constrains)
            .with_tool_format(self.format)
    }
}

/// A call in JSON documents.
#[derive(Debug, Serialize)]
pub(crate) struct CallDocument<'a> {
    id: &'a str,
    name: &'a str,
    arguments: Map<String, Value>,
}

impl<'a> From<&'a ToolCall> for CallDocument<'a> {
    fn from(call: &'a ToolCall) -> Self {
        Self { id: &call.id, name: &call.name, arguments: call.arguments_value() }
    }
}
