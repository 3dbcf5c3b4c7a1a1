//! Flags that restrict the output to a language: JSON, a grammar, a regular expression, choices.

use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm::{Constraint, ConstraintError};

use crate::error::{Error, Result};
use crate::input;

/// Language of the output; at most one of them.
// llama.cpp's names where it has them; its --grammar takes the text itself.
#[derive(Debug, Args)]
#[command(next_help_heading = "Structured output")]
#[group(multiple = false)]
pub(crate) struct OutputArgs {
    /// Generate a JSON object
    #[arg(long)]
    json_object: bool,

    /// Generate JSON that the JSON Schema in a file (- = standard input) accepts
    #[arg(long, value_name = "FILE")]
    json_schema: Option<PathBuf>,

    /// Generate text of the grammar in a file: Lark or GBNF
    #[arg(long, visible_alias = "grammar-file", value_name = "FILE")]
    grammar: Option<PathBuf>,

    /// Generate text that a regular expression matches as a whole
    #[arg(long, value_name = "REGEX")]
    regex: Option<String>,

    /// Generate one of these texts
    #[arg(long, value_name = "TEXT,...", value_delimiter = ',')]
    choices: Vec<String>,
}

/// A language of the output, and the setting that names it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OutputLanguage {
    /// The setting as `/set output` takes it: the flag without dashes and its value.
    pub(crate) setting: String,
    pub(crate) constraint: Constraint,
}

/// Forms of the setting, for messages.
pub(crate) const FORMS: &str =
    "json-object, json-schema FILE, grammar FILE, regex REGEX, choices TEXT,TEXT, or off";

impl OutputArgs {
    /// The language of the flags. `stdin_is_free` tells that nothing else reads standard input.
    ///
    /// # Errors
    /// [`Error::Output`] names the flag and the fault; [`Error::StdinTwice`]; a file that cannot be
    /// read.
    pub(crate) fn language(&self, stdin_is_free: bool) -> Result<Option<OutputLanguage>> {
        let (name, value) = match self {
            Self { json_object: true, .. } => ("json-object", String::new()),
            Self { json_schema: Some(path), .. } => ("json-schema", path.display().to_string()),
            Self { grammar: Some(path), .. } => ("grammar", path.display().to_string()),
            Self { regex: Some(regex), .. } => ("regex", regex.clone()),
            Self { choices, .. } if !choices.is_empty() => ("choices", choices.join(",")),
            _ => return Ok(None),
        };
        let path = self.json_schema.as_deref().or(self.grammar.as_deref());
        if path == Some(Path::new("-")) && !stdin_is_free {
            return Err(Error::StdinTwice { flag: name });
        }
        let fault = |reason| Error::Output { flag: format!("--{name}"), reason };
        let constraint = match path {
            Some(path) => of_file(name, path)?,
            None => of_text(name, &value),
        };
        Ok(Some(OutputLanguage {
            setting: format!("{name} {value}").trim_end().to_owned(),
            constraint: constraint.map_err(fault)?,
        }))
    }
}

impl OutputLanguage {
    /// The language of a setting; `off` is none.
    ///
    /// # Errors
    /// The fault, or the forms that there are.
    pub(crate) fn of_setting(setting: &str) -> Result<Option<Self>, String> {
        let setting = setting.trim();
        if setting == "off" {
            return Ok(None);
        }
        let (name, value) = setting.split_once(' ').unwrap_or((setting, ""));
        let constraint = match name {
            "json-schema" | "grammar" if value == "-" => {
                return Err("standard input has the messages; name a file".to_owned());
            }
            "json-schema" | "grammar" if !value.is_empty() => {
                of_file(name, Path::new(value)).map_err(|error| error.line())?
            }
            "json-object" | "regex" | "choices" => of_text(name, value),
            _ => return Err(format!("expected {FORMS}")),
        };
        Ok(Some(Self { setting: setting.to_owned(), constraint: constraint? }))
    }
}

/// The constraint of a flag whose value is a text.
fn of_text(name: &str, value: &str) -> Result<Constraint, String> {
    let constraint = match name {
        "json-object" => Ok(Constraint::json()),
        "regex" => Constraint::regex(value),
        _ => Constraint::choices(value.split(',')),
    };
    constraint.map_err(|error| error.to_string())
}

/// The constraint of a flag whose value is a file.
fn of_file(name: &str, path: &Path) -> Result<Result<Constraint, String>> {
    let text = input::file_text(path)?;
    let constraint = match name {
        "json-schema" => match serde_json::from_str(&text) {
            Ok(schema) => Constraint::json_schema(&schema),
            Err(error) => return Ok(Err(format!("{} is not JSON: {error}", path.display()))),
        },
        _ => grammar(path, &text),
    };
    Ok(constraint.map_err(|error| format!("{}: {error}", path.display())))
}

/// A grammar in the notation that the file's name says, or else its text.
fn grammar(path: &Path, text: &str) -> Result<Constraint, ConstraintError> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let is_gbnf = match extension.map(str::to_ascii_lowercase).as_deref() {
        Some("gbnf") => true,
        Some("lark") => false,
        // Lark defines with a single colon.
        _ => text.lines().any(|line| line.contains("::=")),
    };
    if is_gbnf { Constraint::gbnf(text) } else { Constraint::lark(text) }
}
