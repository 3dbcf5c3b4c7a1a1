//! One message of a conversation, in memory and in JSON.

use minijinja::Value as Jinja;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::SerializeMap};
use serde_json::{Map, Value, json};

use super::{origin, python::from_json};
use crate::tool_call::ToolCall;

/// One message of a conversation.
///
/// In JSON an object with at least `role`. All fields reach the template unchanged and in their
/// order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool` or another role that the template knows.
    pub role: String,
    /// The text, a list of parts (`[{"type": "text", "text": ...}, ...]`), null, or absent.
    pub content: Option<Value>,
    /// Other fields: `tool_calls`, `tool_call_id`, `name`, ...
    pub extra: Map<String, Value>,
    /// Number of extra fields before the role.
    extra_before_role: usize,
    /// Number of extra fields before the content.
    extra_before_content: usize,
    /// True if the content comes before the role.
    content_first: bool,
}

/// A field of a message: the role, or a JSON value.
enum Field<'a> {
    Role(&'a str),
    Other(&'a Value),
}

impl Message {
    /// Creates a message with a text content.
    #[must_use]
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Self {
        Self { role: role.into(), content: Some(Value::String(text.into())), ..Self::default() }
    }

    /// Creates a system message: instructions for the whole conversation.
    #[must_use]
    pub fn system(text: impl Into<String>) -> Self {
        Self::new("system", text)
    }

    /// Creates a message of the user.
    #[must_use]
    pub fn user(text: impl Into<String>) -> Self {
        Self::new("user", text)
    }

    /// Creates a message of the model.
    #[must_use]
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::new("assistant", text)
    }

    /// Creates a message of the model with tool calls. Arguments are objects, as templates expect.
    #[must_use]
    pub fn assistant_with_calls(text: impl Into<String>, calls: &[ToolCall]) -> Self {
        let call = |call: &ToolCall| {
            let function = json!({"name": call.name, "arguments": call.arguments_value()});
            json!({"id": call.id, "type": "function", "function": function})
        };
        let mut message = Self::assistant(text);
        let calls = Value::Array(calls.iter().map(call).collect());
        message.insert("tool_calls", calls);
        message
    }

    /// Creates a message with the result of a tool call.
    #[must_use]
    pub fn tool(call_id: impl Into<String>, name: impl Into<String>, text: impl Into<String>) -> Self {
        let mut message = Self::new("tool", text);
        message.insert("tool_call_id", Value::String(call_id.into()));
        message.insert("name", Value::String(name.into()));
        message
    }

    /// Adds a field behind the content.
    fn insert(&mut self, key: &str, value: Value) {
        self.extra.insert(key.to_owned(), value);
    }

    /// Calls `visit` with every string in the message.
    pub(crate) fn visit_strings(&self, visit: &mut impl FnMut(&str)) {
        visit(&self.role);
        if let Some(content) = &self.content {
            visit_strings(content, visit);
        }
        for (key, value) in &self.extra {
            visit(key);
            visit_strings(value, visit);
        }
    }

    /// Fields in their original order.
    fn fields(&self) -> Vec<(&str, Field<'_>)> {
        let mut fields: Vec<_> =
            self.extra.iter().map(|(key, value)| (key.as_str(), Field::Other(value))).collect();
        let role_at = self.extra_before_role.min(fields.len());
        let content_at = self.extra_before_content.min(fields.len());
        let role = ("role", Field::Role(self.role.as_str()));
        let content = self.content.as_ref().map(|content| ("content", Field::Other(content)));
        // The later one is inserted first, so that the index of the other stays valid.
        let content_is_later = content_at > role_at || (content_at == role_at && !self.content_first);
        if content_is_later {
            fields.splice(content_at..content_at, content);
            fields.insert(role_at, role);
        } else {
            fields.insert(role_at, role);
            fields.splice(content_at..content_at, content);
        }
        fields
    }

    /// Converts the message to a value for the template.
    pub(super) fn to_jinja(&self) -> Jinja {
        Jinja::from_pairs(self.fields().into_iter().map(|(key, field)| match field {
            Field::Role(role) => (origin::shelter(key), Jinja::from(origin::role(role))),
            Field::Other(value) => (origin::shelter(key), from_json(value)),
        }))
    }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, field) in self.fields() {
            match field {
                Field::Role(role) => map.serialize_entry(key, role)?,
                Field::Other(value) => map.serialize_entry(key, value)?,
            }
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut extra = Map::deserialize(deserializer)?;
        let place = |extra: &Map<String, Value>, key: &str| extra.keys().position(|name| name == key);
        let role_at = place(&extra, "role").ok_or_else(|| D::Error::missing_field("role"))?;
        let content_at = place(&extra, "content");
        let Some(Value::String(role)) = extra.shift_remove("role") else {
            return Err(D::Error::custom("the role of a message must be a string"));
        };
        let content = extra.shift_remove("content");
        let content_first = content_at.is_some_and(|at| at < role_at);
        Ok(Self {
            role,
            content,
            extra,
            extra_before_role: role_at - usize::from(content_first),
            extra_before_content: content_at.map_or(0, |at| at - usize::from(!content_first)),
            content_first,
        })
    }
}

/// Calls `visit` with every string in a JSON value, keys included.
pub(crate) fn visit_strings(value: &Value, visit: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => visit(text),
        Value::Array(values) => values.iter().for_each(|value| visit_strings(value, visit)),
        Value::Object(map) => {
            for (key, value) in map {
                visit(key);
                visit_strings(value, visit);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_their_fields_and_the_order() -> Result<(), serde_json::Error> {
        for json in [
            r#"{"role":"assistant"}"#,
            r#"{"role":"assistant","content":null,"tool_calls":[]}"#,
            r#"{"role":"tool","tool_call_id":"x","content":"y"}"#,
            r#"{"name":"n","role":"tool","id":1,"content":"y","z":{}}"#,
            r#"{"content":[1],"role":"user"}"#,
            r#"{"a":1,"content":"c","b":2,"role":"user"}"#,
            r#"{"a":1,"role":"user","b":2}"#,
        ] {
            let message: Message = serde_json::from_str(json)?;
            assert_eq!(serde_json::to_string(&message)?, json);
        }
        let new = serde_json::to_string(&Message::user("hi"))?;
        assert_eq!(new, r#"{"role":"user","content":"hi"}"#);
        let null: Message = serde_json::from_str(r#"{"role": "assistant", "content": null}"#)?;
        assert_eq!(null.content, Some(Value::Null));
        Ok(())
    }

    #[test]
    fn a_message_without_a_role_is_refused() {
        for json in ["{}", r#"{"content": "x"}"#, r#"{"role": 1}"#, r#"{"role": null}"#, "[]"] {
            assert!(serde_json::from_str::<Message>(json).is_err(), "{json}");
        }
    }
}
