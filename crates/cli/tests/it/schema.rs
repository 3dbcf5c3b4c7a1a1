//! The published JSON Schemas of `docs/schema`, and a validator of the keywords that they use.
//! Every document of every test is checked against them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// The folder of the schemas.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema")
}

/// Checks the document of a command against its schema.
///
/// # Panics
/// If the command has no schema, or the document does not fit it.
#[track_caller]
pub(crate) fn check(arguments: &[String], document: &Value) {
    if let Some(name) = name_of(arguments, document) {
        check_as(&name, document);
    }
}

/// Checks a document against the schema of this name.
#[track_caller]
pub(crate) fn check_as(name: &str, document: &Value) {
    let path = folder().join(format!("{name}.json"));
    let schema: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    if let Err(fault) = validate(&schema, document, name) {
        panic!("{fault}; see {}", path.display());
    }
}

/// Name of the schema for a command line: its first words, as in the table of commands.
fn name_of(arguments: &[String], document: &Value) -> Option<String> {
    let mut words = arguments.iter().filter(|word| !word.starts_with('-')).map(String::as_str);
    let name = match words.next()? {
        "sona" if arguments.get(1).is_some_and(|word| word == "bank") => {
            return Some(format!("sona-bank-{}", arguments.get(2)?));
        }
        group @ ("adapter" | "eval" | "key" | "pack" | "session" | "sona" | "witness") => {
            return Some(format!("{group}-{}", words.next()?));
        }
        "doctor" if arguments.iter().any(|word| word == "--gpu") => "doctor-gpu",
        // A model of the store, or a file.
        "show" | "info" if document.get("source").is_none() => "inspect",
        "info" => "show",
        "ls" => "list",
        "remove" => "rm",
        "run" if document.get("text").is_some() => "generate",
        "run" => "chat",
        name => name,
    };
    Some(name.to_owned())
}

/// First fault of `value`, which is at the path `place`.
fn validate(schema: &Value, value: &Value, place: &str) -> Result<(), String> {
    let schema = schema.as_object().expect("a schema is an object");
    for (keyword, rule) in schema {
        let fault = match keyword.as_str() {
            // Properties are checked below.
            "$schema" | "title" | "description" | "properties" | "additionalProperties" => None,
            "type" => (!types(rule).any(|name| is_of(value, name))).then(|| format!("is not of type {rule}")),
            "enum" => (!rule.as_array().unwrap().contains(value)).then(|| format!("is none of {rule}")),
            "minimum" => (value.as_f64() < rule.as_f64()).then(|| format!("is below {rule}")),
            "required" => {
                let mut names = rule.as_array().unwrap().iter().map(|name| name.as_str().unwrap());
                names.find(|name| value.get(name).is_none()).map(|name| format!("lacks {name}"))
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    validate(rule, item, &format!("{place}[{index}]"))?;
                }
                None
            }
            other => panic!("the validator does not know the keyword {other}"),
        };
        // Limits and required members apply only to values of their type.
        let applies = match keyword.as_str() {
            "minimum" => value.is_number(),
            "required" => value.is_object(),
            _ => true,
        };
        if let Some(fault) = fault.filter(|_| applies) {
            return Err(format!("{place} {fault}: {value}"));
        }
    }
    let none = serde_json::Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
    for (name, value) in value.as_object().into_iter().flatten() {
        let place = format!("{place}.{name}");
        match properties.get(name).or_else(|| schema.get("additionalProperties")) {
            Some(Value::Bool(true)) | None => {}
            Some(Value::Bool(false)) => return Err(format!("{place} is not in the schema")),
            Some(schema) => validate(schema, value, &place)?,
        }
    }
    Ok(())
}

/// One type or several.
fn types(rule: &Value) -> impl Iterator<Item = &str> {
    rule.as_array()
        .map_or(std::slice::from_ref(rule), Vec::as_slice)
        .iter()
        .map(|name| name.as_str().unwrap())
}

fn is_of(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("there is no type {other}"),
    }
}

#[test]
fn the_validator_finds_faults() {
    let schema = json!({
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 0},
            "kind": {"type": ["string", "null"], "enum": ["a", null]},
            "list": {"type": "array", "items": {"type": "number"}},
            "map": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "pair": {"type": ["object", "null"], "required": ["first"]}
        },
        "required": ["n"],
        "additionalProperties": false
    });
    let fault = |value: Value| validate(&schema, &value, "it").err();
    assert_eq!(
        fault(json!({"n": 1, "kind": null, "list": [1, 2.5], "map": {"x": true}, "pair": null})),
        None
    );
    for (value, expected) in [
        (json!([]), "it is not of type"),
        (json!({}), "it lacks n"),
        (json!({"n": 1, "pair": {}}), "it.pair lacks first"),
        (json!({"n": -1}), "it.n is below 0"),
        (json!({"n": 1.5}), "it.n is not of type"),
        (json!({"n": 1, "kind": "b"}), "it.kind is none of"),
        (json!({"n": 1, "list": [1, "2"]}), "it.list[1] is not of type"),
        (json!({"n": 1, "map": {"x": 0}}), "it.map.x is not of type"),
        (json!({"n": 1, "more": 0}), "it.more is not in the schema"),
    ] {
        let fault = fault(value).unwrap();
        assert!(fault.starts_with(expected), "{fault}");
    }
}
