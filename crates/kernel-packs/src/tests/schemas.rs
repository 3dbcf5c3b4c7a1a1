//! The published schemas and the types agree.

use std::fs;
use std::path::Path;

use jsonschema::Validator;
use serde_json::{Value, json};

use super::{complete, key};
use crate::{Manifest, TrustedKeys};

fn schema(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema").join(name);
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn manifest_is_read(value: &Value) -> bool {
    Manifest::parse(value.to_string().as_bytes()).is_ok()
}

fn keys_are_read(value: &Value) -> bool {
    TrustedKeys::parse(value.to_string().as_bytes(), "keys").is_ok()
}

fn trusted_keys() -> Value {
    let public = key().public_key();
    json!({
        "schema_version": 1,
        "keys": [{
            "id": public.id(),
            "name": "Acme",
            "public_key": public,
            "valid_from": "2026-01-01",
            "valid_until": "2027-01-01T00:00:00Z",
            "revoked": "lost"
        }],
        "allowed_kernels": ["0".repeat(64)]
    })
}

/// Pointers of all values of a document.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    let names: Vec<String> = match value {
        Value::Object(map) => map.keys().cloned().collect(),
        Value::Array(list) => (0..list.len()).map(|n| n.to_string()).collect(),
        _ => Vec::new(),
    };
    for name in names {
        let next = match value {
            Value::Object(map) => &map[&name],
            list => &list[name.parse::<usize>().unwrap()],
        };
        pointers(next, &format!("{at}/{name}"), found);
    }
}

/// Documents made of one by removing a field, adding one, or replacing a value.
fn changed(document: &Value) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    pointers(document, "", &mut found);
    let mut changed = vec![(String::new(), document.clone())];
    for pointer in found {
        let mut with = |change: &str, edit: &dyn Fn(&mut Value)| {
            let mut other = document.clone();
            edit(other.pointer_mut(&pointer).unwrap());
            changed.push((format!("{change} at {pointer:?}"), other));
        };
        for other in
            [json!(null), json!([]), json!({}), json!(-1), json!(1.5), json!(""), json!("\u{1b}\n ?")]
        {
            with(&format!("{other}"), &|value| *value = other.clone());
        }
        if let Some(text) = document.pointer(&pointer).unwrap().as_str() {
            with("an object of it", &|value| *value = json!({text: null}));
        }
        if let Some(map) = document.pointer(&pointer).unwrap().as_object() {
            with("more", &|value| value["more"] = json!(1));
            for name in map.keys() {
                with(&format!("without {name}"), &|value| {
                    value.as_object_mut().unwrap().remove(name);
                });
            }
        }
    }
    changed
}

/// Documents on which schema and types differ.
fn differences(schema: &Validator, document: &Value, is_read: fn(&Value) -> bool) -> Vec<String> {
    let cases = changed(document);
    assert!(cases.len() > 50);
    let differs = |(what, value): &(String, Value)| {
        let (by_schema, by_types) = (schema.is_valid(value), is_read(value));
        (by_schema != by_types).then(|| format!("{what}: schema {by_schema}, types {by_types}"))
    };
    cases.iter().filter_map(differs).collect()
}

#[test]
fn the_manifest_has_the_published_form() {
    let schema = jsonschema::validator_for(&schema("kernel-pack.json")).unwrap();
    let document = complete();
    assert!(schema.is_valid(&document) && manifest_is_read(&document));
    let mut differences = differences(&schema, &document, manifest_is_read);
    // Facts that no schema can state: ids that exist, sizes that follow, kernels of one file, and
    // control characters.
    differences.retain(|case| {
        let is_relation =
            ["bytes", "fallback", "shape", "inputs", "parameters", "kernels/0\"", "kernels/1\""];
        let is_text = case.starts_with("\"\\u001b");
        !(case.ends_with("schema true, types false")
            && (is_text || is_relation.iter().any(|part| case.contains(part))))
    });
    assert_eq!(differences, [""; 0]);
}

#[test]
fn trusted_keys_have_the_published_form() {
    let schema = jsonschema::validator_for(&schema("trusted-keys.json")).unwrap();
    let mut differences = differences(&schema, &trusted_keys(), keys_are_read);
    differences.retain(|case| !(case.starts_with("\"\\u001b") && case.ends_with("schema true, types false")));
    assert_eq!(differences, [""; 0]);
}

#[test]
fn limits_of_the_schema_are_those_of_the_types() {
    use crate::limits;
    use crate::manifest::{Category, DType, ParameterType, WasmFeature};
    let schema = schema("kernel-pack.json");
    let kernel = &schema["properties"]["kernels"]["items"]["properties"];
    let tensor = &kernel["inputs"]["items"]["properties"];
    let parameter = &kernel["parameters"]["items"]["properties"];
    let amounts = &kernel["limits"]["properties"];
    for (found, limit) in [
        (&schema["properties"]["kernels"]["maxItems"], limits::MAX_KERNELS as u64),
        (&schema["properties"]["description"]["maxLength"], limits::MAX_TEXT_BYTES as u64),
        (&kernel["path"]["maxLength"], limits::MAX_PATH_BYTES as u64),
        (&kernel["id"]["maxLength"], limits::MAX_NAME_BYTES as u64),
        (&kernel["bytes"]["maximum"], limits::MAX_KERNEL_BYTES),
        (&kernel["inputs"]["maxItems"], limits::MAX_TENSORS as u64),
        (&kernel["outputs"]["maxItems"], limits::MAX_TENSORS as u64),
        (&kernel["parameters"]["maxItems"], limits::MAX_PARAMETERS as u64),
        (&kernel["benchmarks"]["maxItems"], limits::MAX_BENCHMARKS as u64),
        (&tensor["shape"]["maxItems"], limits::MAX_DIMS as u64),
        (&tensor["shape"]["items"]["maximum"], limits::MAX_DIM),
        (&amounts["memory_pages"]["maximum"], u64::from(limits::MAX_MEMORY_PAGES)),
        (&amounts["epoch_ticks"]["maximum"], u64::from(limits::MAX_EPOCH_TICKS)),
        (&amounts["table_elements"]["maximum"], u64::from(limits::MAX_TABLE_ELEMENTS)),
    ] {
        assert_eq!(*found, json!(limit));
    }
    let features = &kernel["platforms"]["properties"]["wasmtime"]["properties"]["features"]["items"];
    assert_eq!(kernel["category"]["enum"], json!(Category::ALL));
    assert_eq!(tensor["dtype"]["enum"], json!(DType::ALL));
    assert_eq!(parameter["type"]["enum"], json!(ParameterType::ALL));
    assert_eq!(features["enum"], json!(WasmFeature::ALL));
}
