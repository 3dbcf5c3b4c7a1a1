//! Flags of tools: functions that the model may call.

use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm::{ToolCallFormat, ToolChoice};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::input;
use crate::tools::Tools;

/// Tools of the conversation.
#[derive(Debug, Args)]
#[command(next_help_heading = "Tools")]
pub(crate) struct ToolArgs {
    /// Functions that the model may call: JSON array (- = standard input)
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,

    /// Calls: auto, none, required, or the name of a tool
    #[arg(long, value_name = "CHOICE", default_value = "auto", requires = "tools", value_parser = choice)]
    tool_choice: ToolChoice,

    /// Allow at most one call per answer
    #[arg(long, requires = "tools")]
    one_tool_call: bool,

    /// Parse calls without restricting them to the tools' schemas
    #[arg(long, requires = "tools")]
    unconstrained_tools: bool,

    /// Format of calls: hermes, llama, mistral, mistral-args, function-tag,
    /// qwen-xml, glm or harmony [default: that of the chat template]
    #[arg(long, value_name = "FORMAT", requires = "tools", value_parser = format)]
    tool_format: Option<ToolCallFormat>,
}

impl ToolArgs {
    /// The tools of the flags. `stdin_is_free` tells that nothing else reads standard input.
    ///
    /// # Errors
    /// [`Error::StdinTwice`]; a file that cannot be read or is no JSON list.
    pub(crate) fn read(&self, stdin_is_free: bool) -> Result<Option<Tools>> {
        let Some(path) = &self.tools else { return Ok(None) };
        if path == Path::new("-") && !stdin_is_free {
            return Err(Error::StdinTwice { flag: "tools" });
        }
        let wrong = |reason: String| Error::Input { origin: path.display().to_string(), reason };
        let document: Value = serde_json::from_str(&input::file_text(path)?)
            .map_err(|error| wrong(format!("invalid JSON ({error})")))?;
        let definitions = match document {
            Value::Object(mut map) => map.remove("tools").unwrap_or_default(),
            list => list,
        };
        if !definitions.is_array() {
            let expected = "expected a JSON array of tools, or an object with one under `tools`";
            return Err(wrong(expected.to_owned()));
        }
        Ok(Some(Tools {
            definitions,
            choice: self.tool_choice.clone(),
            format: self.tool_format,
            parallel: !self.one_tool_call,
            constrains: !self.unconstrained_tools,
        }))
    }
}

/// Parses a choice of tools.
pub(crate) fn choice(text: &str) -> Result<ToolChoice, String> {
    if text.is_empty() {
        return Err("expected auto, none, required or the name of a tool".to_owned());
    }
    text.parse().map_err(|never: std::convert::Infallible| never.to_string())
}

fn format(name: &str) -> Result<ToolCallFormat, String> {
    name.parse().map_err(|error: ruvllm_text::tool_call::UnknownToolCallFormat| error.to_string())
}
