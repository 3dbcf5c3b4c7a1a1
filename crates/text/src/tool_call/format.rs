//! Formats of tool calls, and their detection from a chat template.

use std::{fmt, str::FromStr};

/// Notation in which a model writes tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ToolCallFormat {
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one block per call: Hermes,
    /// Qwen 2.5 and 3.
    Hermes,
    /// `{"name": ..., "parameters": {...}}` as the whole answer, `<|python_tag|>` before it or not:
    /// Llama 3.1 and later. Their templates allow one call per answer.
    Llama,
    /// `[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`: Mistral, tokenizer versions 3 to 7.
    Mistral,
    /// `[TOOL_CALLS]name[ARGS]{...}`, repeated per call: Mistral, from tokenizer version 11 on.
    MistralArgs,
    /// `<function=name>{...}</function>`, one block per call: Functionary, Llama 3.1 with custom
    /// functions.
    FunctionTag,
    /// `<tool_call><function=name><parameter=a>text</parameter></function></tool_call>`:
    /// Qwen3-Coder, Qwen 3.5. The tags stand on lines of their own.
    QwenXml,
    /// `<tool_call>name<arg_key>a</arg_key><arg_value>text</arg_value></tool_call>`: GLM 4.5 and
    /// later, with line breaks between the tags or without.
    Glm,
    /// `<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}`, or the
    /// recipient before the channel: gpt-oss (harmony). An answer ends with its call.
    Harmony,
}

/// A name that no format has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is no format of tool calls; known: {known}")]
pub struct UnknownToolCallFormat {
    /// The name.
    pub found: String,
    /// Names of all formats.
    pub known: String,
}

impl ToolCallFormat {
    /// All formats.
    pub const ALL: [Self; 8] = [
        Self::Hermes,
        Self::Llama,
        Self::Mistral,
        Self::MistralArgs,
        Self::FunctionTag,
        Self::QwenXml,
        Self::Glm,
        Self::Harmony,
    ];

    /// Format that a chat template writes earlier calls in, from the template's text.
    ///
    /// `None` for a template without tool calls, and for formats that are not supported.
    #[must_use]
    pub fn of_template(source: &str) -> Option<Self> {
        // Quotes may be escaped, within a string of the template.
        let text = source.replace('\\', "");
        let has = |marker: &str| text.contains(marker);
        if has("<parameter=") {
            return has("<tool_call>").then_some(Self::QwenXml);
        }
        if has("<arg_key>") {
            return has("<tool_call>").then_some(Self::Glm);
        }
        if has("<|call|>") && has("functions.") {
            return has("<|channel|>").then_some(Self::Harmony);
        }
        if has("[TOOL_CALLS]") {
            return Some(if has("[ARGS]") { Self::MistralArgs } else { Self::Mistral });
        }
        if has("<tool_call>") {
            return Some(Self::Hermes);
        }
        if has("<function=") {
            return Some(Self::FunctionTag);
        }
        let is_llama = has("<|python_tag|>") || has("<|start_header_id|>");
        (is_llama && has("\"parameters\"")).then_some(Self::Llama)
    }

    /// Name of the format: `hermes`, `llama`, `mistral`, `mistral-args`, `function-tag`,
    /// `qwen-xml`, `glm`, `harmony`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hermes => "hermes",
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::MistralArgs => "mistral-args",
            Self::FunctionTag => "function-tag",
            Self::QwenXml => "qwen-xml",
            Self::Glm => "glm",
            Self::Harmony => "harmony",
        }
    }

    /// Text that begins a call, for [`Llama`](Self::Llama) an optional one.
    #[must_use]
    pub fn opening(self) -> &'static str {
        match self {
            Self::Hermes | Self::QwenXml | Self::Glm => "<tool_call>",
            Self::Llama => "<|python_tag|>",
            Self::Mistral | Self::MistralArgs => "[TOOL_CALLS]",
            Self::FunctionTag => "<function=",
            Self::Harmony => "to=functions.",
        }
    }

    /// Text that ends a call; empty where the JSON value does.
    #[must_use]
    pub fn closing(self) -> &'static str {
        match self {
            Self::Hermes | Self::QwenXml | Self::Glm => "</tool_call>",
            Self::FunctionTag => "</function>",
            Self::Harmony => "<|call|>",
            Self::Llama | Self::Mistral | Self::MistralArgs => "",
        }
    }

    /// True if arguments are text between tags, whose [types](super::ArgumentTypes) a parser needs.
    #[must_use]
    pub fn has_elements(self) -> bool {
        matches!(self, Self::QwenXml | Self::Glm)
    }

    /// True if an answer can have several calls.
    #[must_use]
    pub fn has_parallel_calls(self) -> bool {
        !matches!(self, Self::Llama | Self::Harmony)
    }

    /// True if an answer is a row of messages with headers: thinking, text, and a call each have
    /// one.
    #[must_use]
    pub fn has_messages(self) -> bool {
        self == Self::Harmony
    }
}

impl fmt::Display for ToolCallFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ToolCallFormat {
    type Err = UnknownToolCallFormat;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| UnknownToolCallFormat {
            found: name.to_owned(),
            known: Self::ALL.map(Self::name).join(", "),
        })
    }
}
