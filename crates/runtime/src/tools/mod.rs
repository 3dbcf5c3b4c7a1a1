//! Tool calls: choice of tools, and calls that are valid by construction.
//!
//! ```text
//! Prompt::chat_with_tools ─▶ chat template (tells the model) ─▶ ToolCallFormat
//! tool_choice, schemas ────▶ grammar of the answer ─▶ Completion::tool_calls
//! ```

mod choice;
mod definition;
mod error;
mod request;

pub use self::choice::ToolChoice;
pub(crate) use self::definition::definitions;
pub use self::error::ToolError;
pub(crate) use self::request::{RequestTools, Scope, prompt_of};
