//! Messages as Anthropic's clients send them.

use ruvllm::Message;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::api_error::ApiError;
use crate::openai::chat::{CallParam, ChatMessage, Content, FunctionParam, messages_of};

/// A message: text, or content blocks.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub(crate) struct MessageParam {
    role: String,
    #[schema(schema_with = crate::field_schema::blocks)]
    content: Content<Block>,
}

/// A content block; the fields of all types.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ContentBlockParam)]
pub(crate) struct Block {
    #[serde(rename = "type")]
    kind: String,
    /// Of `text`.
    text: Option<String>,
    /// Of `thinking`.
    thinking: Option<String>,
    /// Of `tool_use`.
    id: Option<String>,
    name: Option<String>,
    input: Option<Value>,
    /// Of `tool_result`.
    tool_use_id: Option<String>,
    #[schema(schema_with = crate::field_schema::blocks)]
    content: Option<Content<Block>>,
}

impl Block {
    /// The value of a field that blocks of this type have.
    fn field<'b, T>(&self, field: &'b Option<T>, name: &str, path: &str) -> Result<&'b T, ApiError> {
        field.as_ref().ok_or_else(|| {
            let message = format!("a block of type {} has no {name}", self.kind);
            ApiError::invalid_param(format!("{path}.{name}"), message)
        })
    }

    fn unsupported(&self, path: &str) -> ApiError {
        let message = format!("blocks of type {:?} are not supported here; send text", self.kind);
        ApiError::invalid_param(format!("{path}.type"), message)
    }
}

/// Text of a content that may have text blocks alone, one block a line. `path` is that of the
/// content.
///
/// # Errors
/// 400 for other blocks: images and documents are not understood.
fn text_of(content: &Content<Block>, path: &str) -> Result<String, ApiError> {
    let blocks = match content {
        Content::Text(text) => return Ok(text.clone()),
        Content::Parts(blocks) => blocks,
    };
    let mut lines = Vec::with_capacity(blocks.len());
    for (index, block) in blocks.iter().enumerate() {
        let path = format!("{path}[{index}]");
        match block.kind.as_str() {
            "text" => lines.push(block.field(&block.text, "text", &path)?.as_str()),
            _ => return Err(block.unsupported(&path)),
        }
    }
    Ok(lines.join("\n"))
}

/// Messages of the chat template. `most` is the largest number of them.
///
/// Messages of one role that follow each other become one, as Anthropic joins them; results of
/// tools become messages of their own.
///
/// # Errors
/// 400 for an empty or too long list, unknown roles and blocks, and an answer that the model should
/// go on with.
pub(crate) fn conversation(
    system: Option<&Content<Block>>,
    messages: &[MessageParam],
    most: usize,
) -> Result<Vec<Message>, ApiError> {
    if !(1..=most).contains(&messages.len()) {
        let message = format!("there are {} messages, expected 1 to {most}", messages.len());
        return Err(ApiError::invalid_param("messages", message));
    }
    if messages.last().is_some_and(|message| message.role == "assistant") {
        let message = "the last message is the assistant's; answers cannot be begun, send one of the user";
        return Err(ApiError::invalid_param("messages", message));
    }
    let mut out = Vec::with_capacity(messages.len() + 1);
    if let Some(system) = system {
        out.push(ChatMessage::new("system", text_of(system, "system")?));
    }
    for (index, message) in messages.iter().enumerate() {
        let path = format!("messages[{index}]");
        match message.role.as_str() {
            "user" => push_user(&mut out, &message.content, &path)?,
            "assistant" => push_assistant(&mut out, &message.content, &path)?,
            role => {
                let message = format!("{role:?} is unknown, expected user or assistant");
                return Err(ApiError::invalid_param(format!("{path}.role"), message));
            }
        }
    }
    messages_of(&out, usize::MAX)
}

/// Adds text to the last message if it has this role, else as a message.
fn push_text(out: &mut Vec<ChatMessage>, role: &str, text: &str) {
    match out.last_mut() {
        Some(message) if message.role == role => message.push_line(text),
        _ => out.push(ChatMessage::new(role, text)),
    }
}

fn push_user(out: &mut Vec<ChatMessage>, content: &Content<Block>, path: &str) -> Result<(), ApiError> {
    let blocks = match content {
        Content::Text(text) => {
            push_text(out, "user", text);
            return Ok(());
        }
        Content::Parts(blocks) => blocks,
    };
    for (index, block) in blocks.iter().enumerate() {
        let path = format!("{path}.content[{index}]");
        match block.kind.as_str() {
            "text" => push_text(out, "user", block.field(&block.text, "text", &path)?),
            "tool_result" => {
                let id = block.field(&block.tool_use_id, "tool_use_id", &path)?;
                let text = block.content.as_ref().map(|content| text_of(content, &format!("{path}.content")));
                let mut result = ChatMessage::new("tool", text.transpose()?.unwrap_or_default());
                result.tool_call_id = Some(id.clone());
                out.push(result);
            }
            _ => return Err(block.unsupported(&path)),
        }
    }
    Ok(())
}

fn push_assistant(out: &mut Vec<ChatMessage>, content: &Content<Block>, path: &str) -> Result<(), ApiError> {
    let blocks = match content {
        Content::Text(text) => {
            push_text(out, "assistant", text);
            return Ok(());
        }
        Content::Parts(blocks) => blocks,
    };
    push_text(out, "assistant", "");
    for (index, block) in blocks.iter().enumerate() {
        let path = format!("{path}.content[{index}]");
        match block.kind.as_str() {
            "text" => push_text(out, "assistant", block.field(&block.text, "text", &path)?),
            "thinking" => {
                let text = block.field(&block.thinking, "thinking", &path)?;
                if let Some(message) = out.last_mut() {
                    message.reasoning_content.get_or_insert_default().push_str(text);
                }
            }
            // Thinking of other models.
            "redacted_thinking" => {}
            "tool_use" => {
                let call = CallParam {
                    id: Some(block.field(&block.id, "id", &path)?.clone()),
                    function: FunctionParam {
                        name: block.field(&block.name, "name", &path)?.clone(),
                        arguments: block.field(&block.input, "input", &path)?.clone(),
                    },
                };
                if let Some(message) = out.last_mut() {
                    message.tool_calls.get_or_insert_default().push(call);
                }
            }
            _ => return Err(block.unsupported(&path)),
        }
    }
    Ok(())
}
