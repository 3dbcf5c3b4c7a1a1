//! Formats of thinking as data, and their detection from a chat template.

use std::{fmt, str::FromStr};

/// Notation in which a model separates its thinking from the answer.
///
/// Two forms: a pair of markers around the thinking (`<think>...</think>`), and messages of one
/// answer under headers that name a channel (harmony, of gpt-oss).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasoningFormat {
    name: &'static str,
    /// Begins the thinking, or the header of a message.
    open: &'static str,
    /// Ends the thinking, or a message.
    close: &'static str,
    /// Present where messages have headers.
    pub(super) headers: Option<Headers>,
    /// Ends the thinking and begins the answer.
    forced_close: &'static str,
}

/// Phase of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Nothing is decided: the output may begin with thinking.
    Start,
    /// Within the thinking.
    Thinking,
    /// Behind the thinking, or in an output without any.
    Answer,
}

/// Headers of messages: `open`, the name of a channel and further words, `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Headers {
    pub(super) end: &'static str,
    /// Channel of the thinking.
    pub(super) thinking: &'static str,
    /// Begins the recipient in the header of a tool call, behind the channel or before it.
    pub(super) recipient: &'static str,
}

/// A name that no format has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is no format of thinking; known: {known}")]
pub struct UnknownReasoningFormat {
    /// The name.
    pub found: String,
    /// Names of all formats.
    pub known: String,
}

const fn tags(name: &'static str, open: &'static str, close: &'static str) -> ReasoningFormat {
    ReasoningFormat { name, open, close, headers: None, forced_close: close }
}

impl ReasoningFormat {
    /// `<think>...</think>`: Qwen, GLM, EXAONE 4, R1 and most others.
    pub const THINK: Self = tags("think", "<think>", "</think>");
    /// `<thought>...</thought>`: EXAONE Deep.
    pub const THOUGHT: Self = tags("thought", "<thought>", "</thought>");
    /// `<seed:think>...</seed:think>`: Seed-OSS.
    pub const SEED: Self = tags("seed", "<seed:think>", "</seed:think>");
    /// `[THINK]...[/THINK]`: Magistral.
    pub const MISTRAL: Self = tags("mistral", "[THINK]", "[/THINK]");
    /// `<|channel|>analysis<|message|>...<|end|>`, then `<|channel|>final<|message|>...`: gpt-oss.
    pub const HARMONY: Self = Self {
        name: "harmony",
        open: "<|channel|>",
        close: "<|end|>",
        headers: Some(Headers { end: "<|message|>", thinking: "analysis", recipient: "to=" }),
        forced_close: "<|end|><|start|>assistant<|channel|>final<|message|>",
    };

    /// All formats.
    pub const ALL: [Self; 5] = [Self::THINK, Self::THOUGHT, Self::SEED, Self::MISTRAL, Self::HARMONY];

    /// Format that a chat template writes or removes, from the template's text. `None` for a
    /// template that knows no thinking.
    #[must_use]
    pub fn of_template(source: &str) -> Option<Self> {
        let has = |format: &Self| match format.headers {
            Some(headers) => {
                [format.open, headers.end, headers.thinking].iter().all(|text| source.contains(text))
            }
            None => source.contains(format.close),
        };
        Self::ALL.into_iter().find(has)
    }

    /// Name of the format: `think`, `thought`, `seed`, `mistral`, `harmony`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Text that begins the thinking, or the header of a message.
    #[must_use]
    pub fn open(self) -> &'static str {
        self.open
    }

    /// Text that ends the thinking, or a message.
    #[must_use]
    pub fn close(self) -> &'static str {
        self.close
    }

    /// Text that ends the thinking wherever it is and begins the answer.
    #[must_use]
    pub fn forced_close(self) -> &'static str {
        self.forced_close
    }

    /// True if every message has a header, so that no answer begins without [`open`](Self::open).
    #[must_use]
    pub fn has_headers(self) -> bool {
        self.headers.is_some()
    }

    /// Phase that output begins in behind a prompt that ends with this text: a template's
    /// generation prompt may have opened the thinking, or closed it.
    #[must_use]
    pub fn phase_after(self, prompt: &str) -> Phase {
        let end = prompt.trim_end();
        match self.headers {
            None if end.ends_with(self.open) => Phase::Thinking,
            None if end.ends_with(self.close) => Phase::Answer,
            None => Phase::Start,
            Some(headers) => {
                let header = end.rsplit_once(self.open).map(|(_, header)| header);
                match header.and_then(|header| header.strip_suffix(headers.end)) {
                    Some(header) if header.contains(headers.end) => Phase::Start,
                    Some(header) if header.starts_with(headers.thinking) => Phase::Thinking,
                    Some(_) => Phase::Answer,
                    None => Phase::Start,
                }
            }
        }
    }
}

impl fmt::Display for ReasoningFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl FromStr for ReasoningFormat {
    type Err = UnknownReasoningFormat;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|format| format.name == name).ok_or_else(|| UnknownReasoningFormat {
            found: name.to_owned(),
            known: Self::ALL.map(Self::name).join(", "),
        })
    }
}
