//! Types of parameters, for formats that write arguments as the text between tags.

use std::collections::BTreeMap;

use serde_json::Value;

/// Most references from one schema to another that are followed.
const REFERENCES: usize = 16;

/// Reading of the text of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentType {
    /// The text itself: a parameter whose values are strings alone.
    Text,
    /// JSON: a parameter without strings.
    Json,
    /// JSON if the text is a value, else the text itself: a parameter with strings and others, or
    /// of unknown type.
    Any,
}

impl ArgumentType {
    /// Type of the values that a JSON Schema accepts; `root` is the schema that its references
    /// point into.
    #[must_use]
    pub fn of_schema(schema: &Value, root: &Value) -> Self {
        Self::of_nested(schema, root, 0)
    }

    fn of_nested(schema: &Value, root: &Value, depth: usize) -> Self {
        if depth == REFERENCES {
            return Self::Any;
        }
        let of = |keyword: &str| schema.get(keyword);
        let value = |value: &Value| if value.is_string() { Self::Text } else { Self::Json };
        let named = |name: &Value| match name.as_str() {
            Some("string") => Self::Text,
            Some(_) => Self::Json,
            None => Self::Any,
        };
        let nested = |schema: &Value| Self::of_nested(schema, root, depth + 1);
        let all = |list: &Value, each: &dyn Fn(&Value) -> Self| {
            let mut types = list.as_array()?.iter().map(each);
            types.next().map(|first| types.fold(first, Self::or))
        };
        let target = || root.pointer(of("$ref")?.as_str()?.strip_prefix('#')?);
        let found = match (of("enum"), of("const"), of("type")) {
            (Some(list), _, _) => all(list, &value),
            (_, Some(one), _) => Some(value(one)),
            (_, _, Some(names @ Value::Array(_))) => all(names, &named),
            (_, _, Some(name)) => Some(named(name)),
            _ => match ["anyOf", "oneOf"].into_iter().find_map(of) {
                Some(list) => all(list, &nested),
                None => target().map(nested),
            },
        };
        found.unwrap_or(Self::Any)
    }

    fn or(self, other: Self) -> Self {
        if self == other { self } else { Self::Any }
    }

    /// The JSON of an argument's text.
    pub(super) fn json(self, text: &str) -> String {
        let trimmed = text.trim();
        // Read as it will be: one level deeper, within the object of all arguments.
        let is_json = || {
            let nested = serde_json::from_str::<Value>(&format!("[{trimmed}]"));
            nested.is_ok_and(|list| list.as_array().is_some_and(|list| list.len() == 1))
        };
        match (self, trimmed) {
            // Templates in Python's notation teach these.
            (Self::Json, "True") => "true".to_owned(),
            (Self::Json, "False") => "false".to_owned(),
            (Self::Json, "None") => "null".to_owned(),
            (Self::Json | Self::Any, _) if is_json() => trimmed.to_owned(),
            _ => Value::String(text.to_owned()).to_string(),
        }
    }
}

/// Types of the parameters of tools. Those of tools that it does not know are
/// [`Any`](ArgumentType::Any).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ArgumentTypes(BTreeMap<String, BTreeMap<String, ArgumentType>>);

impl ArgumentTypes {
    /// Adds a tool with the JSON Schema of its parameters.
    pub fn add(&mut self, tool: &str, parameters: &Value) {
        let properties = parameters.get("properties").and_then(Value::as_object);
        let types = properties
            .into_iter()
            .flatten()
            .map(|(name, schema)| (name.clone(), ArgumentType::of_schema(schema, parameters)));
        self.0.insert(tool.to_owned(), types.collect());
    }

    /// Type of a parameter.
    #[must_use]
    pub fn of(&self, tool: &str, parameter: &str) -> ArgumentType {
        self.0.get(tool).and_then(|types| types.get(parameter)).copied().unwrap_or(ArgumentType::Any)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use ArgumentType::{Any, Json, Text};

    #[test]
    fn schemas_have_types() {
        let root = json!({"$defs": {"text": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}});
        for (schema, expected) in [
            (json!({"type": "string", "maxLength": 3}), Text),
            (json!({"type": "integer"}), Json),
            (json!({"type": ["array", "object"]}), Json),
            (json!({"type": ["string", "null"]}), Any),
            (json!({"enum": ["a", "b"]}), Text),
            (json!({"enum": [1, null]}), Json),
            (json!({"enum": ["a", 1]}), Any),
            (json!({"const": "a"}), Text),
            (json!({"anyOf": [{"type": "number"}, {"type": "null"}]}), Json),
            (json!({"anyOf": [{"type": "string"}, {"enum": ["a"]}]}), Text),
            (json!({"oneOf": [{"type": "string"}, {"type": "null"}]}), Any),
            (json!({"$ref": "#/$defs/text"}), Text),
            (json!({"$ref": "#/$defs/loop"}), Any),
            (json!({"$ref": "#/$defs/absent"}), Any),
            (json!({}), Any),
            (json!(true), Any),
        ] {
            assert_eq!(ArgumentType::of_schema(&schema, &root), expected, "{schema}");
        }
    }

    #[test]
    fn texts_become_json() {
        for (kind, text, expected) in [
            (Text, "42", "\"42\""),
            (Text, " a\n\"b\" ", "\" a\\n\\\"b\\\" \""),
            (Json, " 42\n", "42"),
            (Json, "[1, 2]", "[1, 2]"),
            (Json, "True", "true"),
            (Json, "\"a\"", "\"a\""),
            (Json, "no json", "\"no json\""),
            (Any, "42", "42"),
            (Any, "{\"a\": null}", "{\"a\": null}"),
            (Any, "\"a\"", "\"a\""),
            (Any, "True", "\"True\""),
            (Any, "", "\"\""),
            (Any, "1, 2", "\"1, 2\""),
        ] {
            assert_eq!(kind.json(text), expected, "{kind:?} {text:?}");
        }
        let deep = |n: usize| "[".repeat(n) + &"]".repeat(n);
        assert!(Any.json(&deep(126)).starts_with('['));
        assert!(Any.json(&deep(127)).starts_with('"'));
    }
}
