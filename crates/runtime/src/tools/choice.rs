//! Choice of tools, as the chat-completions API has it.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use super::error::ToolError;

/// Tools that an answer may call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ToolChoice {
    /// The model decides between text and calls.
    #[default]
    Auto,
    /// No calls: the template does not get the tools.
    None,
    /// At least one call, of any tool.
    Required,
    /// Calls of one tool.
    Named(String),
}

impl ToolChoice {
    /// The choice in the JSON form of the chat-completions API: `"auto"`, `"none"`, `"required"`,
    /// or `{"type": "function", "function": {"name": ...}}`.
    ///
    /// # Errors
    /// [`ToolError::Choice`].
    pub fn from_json(value: &Value) -> Result<Self, ToolError> {
        let name = || value.get("function").unwrap_or(value).get("name")?.as_str();
        match value.as_str() {
            Some("auto") => Ok(Self::Auto),
            Some("none") => Ok(Self::None),
            Some("required") => Ok(Self::Required),
            Some(_) => Err(ToolError::Choice { found: value.to_string() }),
            None => match name() {
                Some(name) => Ok(Self::Named(name.to_owned())),
                None => Err(ToolError::Choice { found: value.to_string() }),
            },
        }
    }
}

/// `auto`, `none`, `required`, or the name of a tool.
impl FromStr for ToolChoice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "auto" => Self::Auto,
            "none" => Self::None,
            "required" => Self::Required,
            name => Self::Named(name.to_owned()),
        })
    }
}

impl fmt::Display for ToolChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::None => "none",
            Self::Required => "required",
            Self::Named(name) => name,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn forms_of_the_api() {
        let named = ToolChoice::Named("f".to_owned());
        for (json, choice) in [
            (json!("auto"), ToolChoice::Auto),
            (json!("none"), ToolChoice::None),
            (json!("required"), ToolChoice::Required),
            (json!({"type": "function", "function": {"name": "f"}}), named.clone()),
            (json!({"type": "function", "name": "f"}), named),
        ] {
            assert_eq!(ToolChoice::from_json(&json), Ok(choice.clone()));
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        for json in [json!("any"), json!(3), json!({}), json!({"function": {"name": 3}})] {
            assert!(matches!(ToolChoice::from_json(&json), Err(ToolError::Choice { .. })), "{json}");
        }
    }
}
