//! Messages of a conversation as clients send them, and as the chat template takes them.

use std::fmt;
use std::marker::PhantomData;

use ruvllm::Message;
use ruvllm::serde_json::{Map, Value};
use serde::Deserialize as Derive;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use utoipa::ToSchema;

use crate::api_error::ApiError;

/// A message.
#[derive(Debug, Clone, Derive, ToSchema)]
pub(crate) struct ChatMessage {
    pub(crate) role: String,
    #[schema(schema_with = crate::field_schema::parts)]
    pub(crate) content: Option<Content>,
    pub(crate) name: Option<String>,
    pub(crate) tool_calls: Option<Vec<CallParam>>,
    pub(crate) tool_call_id: Option<String>,
    /// Thinking of an earlier answer, for templates that send it again.
    pub(crate) reasoning_content: Option<String>,
    /// The same under another name, where `reasoning_content` is absent.
    pub(crate) reasoning: Option<String>,
}

impl ChatMessage {
    /// A message of text alone.
    pub(crate) fn new(role: &str, text: impl Into<String>) -> Self {
        Self {
            role: role.to_owned(),
            content: Some(Content::Text(text.into())),
            name: None,
            tool_calls: None,
            tool_call_id: None,
            reasoning_content: None,
            reasoning: None,
        }
    }

    /// True for thinking whose answer has not come.
    pub(crate) fn is_thinking_alone(&self) -> bool {
        let is_empty = matches!(&self.content, Some(Content::Text(text)) if text.is_empty());
        self.reasoning_content.is_some() && is_empty && self.tool_calls.is_none()
    }

    /// Adds a line to a message of text alone.
    pub(crate) fn push_line(&mut self, line: &str) {
        if let Some(Content::Text(text)) = &mut self.content {
            if !text.is_empty() && !line.is_empty() {
                text.push('\n');
            }
            text.push_str(line);
        }
    }
}

/// Text, or a list of parts.
#[derive(Debug, Clone)]
pub(crate) enum Content<P = Part> {
    Text(String),
    Parts(Vec<P>),
}

/// Part of a message.
#[derive(Debug, Clone, Derive, ToSchema)]
#[schema(as = ContentPart)]
pub(crate) struct Part {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(alias = "refusal")]
    pub(crate) text: Option<String>,
}

/// Tool call of an earlier answer.
#[derive(Debug, Clone, Derive, ToSchema)]
pub(crate) struct CallParam {
    pub(crate) id: Option<String>,
    pub(crate) function: FunctionParam,
}

/// Name and arguments of a call.
#[derive(Debug, Clone, Derive, ToSchema)]
pub(crate) struct FunctionParam {
    pub(crate) name: String,
    /// JSON text of an object, or the object.
    #[serde(default)]
    pub(crate) arguments: Value,
}

impl<'de, P: Deserialize<'de>> Deserialize<'de> for Content<P> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<P>(PhantomData<P>);

        impl<'de, P: Deserialize<'de>> Visitor<'de> for Either<P> {
            type Value = Content<P>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of parts")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Content<P>, E> {
                Ok(Content::Text(text.to_owned()))
            }

            fn visit_string<E: Error>(self, text: String) -> Result<Content<P>, E> {
                Ok(Content::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Content<P>, A::Error> {
                let mut parts = Vec::new();
                while let Some(part) = seq.next_element()? {
                    parts.push(part);
                }
                Ok(Content::Parts(parts))
            }
        }

        deserializer.deserialize_any(Either(PhantomData))
    }
}

/// Text of a content: that of its parts, one a line. `param` is the path of the content.
///
/// # Errors
/// 400 for a part that is no text: images and sounds are not understood.
pub(crate) fn text_of_content(content: &Content, param: &str) -> Result<String, ApiError> {
    let parts = match content {
        Content::Text(text) => return Ok(text.clone()),
        Content::Parts(parts) => parts,
    };
    let mut lines = Vec::with_capacity(parts.len());
    for (index, part) in parts.iter().enumerate() {
        let kind = part.kind.as_str();
        if !["text", "input_text", "output_text", "reasoning_text", "refusal"].contains(&kind) {
            let message = format!("parts of type {kind:?} are not supported; send text");
            return Err(ApiError::invalid_param(format!("{param}[{index}].type"), message));
        }
        let Some(text) = &part.text else {
            let message = "a text part has no text";
            return Err(ApiError::invalid_param(format!("{param}[{index}].text"), message));
        };
        lines.push(text.as_str());
    }
    Ok(lines.join("\n"))
}

