//! Types of errors and events, for the document alone.

use serde_json::Value;
use utoipa::ToSchema;

use crate::anthropic::{ContentBlock, MessageReply, MessageUsage};
use crate::openai::chat::TokenLogprob;
use crate::openai::responses::{OutputItem, ResponseObject};

/// An error in OpenAI's form.
#[derive(ToSchema)]
#[allow(dead_code)]
pub(super) struct ErrorReply {
    error: ErrorFields,
}

#[derive(ToSchema)]
#[allow(dead_code)]
pub(super) struct ErrorFields {
    message: String,
    r#type: String,
    /// Field that is at fault.
    param: Option<String>,
    code: Option<String>,
}

/// An error in Anthropic's form.
#[derive(ToSchema)]
#[allow(dead_code)]
pub(super) struct MessageError {
    r#type: String,
    error: MessageErrorFields,
    request_id: String,
}

#[derive(ToSchema)]
#[allow(dead_code)]
pub(super) struct MessageErrorFields {
    r#type: String,
    message: String,
}

/// Data of an event of a message; the fields of all types.
#[derive(ToSchema)]
#[allow(dead_code)]
pub(super) struct MessageEvent {
    r#type: String,
    message: Option<MessageReply>,
    index: Option<usize>,
    content_block: Option<ContentBlock>,
    delta: Option<Value>,
    usage: Option<MessageUsage>,
    error: Option<MessageErrorFields>,
    request_id: Option<String>,
}

/// Data of an event of a response; the fields of all types.
#[derive(ToSchema)]
#[allow(dead_code)]
pub(super) struct ResponseEvent {
    r#type: String,
    sequence_number: usize,
    response: Option<ResponseObject>,
    output_index: Option<usize>,
    item: Option<OutputItem>,
    item_id: Option<String>,
    content_index: Option<usize>,
    part: Option<Value>,
    delta: Option<String>,
    text: Option<String>,
    name: Option<String>,
    arguments: Option<String>,
    logprobs: Option<Vec<TokenLogprob>>,
}
