//! Parts of an output: thinking, text, tool calls.

use std::sync::Arc;

use ruvllm_text::reasoning::{AnswerParser, Phase, ReasoningFormat, ReasoningParser};
use ruvllm_text::tool_call::{ArgumentTypes, ToolCall, ToolCallFormat, ToolCallParser};

/// Parameters of the parser of an output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OutputParser {
    /// Format of the thinking, and the phase that the output begins in.
    pub(crate) reasoning: Option<(ReasoningFormat, Phase)>,
    /// Calls; `None` if the output can have none.
    pub(crate) calls: Option<CallParser>,
}

/// Parameters of the parser of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallParser {
    pub(crate) format: ToolCallFormat,
    pub(crate) id_seed: u64,
    /// Types of arguments that are text between tags.
    pub(crate) types: Arc<ArgumentTypes>,
}

impl OutputParser {
    /// The parser of an output; `None` if all of it is text.
    pub(crate) fn of(reasoning: Option<(ReasoningFormat, Phase)>, calls: Option<CallParser>) -> Option<Self> {
        let has_parts = reasoning.is_some() || calls.is_some();
        has_parts.then_some(Self { reasoning, calls })
    }

    /// A parser at the beginning of the output.
    pub(crate) fn start(&self) -> AnswerParser {
        let reasoning = self.reasoning.map(|(format, phase)| ReasoningParser::new(format, phase));
        let calls = self.calls.as_ref().map(|calls| {
            ToolCallParser::new(calls.format)
                .with_id_seed(calls.id_seed)
                .with_argument_types(Arc::clone(&calls.types))
        });
        AnswerParser::new(reasoning, calls)
    }

    /// The calls of an output, and the text outside of them.
    pub(crate) fn parse(&self, text: &str) -> (Vec<ToolCall>, ParsedText) {
        let parsed = self.start().parse(text);
        let text = ParsedText {
            reasoning: parsed.reasoning,
            is_thinking: parsed.is_thinking,
            content: parsed.output.content,
            invalid: parsed.output.invalid,
        };
        (parsed.output.calls, text)
    }
}

/// Text of an output outside of its calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ParsedText {
    /// Text of the thinking.
    pub(crate) reasoning: Option<String>,
    /// True if the output ended within the thinking.
    pub(crate) is_thinking: bool,
    pub(crate) content: String,
    /// Name and arguments of calls that are not valid.
    pub(crate) invalid: Vec<(String, String)>,
}
