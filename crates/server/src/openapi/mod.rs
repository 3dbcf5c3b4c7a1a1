//! The OpenAPI document, made from the types that read requests and write replies.

mod operations;
mod schema;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use axum::http::header;
use axum::response::IntoResponse;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use self::operations::operations;

/// `GET /openapi.json`
pub(crate) async fn serve() -> impl IntoResponse {
    static TEXT: OnceLock<String> = OnceLock::new();
    let text = TEXT.get_or_init(|| document().to_string());
    ([(header::CONTENT_TYPE, "application/json")], text.as_str())
}

/// The document.
pub(crate) fn document() -> Value {
    let mut document = Document::default();
    operations(&mut document);
    json!({
        "openapi": "3.1.0",
        "info": {"title": "ruvllm", "version": env!("CARGO_PKG_VERSION"), "license": {"name": "MIT OR Apache-2.0"}},
        "paths": document.paths,
        "components": {
            "schemas": document.schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{"bearer": []}, {"x-api-key": []}, {}],
    })
}

/// Paths and schemas that have been added.
#[derive(Default)]
struct Document {
    paths: BTreeMap<&'static str, Map<String, Value>>,
    schemas: BTreeMap<String, Value>,
}

/// An operation that is being described.
struct Operation<'d> {
    document: &'d mut Document,
    path: &'static str,
    method: &'static str,
    requests: Vec<Value>,
    /// Content types of the reply with their schemas.
    replies: Map<String, Value>,
    fields: Value,
}

impl Document {
    /// Adds a type with those that it refers to.
    fn reference<T: ToSchema>(&mut self) -> Value {
        let name = T::name().into_owned();
        let mut found = vec![(name.clone(), T::schema())];
        T::schemas(&mut found);
        for (name, schema) in found {
            self.schemas.insert(name, json!(schema));
        }
        json!({"$ref": format!("#/components/schemas/{name}")})
    }

    fn operation(
        &mut self,
        method: &'static str,
        path: &'static str,
        tag: &'static str,
        summary: &'static str,
    ) -> Operation<'_> {
        let id = format!("{method}{}", path.replace(['/', '.', '{', '}'], "_"));
        let names = path.split('{').skip(1).filter_map(|part| part.split('}').next());
        let parameters = names
            .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}));
        let parameters: Vec<_> = parameters.collect();
        let fields = json!({"operationId": id, "tags": [tag], "summary": summary, "parameters": parameters});
        Operation { document: self, path, method, requests: Vec::new(), replies: Map::new(), fields }
    }
}

impl Operation<'_> {
    /// The fields of a type are in the request, beside those of others.
    fn request<T: ToSchema>(mut self) -> Self {
        let reference = self.document.reference::<T>();
        self.requests.push(reference);
        self
    }

    /// The optional parameter `model` is in the query.
    fn model_query(mut self) -> Self {
        if let Some(parameters) = self.fields["parameters"].as_array_mut() {
            let schema = json!({"type": "string"});
            parameters.push(json!({"name": "model", "in": "query", "required": false, "schema": schema}));
        }
        self
    }

    fn reply<T: ToSchema>(self) -> Self {
        self.reply_as::<T>("application/json")
    }

    /// The reply is text of a content type.
    fn text(mut self, kind: &str) -> Self {
        self.replies.insert(kind.to_owned(), json!({"schema": {"type": "string"}}));
        self
    }

    /// Data of each server-sent event.
    fn events<T: ToSchema>(self) -> Self {
        self.reply_as::<T>("text/event-stream")
    }

    fn reply_as<T: ToSchema>(mut self, kind: &str) -> Self {
        let reference = self.document.reference::<T>();
        self.replies.insert(kind.to_owned(), json!({"schema": reference}));
        self
    }

    /// Adds the operation, with its errors in the form of a type.
    fn add<E: ToSchema>(mut self) {
        let error = self.document.reference::<E>();
        let error = json!({"application/json": {"schema": error}});
        self.fields["responses"] = json!({
            "200": {"description": "the reply", "content": self.replies},
            "4XX": {"description": "the request is at fault, or a limit is reached", "content": error},
            "5XX": {"description": "the server is at fault, or has no room", "content": error},
        });
        if !self.requests.is_empty() {
            let schema = match <[Value; 1]>::try_from(self.requests) {
                Ok([schema]) => schema,
                Err(schemas) => json!({"allOf": schemas}),
            };
            let content = json!({"application/json": {"schema": schema}});
            self.fields["requestBody"] = json!({"required": true, "content": content});
        }
        let methods = self.document.paths.entry(self.path).or_default();
        methods.insert(self.method.to_owned(), self.fields);
    }
}
