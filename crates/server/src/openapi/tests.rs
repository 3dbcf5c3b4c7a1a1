//! The document against the router and against all requests of its tests.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use serde_json::{Value, json};

use super::document;
use crate::testing::{Reply, send};

fn shared() -> &'static Value {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    DOCUMENT.get_or_init(document)
}

/// The document with its objects closed: no field of a reply may be missing in it.
fn closed() -> &'static Value {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    DOCUMENT.get_or_init(|| {
        let mut document = document();
        close(&mut document["components"]);
        // A part of a sum has fields that the other parts lack: the sum as a whole is closed.
        let mut parts = BTreeSet::new();
        parts_of_sums(&document["components"], &mut parts);
        for part in parts {
            document.pointer_mut(&part[1..]).unwrap().as_object_mut().unwrap().remove("additionalProperties");
        }
        document
    })
}

/// References within `allOf`.
fn parts_of_sums(value: &Value, found: &mut BTreeSet<String>) {
    if let Some(parts) = value["allOf"].as_array() {
        found.extend(parts.iter().filter_map(|part| part["$ref"].as_str()).map(str::to_owned));
    }
    match value {
        Value::Object(fields) => fields.values().for_each(|value| parts_of_sums(value, found)),
        Value::Array(values) => values.iter().for_each(|value| parts_of_sums(value, found)),
        _ => {}
    }
}

fn close(value: &mut Value) {
    match value {
        Value::Object(fields) if fields.contains_key("allOf") => {
            fields.entry("unevaluatedProperties").or_insert(false.into());
        }
        Value::Object(fields) => {
            fields.values_mut().for_each(close);
            if fields.get("properties").is_some_and(Value::is_object) && fields["type"] == "object" {
                fields.entry("additionalProperties").or_insert(false.into());
            }
        }
        Value::Array(values) => values.iter_mut().for_each(close),
        _ => {}
    }
}

/// The operation of a request.
fn operation(method: &str, path: &str) -> Option<&'static Value> {
    let path = path.split('?').next().unwrap_or_default();
    let fits = |template: &str| {
        let (mut parts, mut found) = (template.split('/'), path.split('/'));
        loop {
            match (parts.next(), found.next()) {
                (None, None) => break true,
                (Some(part), Some(found)) if part == found || part.starts_with('{') => {}
                _ => break false,
            }
        }
    };
    let paths = shared()["paths"].as_object().unwrap();
    let (_, methods) = paths.iter().find(|(template, _)| fits(template))?;
    methods.get(method.to_ascii_lowercase())
}

fn check_schema(document: &Value, schema: &Value, value: &Value, of: &str) {
    let mut root = schema.clone();
    root["components"] = document["components"].clone();
    let validator = jsonschema::validator_for(&root).unwrap();
    let faults: Vec<_> =
        validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(faults.is_empty(), "{of}: {faults:#?}\n{value}");
}

/// Checks a request and its reply against the document.
pub(crate) fn check(method: &str, path: &str, body: Option<&Value>, reply: &Reply) {
    let Some(operation) = operation(method, path) else {
        assert!(reply.status >= 400, "{method} {path} is not in the document: {}", reply.text);
        return;
    };
    let of = format!("{method} {path}");
    let status = match reply.status {
        200 => "200",
        400..500 => "4XX",
        _ => "5XX",
    };
    if let (Some(body), "200") = (body, status) {
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        check_schema(shared(), schema, body, &of);
    }
    let content = &operation["responses"][status]["content"];
    let is_stream = ["data: ", "event: ", ": "].iter().any(|start| reply.text.starts_with(start));
    if !is_stream {
        if let Some(json) = content.get("application/json") {
            check_schema(closed(), &json["schema"], &reply.json(), &of);
        }
        return;
    }
    let schema = &content["text/event-stream"]["schema"];
    let lines = reply.text.lines().filter_map(|line| line.strip_prefix("data: "));
    for data in lines.filter(|&data| data != "[DONE]") {
        check_schema(closed(), schema, &serde_json::from_str(data).unwrap(), &of);
    }
}

/// Methods and paths of the router's source.
fn routes() -> BTreeSet<String> {
    let source = include_str!("../router.rs");
    let routes = source.split(".route(\"").skip(1).flat_map(|route| {
        let (path, handlers) = route.split_once('"').unwrap();
        let path = path.replace("{*", "{");
        let handlers = handlers.split(".route(").next().unwrap().split("\n        .").next().unwrap();
        let methods = ["get", "post", "delete", "put", "patch"].into_iter();
        let methods = methods.filter(|method| handlers.contains(&format!("{method}(")));
        methods.map(|method| format!("{method} {path}")).collect::<Vec<_>>()
    });
    routes.collect()
}

#[test]
fn the_document_has_the_routes_of_the_router() {
    let paths = shared()["paths"].as_object().unwrap();
    let documented = paths.iter().flat_map(|(path, methods)| {
        methods.as_object().unwrap().keys().map(move |method| format!("{method} {path}"))
    });
    assert_eq!(documented.collect::<BTreeSet<_>>(), routes());
    assert!(routes().len() > 15, "{:?}", routes());
}

#[test]
fn references_lead_to_schemas_and_ids_are_unique() {
    fn visit(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|value| visit(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| visit(value, found)),
            _ => {}
        }
    }
    let mut found = BTreeSet::new();
    visit(shared(), &mut found);
    assert!(found.len() > 20);
    for reference in found {
        assert!(shared().pointer(&reference[1..]).is_some(), "{reference}");
    }
    let paths = shared()["paths"].as_object().unwrap();
    let operations = paths.values().flat_map(|methods| methods.as_object().unwrap().values());
    let ids: Vec<&str> = operations.map(|operation| operation["operationId"].as_str().unwrap()).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
}

#[test]
fn the_document_is_served_and_says_its_version() {
    let reply = send("GET", "/openapi.json", None).json();
    assert_eq!(&reply, shared());
    assert_eq!(reply["openapi"], "3.1.0");
}

#[test]
fn replies_with_unknown_fields_are_found() {
    let schema = json!({"$ref": "#/components/schemas/Health"});
    let check =
        |value: Value| std::panic::catch_unwind(|| check_schema(closed(), &schema, &value, "")).is_ok();
    assert!(check(json!({"status": "ok"})));
    assert!(!check(json!({"status": "ok", "more": 1})));
    assert!(!check(json!({})));
}
