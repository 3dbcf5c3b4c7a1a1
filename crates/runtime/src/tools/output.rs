//! Tool calls of an output, and the text outside of them.

use std::sync::Arc;

use ruvllm_text::tool_call::{ArgumentTypes, ToolCall, ToolCallFormat, ToolCallParser};

/// Parameters of the parser of an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutputParser {
    pub(super) format: ToolCallFormat,
    pub(super) id_seed: u64,
    /// Types of arguments that are text between tags.
    pub(super) types: Arc<ArgumentTypes>,
}

impl OutputParser {
    /// A parser at the beginning of the output.
    pub(crate) fn start(&self) -> ToolCallParser {
        ToolCallParser::new(self.format)
            .with_id_seed(self.id_seed)
            .with_argument_types(Arc::clone(&self.types))
    }

    /// The calls of an output, and the text outside of them.
    pub(crate) fn parse(self, text: &str) -> (Vec<ToolCall>, ParsedText) {
        let output = self.start().parse(text);
        (output.calls, ParsedText { parser: self, content: output.content, invalid: output.invalid })
    }
}

/// Text of an output outside of its calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ParsedText {
    /// Parser of the output.
    pub(crate) parser: OutputParser,
    pub(crate) content: String,
    /// Name and arguments of calls that are not valid.
    pub(crate) invalid: Vec<(String, String)>,
}
