//! Schemas of fields with several forms, for the derived schemas of requests.

use utoipa::openapi::schema::{ArrayBuilder, ArrayItems, ObjectBuilder, OneOfBuilder, Schema, Type};
use utoipa::openapi::{Ref, RefOr};

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