/// Messages for the chat template. `most` is the largest number of them.
///
/// The role `developer` becomes `system`, which all templates know. Arguments of calls become
/// objects, as templates expect, and results get the name of their call's function.
///
/// # Errors
/// 400 for an empty or too long list, and for parts that are no text.
pub(crate) fn messages_of(messages: &[ChatMessage], most: usize) -> Result<Vec<Message>, ApiError> {
    if !(1..=most).contains(&messages.len()) {
        let message = format!("there are {} messages, expected 1 to {most}", messages.len());
        return Err(ApiError::invalid_param("messages", message));
    }
    let mut converted = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let param = format!("messages[{index}].content");
        let text = message.content.as_ref().map(|content| text_of_content(content, &param)).transpose()?;
        let role = if message.role == "developer" { "system" } else { &message.role };
        let mut out = Message::new(role, text.unwrap_or_default());
        let mut insert = |key: &str, value: Value| out.extra.insert(key.to_owned(), value);
        if let Some(calls) = message.tool_calls.as_ref().filter(|calls| !calls.is_empty()) {
            insert("tool_calls", Value::Array(calls.iter().map(call).collect()));
        }
        if let Some(id) = &message.tool_call_id {
            insert("tool_call_id", id.clone().into());
        }
        if let Some(name) = message.name.clone().or_else(|| function_of(messages, message)) {
            insert("name", name.into());
        }
        if let Some(thinking) = message.reasoning_content.as_ref().or(message.reasoning.as_ref()) {
            insert("reasoning_content", thinking.clone().into());
        }
        converted.push(out);
    }
    Ok(converted)
}

/// A call as templates take it.
fn call(call: &CallParam) -> Value {
    let FunctionParam { name, arguments } = &call.function;
    let parsed = arguments.as_str().and_then(|text| ruvllm::serde_json::from_str::<Value>(text).ok());
    let arguments = parsed.filter(Value::is_object).unwrap_or_else(|| arguments.clone());
    let function =
        Map::from_iter([("name".to_owned(), name.clone().into()), ("arguments".to_owned(), arguments)]);
    let fields =
        [("id", call.id.clone().into()), ("type", "function".into()), ("function", Value::Object(function))];
    Value::Object(fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

/// Name of the function whose result a message holds.
fn function_of(messages: &[ChatMessage], result: &ChatMessage) -> Option<String> {
    let id = result.tool_call_id.as_deref()?;
    let calls = messages.iter().flat_map(|message| message.tool_calls.iter().flatten());
    calls.filter(|call| call.id.as_deref() == Some(id)).map(|call| call.function.name.clone()).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::parse;

    fn convert(json: &str) -> Result<Vec<Message>, ApiError> {
        messages_of(&parse::<Vec<ChatMessage>>(json.as_bytes())?, 100)
    }

    #[test]
    fn contents_are_texts_or_parts() {
        let messages = convert(
            r#"[{"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]"#,
        )
        .unwrap();
        assert_eq!((messages[0].role.as_str(), messages[1].role.as_str()), ("system", "user"));
        assert_eq!(messages[1].content, Some("a\nb".into()));
    }

    #[test]
    fn calls_become_objects_and_results_get_names() {
        let messages = convert(
            r#"[{"role": "assistant", "content": null, "tool_calls":
                  [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
                {"role": "tool", "tool_call_id": "c1", "content": "2"}]"#,
        )
        .unwrap();
        assert_eq!(messages[0].extra["tool_calls"][0]["function"]["arguments"]["x"], 1);
        assert_eq!(messages[1].extra["name"], "f");
    }

    #[test]
    fn faults_are_named_by_their_path() {
        let param = |json: &str| convert(json).unwrap_err().param.unwrap();
        assert_eq!(param(r#"[{"role": "user", "content": 3}]"#), "[0].content");
        assert_eq!(param("[]"), "messages");
        let image = r#"[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]"#;
        assert_eq!(param(image), "messages[0].content[0].type");
    }
}
