//! Refusals with keyword and place, and the language of rewritten schemas.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::normalize;
use crate::constraint::tests::{matches, refused};
use crate::constraint::{Constraint, ConstraintError};

fn language(schema: &Value, inside: &[&str], outside: &[&str]) {
    let constraint = Constraint::json_schema(schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
    for text in inside {
        assert!(matches(&constraint, text), "{text} is valid under {schema}: {}", normalize(schema).unwrap());
    }
    for text in outside {
        assert!(!matches(&constraint, text), "{text} is not valid under {schema}");
    }
}

#[test]
fn unsupported_keywords_are_named_with_their_place() {
    for (schema, keyword, path) in [
        (json!({"not": {"type": "null"}}), "not", "#"),
        (json!({"properties": {"a/b": {"if": {}, "then": {}}}}), "if", "#/properties/a~1b"),
        (json!({"items": {"contains": {}}}), "contains", "#/items"),
        (json!({"anyOf": [{}, {"uniqueItems": true}]}), "uniqueItems", "#/anyOf/1"),
        (json!({"$ref": "#/$defs/x", "$defs": {"x": {"propertyNames": {}}}}), "propertyNames", "#/$defs/x"),
        (json!({"$ref": "https://example.com/a.json"}), "$ref", "#"),
        (
            json!({"$ref": "#x", "$defs": {"a": {"$anchor": "x", "dependentRequired": {}}}}),
            "dependentRequired",
            "#x",
        ),
        (json!({"items": [{}]}), "items with a list", "#"),
        (json!({"exclusiveMinimum": true, "minimum": 1}), "exclusiveMinimum with true or false", "#"),
        (json!({"format": "iri"}), "format iri", "#"),
        (json!({"pattern": "(?=a)"}), "pattern", "#"),
        (json!({"patternProperties": {"\\bx": {}}}), "patternProperties", "#/patternProperties/\\bx"),
        (json!({"minProperties": 2, "required": []}), "minProperties", "#"),
        (json!({"oneOf": [{"type": "number"}, {"type": "integer"}]}), "oneOf", "#"),
        (json!({"unevaluatedProperties": false}), "unevaluatedProperties", "#"),
        (json!({"properties": {"a": {"$id": "x"}}}), "$id", "#/properties/a"),
        (json!({"minLength": 1_000_000}), "minLength", "#"),
        (json!({"maximum": 1e300}), "maximum", "#"),
    ] {
        match Constraint::json_schema(&schema) {
            Err(ConstraintError::UnsupportedKeyword { keyword: k, path: p, remedy }) => {
                assert_eq!((k.as_str(), p.as_str()), (keyword, path));
                assert!(!remedy.is_empty());
            }
            other => panic!("{schema}: {other:?}"),
        }
    }
}

#[test]
fn invalid_schemas_have_a_place() {
    for (schema, path, piece) in [
        (json!(3), "#", "object, true or false"),
        (json!({"properties": {"a": 1}}), "#/properties/a", "object, true or false"),
        (json!({"properties": []}), "#", "properties is an object"),
        (json!({"type": "text"}), "#", "type is one of"),
        (json!({"type": []}), "#", "type is one of"),
        (json!({"enum": []}), "#", "at least one value"),
        (json!({"anyOf": {}}), "#", "at least one schema"),
        (json!({"required": [1]}), "#", "names"),
        (json!({"minItems": -1}), "#", "minItems is a whole number"),
        (json!({"minimum": "1"}), "#", "minimum is a number"),
        (json!({"multipleOf": 0}), "#", "above 0"),
        (json!({"$ref": "#/$defs/none"}), "#", "points at nothing"),
        (json!({"$ref": "#"}), "#", "refers to itself"),
        (
            json!({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}),
            "#/$defs/a",
            "refers to itself",
        ),
        (json!({"pattern": 1}), "#", "pattern is a text"),
        (json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}), "#", "infinite"),
        (
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}}}),
            "#/$defs/a",
            "infinite",
        ),
    ] {
        match Constraint::json_schema(&schema) {
            Err(ConstraintError::InvalidSchema { path: p, reason }) => {
                assert!(p == path && reason.contains(piece), "{schema}: {p}: {reason}");
            }
            other => panic!("{schema}: {other:?}"),
        }
    }
}

