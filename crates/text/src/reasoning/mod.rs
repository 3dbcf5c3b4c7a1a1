//! Thinking of reasoning models: formats, their detection, and a streaming parser that tells it
//! apart from the answer (ADR-0118).
//!
//! A model writes its thinking in front of the answer, in text that a format delimits.
//! [`ReasoningParser`] splits such text; [`AnswerParser`] also finds tool calls behind it.

mod answer;
mod format;
mod parser;
#[cfg(test)]
mod tests;

pub use self::answer::{AnswerEvent, AnswerParser, ParsedAnswer};
pub use self::format::{Phase, ReasoningFormat, UnknownReasoningFormat};
pub use self::parser::{Part, ReasoningParser};
