//! Input items: messages, thinking, calls of functions and their results.

use ruvllm::Message;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::api_error::ApiError;
use crate::openai::chat::{CallParam, ChatMessage, Content, FunctionParam, messages_of, text_of_content};

/// An input item; the fields of all types.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub(crate) struct InputItem {
    /// Absent: a message.
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Of messages.
    role: Option<String>,
    #[schema(schema_with = crate::field_schema::parts)]
    content: Option<Content>,
    /// Of calls and their results.
    call_id: Option<String>,
    /// Of calls.
    name: Option<String>,
    arguments: Option<String>,
    /// Of results.
    #[schema(schema_with = crate::field_schema::parts)]
    output: Option<Content>,
}

impl InputItem {
    /// The value of a field that items of this type have.
    fn field<'i, T>(&self, field: &'i Option<T>, name: &str, path: &str) -> Result<&'i T, ApiError> {
        field.as_ref().ok_or_else(|| {
            let kind = self.kind.as_deref().unwrap_or("message");
            let message = format!("an item of type {kind} has no {name}");
            ApiError::invalid_param(format!("{path}.{name}"), message)
        })
    }

    /// Adds the item to the conversation.
    fn push(&self, path: &str, out: &mut Vec<ChatMessage>) -> Result<(), ApiError> {
        match self.kind.as_deref().unwrap_or("message") {
            "message" => {
                let role = self.field(&self.role, "role", path)?;
                if !["user", "assistant", "system", "developer"].contains(&role.as_str()) {
                    let message =
                        format!("{role:?} is unknown, expected user, assistant, system or developer");
                    return Err(ApiError::invalid_param(format!("{path}.role"), message));
                }
                let content = self.field(&self.content, "content", path)?;
                let text = text_of_content(content, &format!("{path}.content"))?;
                push_message(if role == "developer" { "system" } else { role }, &text, out);
            }
            "function_call" => {
                let call = CallParam {
                    id: Some(self.field(&self.call_id, "call_id", path)?.clone()),
                    function: FunctionParam {
                        name: self.field(&self.name, "name", path)?.clone(),
                        arguments: Value::String(self.field(&self.arguments, "arguments", path)?.clone()),
                    },
                };
                if out.last().is_none_or(|message| message.role != "assistant") {
                    out.push(ChatMessage::new("assistant", ""));
                }
                if let Some(message) = out.last_mut() {
                    message.tool_calls.get_or_insert_default().push(call);
                }
            }
            "function_call_output" => {
                let output = self.field(&self.output, "output", path)?;
                let text = text_of_content(output, &format!("{path}.output"))?;
                let mut result = ChatMessage::new("tool", text);
                result.tool_call_id = Some(self.field(&self.call_id, "call_id", path)?.clone());
                out.push(result);
            }
            // Without content it is encrypted, or a summary.
            "reasoning" => {
                if let Some(content) = &self.content {
                    let mut message = ChatMessage::new("assistant", "");
                    message.reasoning_content = Some(text_of_content(content, &format!("{path}.content"))?);
                    out.push(message);
                }
            }
            "item_reference" => {
                let message = "items are not kept here; send the item in place of its id";
                return Err(ApiError::invalid_param(format!("{path}.type"), message));
            }
            kind => {
                let message = format!("items of type {kind:?} are not supported");
                return Err(ApiError::invalid_param(format!("{path}.type"), message));
            }
        }
        Ok(())
    }
}

/// Adds a message. Instructions that follow each other become one message: most templates take one
/// system message, at the beginning. An answer joins its thinking.
fn push_message(role: &str, text: &str, out: &mut Vec<ChatMessage>) {
    match out.last_mut() {
        Some(last) if role == "system" && last.role == role => last.push_line(text),
        Some(last) if role == "assistant" && last.is_thinking_alone() => last.push_line(text),
        _ => out.push(ChatMessage::new(role, text)),
    }
}

/// Messages for the chat template. `most` is the largest number of items.
///
/// # Errors
/// 400 for an empty or too long list, and for items that cannot be used.
pub(crate) fn conversation(
    instructions: Option<&str>,
    input: &Content<InputItem>,
    most: usize,
) -> Result<Vec<Message>, ApiError> {
    let mut out = Vec::new();
    if let Some(instructions) = instructions {
        push_message("system", instructions, &mut out);
    }
    match input {
        Content::Text(text) => out.push(ChatMessage::new("user", text)),
        Content::Parts(items) => {
            if !(1..=most).contains(&items.len()) {
                let message = format!("there are {} items, expected 1 to {most}", items.len());
                return Err(ApiError::invalid_param("input", message));
            }
            for (index, item) in items.iter().enumerate() {
                item.push(&format!("input[{index}]"), &mut out)?;
            }
        }
    }
    messages_of(&out, usize::MAX)
}
