//! Tool calls of an output, and the text outside of them.

use ruvllm_text::tool_call::{ToolCall, ToolCallFormat, ToolCallParser};

/// Parameters of the parser of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutputParser {
    pub(super) format: ToolCallFormat,
    pub(super) id_seed: u64,
}

impl OutputParser {
    /// A parser at the beginning of the output.
    pub(crate) fn start(self) -> ToolCallParser {
        ToolCallParser::new(self.format).with_id_seed(self.id_seed)
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