#[test]
fn objects_and_arrays() {
    let person = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A person",
        "type": "object",
        "properties": {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name"], "additionalProperties": false
    });
    let inside = [r#"{"name": "Ann", "age": 3}"#, "{\"name\":\"A\"}", "{\n  \"name\": \"é\"\n}"];
    let outside = [
        r#"{"name": ""}"#,
        r#"{"age": 3}"#,
        r#"{"name": "A", "age": -1}"#,
        r#"{"name": "A", "x": 1}"#,
        "[]",
        "{   \"name\":\"A\"}",
    ];
    language(&person, &inside, &outside);
    let open = json!({"type": "object", "properties": {"a": {"type": "null"}}});
    language(
        &open,
        &[r#"{"a": null, "b": [1, {"c": 1e3}]}"#.replace("1e3", "1.5").as_str(), "{}"],
        &[r#"{"a": 1}"#, "{\"\\u0061\": 1}", r#"{"b": 1e999}"#],
    );
    let tuple = json!({"type": "array", "prefixItems": [{"type": "string"}, {"type": "boolean"}], "items": false,
        "minItems": 1});
    language(&tuple, &[r#"["a"]"#, r#"["a", true]"#], &["[]", r#"["a", true, 1]"#]);
    let counted = json!({"type": "array", "items": {"enum": [1, "x", null, [2], {"k": 1}]}, "maxItems": 3});
    language(&counted, &[r#"[1, "x", null]"#, r#"[[2], {"k": 1}]"#], &["[1,1,1,1]", "[2]"]);
    let patterns = json!({"type": "object", "patternProperties": {"^n_": {"type": "integer"}, "^s_": {"type": "string"}},
        "additionalProperties": false, "maxProperties": 2});
    language(
        &patterns,
        &[r#"{"n_a": 1, "s_b": ""}"#],
        &[r#"{"n_a": ""}"#, r#"{"x": 1}"#, r#"{"n_a":1,"n_b":1,"n_c":1}"#],
    );
}

#[test]
fn strings_and_numbers() {
    language(
        &json!({"type": "string", "pattern": "^\\d{2}.$", "maxLength": 3}),
        &["\"12x\""],
        &["\"1x\"", "\"12\\n\""],
    );
    language(
        &json!({"type": "string", "format": "date", "pattern": "^2"}),
        &["\"2024-12-31\""],
        &["\"1999-12-31\"", "\"2024-02-30\""],
    );
    language(&json!({"type": "string", "format": "int32"}), &["\"x\""], &["1"]);
    language(
        &json!({"type": "integer", "exclusiveMinimum": 3, "maximum": 6, "multipleOf": 2}),
        &["4", "6"],
        &["2", "5"],
    );
    language(
        &json!({"type": "number", "minimum": -1.5, "exclusiveMaximum": 2}),
        &["-1.5", "1.99", "0"],
        &["2", "-1.6"],
    );
    language(&json!({"type": "number"}), &["-1.25", "999999999999999"], &["1e5", "9999999999999999"]);
    language(&json!({"minimum": 3}), &["3", "\"x\"", "null", "[true]"], &["2"]);
    language(&json!(true), &["3", "{}", "[[]]"], &["", "tru"]);
}

#[test]
fn combinations_and_references() {
    let tree = json!({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {
        "value": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
        "required": ["value"], "additionalProperties": false}}});
    language(
        &tree,
        &[r#"{"value": 1, "children": [{"value": 2}]}"#],
        &[r#"{"children": []}"#, r#"{"value": 1, "children": [1]}"#],
    );
    let list = json!({"type": ["object", "null"], "properties": {"next": {"$ref": "#"}}, "required": ["next"],
        "additionalProperties": false});
    language(&list, &["null", r#"{"next": {"next": null}}"#], &[r#"{"next": 1}"#]);
    let escaped =
        json!({"items": {"$ref": "#/%24defs/a~1b%25"}, "type": "array", "$defs": {"a/b%": {"const": 1}}});
    language(&escaped, &["[1]"], &["[2]"]);
    let shapes = json!({"oneOf": [{"$ref": "#/$defs/circle"}, {"$ref": "#/$defs/square"}], "$defs": {
        "circle": {"type": "object", "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}},
            "required": ["kind", "r"], "additionalProperties": false},
        "square": {"type": "object", "properties": {"kind": {"const": "square"}}, "required": ["kind"],
            "additionalProperties": false}}});
    language(
        &shapes,
        &[r#"{"kind": "circle", "r": 1}"#, r#"{"kind": "square"}"#],
        &[r#"{"kind": "square", "r": 1}"#],
    );
    let all = json!({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"properties": {"a": {"minimum": 5}, "b": {"const": 1}}}], "additionalProperties": true});
    language(&all, &[r#"{"a": 5}"#, r#"{"a": 6, "b": 1}"#], &[r#"{"a": 4}"#, r#"{"b": 1}"#]);
}

#[test]
fn schemas_without_a_value_and_explosions_are_errors() {
    for schema in [
        json!(false),
        json!({"type": "string", "minLength": 3, "maxLength": 2}),
        json!({"type": "integer", "minimum": 3, "maximum": 2}),
        json!({"type": "string", "pattern": "(a"}),
        json!({"type": "string", "pattern": "^a$", "minLength": 2}),
    ] {
        refused(&Constraint::json_schema(&schema).unwrap(), &schema.to_string());
    }
    let doubled: Value = (0..40)
        .map(|i| {
            let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
            (
                format!("d{i}"),
                json!({"allOf": [{"anyOf": [next, {"properties": {"a": next}}]}, {"anyOf": [next, next]}]}),
            )
        })
        .chain([("d40".to_owned(), json!({"type": "object"}))])
        .collect::<serde_json::Map<_, _>>()
        .into();
    refused(&Constraint::json_schema(&json!({"$ref": "#/$defs/d0", "$defs": doubled})).unwrap(), "explosion");
    let mut deep = json!({"type": "null"});
    for _ in 0..70 {
        deep = json!({"items": deep});
    }
    assert!(matches!(Constraint::json_schema(&deep), Err(ConstraintError::InvalidSchema { .. })));
    let deepest = (0..100_000).fold(Value::Null, |inner, _| Value::Array(vec![inner]));
    let schema = Value::Object(serde_json::Map::from_iter([("const".to_owned(), deepest)]));
    let result = Constraint::json_schema(&schema);
    // Dropping nested values recurses.
    std::mem::forget(schema);
    assert!(matches!(result, Err(ConstraintError::InvalidSchema { .. })));
    let many = json!({"enum": (0..300_000).collect::<Vec<_>>()});
    assert!(matches!(Constraint::json_schema(&many), Err(ConstraintError::TooLarge { .. })));
}

/// Values made of the words of schemas, most of them invalid.
fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(true)),
        Just(json!(1)),
        Just(json!(-2.5)),
        Just(json!(null)),
        prop::sample::select(vec!["object", "integer", "#", "#/a", "#/items", "date", "[a-z", "^a*$", "a"])
            .prop_map(Value::from),
    ];
    let names = prop::sample::select(vec![
        "type",
        "items",
        "$ref",
        "anyOf",
        "oneOf",
        "allOf",
        "enum",
        "const",
        "properties",
        "required",
        "minLength",
        "maximum",
        "pattern",
        "format",
        "patternProperties",
        "a",
        "$anchor",
        "minProperties",
        "prefixItems",
    ]);
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((names.clone(), inner), 0..4).prop_map(|pairs| pairs
                .into_iter()
                .map(|(k, v)| (k.to_owned(), v))
                .collect::<serde_json::Map<_, _>>()
                .into()),
        ]
    })
}

proptest! {
    #[test]
    fn no_schema_makes_it_panic(schema in any_schema()) {
        if let Ok(constraint) = Constraint::json_schema(&schema) {
            let compiler = crate::constraint::tests::compiler();
            let _ = compiler.start(&constraint).and_then(|mut state| state.mask().map(|_| ()));
        }
    }
}
