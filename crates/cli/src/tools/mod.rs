//! Tools of a conversation: their definitions, the text between calls, and a command that runs
//! calls.

mod exec;

use std::ops::ControlFlow;

use ruvllm::{
    GenerateRequest, Prompt, TextCodec, ToolCall, ToolCallEvent, ToolCallFormat, ToolCallParser, ToolChoice,
};
use serde::Serialize;
use serde_json::{Map, Value};

pub(crate) use self::exec::{Confirmation, Executor};
use crate::error::Result;

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

    /// The filter of an answer's text.
    ///
    /// # Errors
    /// A chat template that cannot be used.
    pub(crate) fn filter(&self, codec: &TextCodec) -> Result<ContentFilter> {
        let format = match self.format {
            _ if self.choice == ToolChoice::None => None,
            Some(format) => Some(format),
            None => ToolCallFormat::of_template(codec.chat_template()?.tool_source()),
        };
        Ok(ContentFilter { parser: format.map(ToolCallParser::new), events: Vec::new() })
    }
}

/// Passes text outside of tool calls on, as it arrives.
pub(crate) struct ContentFilter {
    /// `None` passes everything.
    parser: Option<ToolCallParser>,
    events: Vec<ToolCallEvent>,
}

impl ContentFilter {
    /// A filter that passes everything.
    pub(crate) fn none() -> Self {
        Self { parser: None, events: Vec::new() }
    }

    /// Passes the next piece of text on.
    pub(crate) fn push(
        &mut self,
        text: &str,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let Some(parser) = &mut self.parser else { return on_text(text) };
        parser.push(text, &mut self.events);
        self.give(on_text)
    }

    /// Passes on what was held back.
    pub(crate) fn finish(&mut self, on_text: &mut dyn FnMut(&str) -> ControlFlow<()>) -> ControlFlow<()> {
        let Some(parser) = &mut self.parser else { return ControlFlow::Continue(()) };
        parser.finish(&mut self.events);
        self.give(on_text)
    }

    fn give(&mut self, on_text: &mut dyn FnMut(&str) -> ControlFlow<()>) -> ControlFlow<()> {
        for event in self.events.drain(..) {
            if let ToolCallEvent::Content(text) = event {
                on_text(&text)?;
            }
        }
        ControlFlow::Continue(())
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
