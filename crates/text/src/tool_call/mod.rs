//! Tool calls in generated text: the formats that models write them in, and a streaming parser.
//!
//! ```text
//! chat template ──of_template──▶ ToolCallFormat
//! pieces of text ──push──▶ ToolCallParser ──▶ ToolCallEvent: content, begin, arguments, end
//! ```
//! Constraints that make calls valid are in the engine's crate: they need a vocabulary.

mod elements;
mod format;
mod object;
mod parser;
mod scan;
mod types;

#[cfg(test)]
mod tests;

pub(crate) use self::elements::open_suffix;
pub use self::format::{ToolCallFormat, UnknownToolCallFormat};
pub use self::parser::{ParsedOutput, ToolCall, ToolCallEvent, ToolCallParser};
pub use self::types::{ArgumentType, ArgumentTypes};
