//! Definitions of tools: the JSON list of the chat-completions API, checked.

use serde_json::Value;

use super::error::ToolError;

/// Longest name in characters, that of the chat-completions API.
const NAME_CHARS: usize = 64;

/// A tool of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Definition<'t> {
    pub(crate) name: &'t str,
    /// Schema of its arguments; `None` for a function without any.
    pub(crate) parameters: Option<&'t Value>,
}

/// The tools of a list, each of which is `{"type": "function", "function": {...}}` or the inner
/// object alone.
///
/// # Errors
/// [`ToolError`]`::{NotAList, Unnamed, InvalidName, Duplicate, Parameters}`.
pub(crate) fn definitions(tools: &Value) -> Result<Vec<Definition<'_>>, ToolError> {
    let list = tools.as_array().ok_or(ToolError::NotAList { found: kind(tools) })?;
    let mut found: Vec<Definition<'_>> = Vec::with_capacity(list.len());
    for (index, tool) in list.iter().enumerate() {
        let function = tool.get("function").unwrap_or(tool);
        let name = function.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
        let name = name.ok_or(ToolError::Unnamed { index })?;
        check_name(name)?;
        if found.iter().any(|known| known.name == name) {
            return Err(ToolError::Duplicate { name: name.to_owned() });
        }
        let parameters = function.get("parameters").filter(|parameters| !parameters.is_null());
        if !parameters.is_none_or(is_object_schema) {
            return Err(ToolError::Parameters { name: name.to_owned() });
        }
        found.push(Definition { name, parameters });
    }
    Ok(found)
}

/// Checks the characters of a name: in some formats it stands between markers.
pub(crate) fn check_name(name: &str) -> Result<(), ToolError> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "_-.:/".contains(c);
    if name.chars().count() <= NAME_CHARS && name.chars().all(is_valid) {
        return Ok(());
    }
    Err(ToolError::InvalidName { name: name.chars().take(NAME_CHARS).collect() })
}

fn is_object_schema(schema: &Value) -> bool {
    schema.as_object().is_some_and(|schema| schema.get("type").is_none_or(|kind| kind == "object"))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_forms_are_read() {
        let tools = json!([
            {"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}},
            {"name": "b", "parameters": null},
            {"name": "c.d-e_f:g/h"},
        ]);
        let found = definitions(&tools).unwrap();
        assert_eq!(found.iter().map(|tool| tool.name).collect::<Vec<_>>(), ["a", "b", "c.d-e_f:g/h"]);
        assert!(found[0].parameters.is_some() && found[1].parameters.is_none());
        assert_eq!(definitions(&json!([])), Ok(Vec::new()));
    }

    #[test]
    fn faults_name_the_tool() {
        let long = "x".repeat(65);
        for (tools, message) in [
            (json!({}), "not an object"),
            (json!("x"), "not a string"),
            (json!([{"name": "a"}, {}]), "tool 2 has no name"),
            (json!([{"function": {"name": ""}}]), "tool 1 has no name"),
            (json!([{"name": 3}]), "tool 1 has no name"),
            (json!(["x"]), "tool 1 has no name"),
            (json!([{"name": "a b"}]), "`a b` is not valid"),
            (json!([{"name": "a>"}]), "`a>` is not valid"),
            (json!([{"name": long}]), "is not valid"),
            (json!([{"name": "a"}, {"name": "b"}, {"name": "a"}]), "two tools with the name `a`"),
            (json!([{"name": "a", "parameters": {"type": "string"}}]), "tool `a`"),
            (json!([{"name": "a", "parameters": 3}]), "tool `a`"),
        ] {
            let error = definitions(&tools).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
