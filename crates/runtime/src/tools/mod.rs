//! Tool calls: choice of tools, calls that are valid by construction, and the loop that runs them.
//!
//! ```text
//! Prompt::chat_with_tools ─▶ chat template (tells the model) ─▶ ToolCallFormat
//! tool_choice, schemas ────▶ grammar of the answer ─▶ Completion::tool_calls
//! ToolLoop: generate ─▶ run calls ─▶ tool messages ─▶ generate ...
//! ```

mod choice;
mod definition;
mod error;
mod output;
mod request;
mod tool_loop;

pub use self::choice::ToolChoice;
pub use self::error::ToolError;
pub(crate) use self::output::{OutputParser, ParsedText};
pub(crate) use self::request::{RequestTools, prompt_of};
pub use self::tool_loop::{
    Generator, Tool, ToolLoop, ToolLoopEnd, ToolLoopEvent, ToolLoopOptions, ToolLoopResult,
};
