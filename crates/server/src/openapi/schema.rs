//! Schemas that are written by hand: of fields with several forms, of errors and events.

use serde_json::Value;
use utoipa::ToSchema;
use utoipa::openapi::schema::{ArrayBuilder, ArrayItems, ObjectBuilder, OneOfBuilder, Schema, Type};
use utoipa::openapi::{Ref, RefOr};

use crate::anthropic::{ContentBlock, MessageReply, MessageUsage};
use crate::openai::responses::{OutputItem, ResponseObject};

fn of_type(of: Type) -> Schema {
    ObjectBuilder::new().schema_type(of).build().into()
}

fn list(items: impl Into<RefOr<Schema>>) -> Schema {
    let items = ArrayItems::RefOrSchema(Box::new(items.into()));
    ArrayBuilder::new().items(items).build().into()
}

fn one_of(schemas: impl IntoIterator<Item = Schema>) -> Schema {
    schemas.into_iter().fold(OneOfBuilder::new(), OneOfBuilder::item).build().into()
}

/// Null, a text, or a list of a component.
fn text_or(component: &str) -> Schema {
    one_of([of_type(Type::Null), of_type(Type::String), list(Ref::from_schema_name(component))])
}

/// A text or content parts.
pub(crate) fn parts() -> Schema {
    text_or("ContentPart")
}

/// A text or content blocks.
pub(crate) fn blocks() -> Schema {
    text_or("ContentBlockParam")
}

/// A text or input items.
pub(crate) fn items() -> Schema {
    text_or("InputItem")
}

/// A stop sequence or a list of them.
pub(crate) fn stop() -> Schema {
    one_of([of_type(Type::Null), of_type(Type::String), list(of_type(Type::String))])
}

/// A text, a list of texts, a list of token ids, or a list of such lists.
pub(crate) fn prompts() -> Schema {
    let ids = || list(of_type(Type::Integer));
    let element = one_of([of_type(Type::String), of_type(Type::Integer), ids()]);
    one_of([of_type(Type::String), list(element)])
}

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
    logprobs: Option<Vec<Value>>,
}
