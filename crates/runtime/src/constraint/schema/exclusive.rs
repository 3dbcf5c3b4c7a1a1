//! Proof that no value satisfies two schemas: `oneOf` of such schemas is `anyOf`.

use serde_json::{Map, Value};

/// Kinds of values, as bits: integers apart from other numbers.
const NULL: u8 = 1;
const BOOLEAN: u8 = 2;
const NUMBER: u8 = 4 | INTEGER;
const INTEGER: u8 = 8;
const STRING: u8 = 16;
const ARRAY: u8 = 32;
const OBJECT: u8 = 64;
const ALL: u8 = 127;

/// Deepest chain of references and properties that is followed.
const DEPTH: usize = 8;

/// Finds the schema of a reference.
pub(super) type Resolve<'r> = &'r dyn Fn(&str) -> Option<&'r Value>;

/// True if it is certain that no value satisfies both schemas. Each keyword must hold on its own,
/// so that a single contradiction is enough.
pub(super) fn exclusive(a: &Value, b: &Value, resolve: Resolve<'_>) -> bool {
    apart(a, b, resolve, DEPTH)
}

fn apart(a: &Value, b: &Value, resolve: Resolve<'_>, depth: usize) -> bool {
    let (left, right) = match (a, b) {
        (Value::Bool(false), _) | (_, Value::Bool(false)) => return true,
        (Value::Object(left), Value::Object(right)) if depth > 0 => (left, right),
        _ => return false,
    };
    parts_apart(left, b, resolve, depth)
        || parts_apart(right, a, resolve, depth)
        || values_apart(left, right)
        || kinds_apart(left, right, resolve, depth)
}

/// True if the schemas that `schema` applies in place keep it apart from `other`.
fn parts_apart(schema: &Map<String, Value>, other: &Value, resolve: Resolve<'_>, depth: usize) -> bool {
    let target = schema.get("$ref").and_then(Value::as_str).and_then(resolve);
    if target.is_some_and(|target| apart(target, other, resolve, depth - 1)) {
        return true;
    }
    let list = |name| schema.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let is_apart = |part: &Value| apart(part, other, resolve, depth - 1);
    list("allOf").iter().any(is_apart)
        || ["anyOf", "oneOf"].iter().any(|name| !list(name).is_empty() && list(name).iter().all(is_apart))
}

/// The values of `enum` or `const`.
fn values(schema: &Map<String, Value>) -> Option<&[Value]> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(std::slice::from_ref(value)),
        (None, Some(Value::Array(values))) => Some(values),
        _ => None,
    }
}

/// True if both schemas list their values and none is in both.
fn values_apart(a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    let (Some(a), Some(b)) = (values(a), values(b)) else { return false };
    // 1 and 1.0 are one number, also within arrays and objects.
    let is_same = |x: &Value, y: &Value| match (x, y) {
        (Value::Number(x), Value::Number(y)) => x.as_f64() == y.as_f64(),
        (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => true,
        _ => x == y,
    };
    if a.len().min(b.len()) > 16 {
        let texts = |values: &[Value]| values.iter().all(Value::is_string);
        if texts(a) && texts(b) {
            let a: std::collections::HashSet<&str> = a.iter().filter_map(Value::as_str).collect();
            return b.iter().filter_map(Value::as_str).all(|text| !a.contains(text));
        }
    }
    a.iter().all(|x| b.iter().all(|y| !is_same(x, y)))
}

/// Kinds of values that a schema allows, as far as `type`, `enum` and `const` say.
fn kinds(schema: &Map<String, Value>) -> u8 {
    let named = |name: &Value| match name.as_str() {
        Some("null") => NULL,
        Some("boolean") => BOOLEAN,
        Some("integer") => INTEGER,
        Some("number") => NUMBER,
        Some("string") => STRING,
        Some("array") => ARRAY,
        Some("object") => OBJECT,
        _ => ALL,
    };
    let declared = match schema.get("type") {
        None => ALL,
        Some(Value::Array(names)) => names.iter().map(named).fold(0, |all, kind| all | kind),
        Some(name) => named(name),
    };
    let kind_of = |value: &Value| match value {
        Value::Null => NULL,
        Value::Bool(_) => BOOLEAN,
        Value::Number(_) => NUMBER,
        Value::String(_) => STRING,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    };
    let listed =
        values(schema).map_or(ALL, |values| values.iter().map(kind_of).fold(0, |all, kind| all | kind));
    declared & listed
}

/// True if for each kind that both allow a keyword of that kind keeps them apart.
fn kinds_apart(a: &Map<String, Value>, b: &Map<String, Value>, resolve: Resolve<'_>, depth: usize) -> bool {
    let both = kinds(a) & kinds(b);
    if both & (NULL | BOOLEAN) != 0 {
        return false;
    }
    let counts_apart = |least: &str, most: &str| {
        let of = |schema: &Map<String, Value>, name: &str| schema.get(name).and_then(Value::as_f64);
        let below = |x: Option<f64>, y: Option<f64>| x.zip(y).is_some_and(|(most, least)| most < least);
        below(of(a, most), of(b, least)) || below(of(b, most), of(a, least))
    };
    (both & NUMBER == 0 || ranges_apart(a, b))
        && (both & STRING == 0 || counts_apart("minLength", "maxLength"))
        && (both & ARRAY == 0 || counts_apart("minItems", "maxItems"))
        && (both & OBJECT == 0 || objects_apart(a, b, resolve, depth))
}

/// True if all numbers of one schema are below those of the other.
fn ranges_apart(a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    let of = |schema: &Map<String, Value>, name: &str| schema.get(name).and_then(Value::as_f64);
    // Bounds with true for those that are not in the range.
    let lower = |schema| {
        let bounds = [(of(schema, "minimum"), false), (of(schema, "exclusiveMinimum"), true)];
        bounds.into_iter().filter_map(|(bound, open)| Some((bound?, open))).max_by(|x, y| x.0.total_cmp(&y.0))
    };
    let upper = |schema| {
        let bounds = [(of(schema, "maximum"), false), (of(schema, "exclusiveMaximum"), true)];
        bounds.into_iter().filter_map(|(bound, open)| Some((bound?, open))).min_by(|x, y| x.0.total_cmp(&y.0))
    };
    let below = |upper: Option<(f64, bool)>, lower: Option<(f64, bool)>| {
        upper.zip(lower).is_some_and(|((most, open), (least, begins_open))| {
            most < least || (most == least && (open || begins_open))
        })
    };
    below(upper(a), lower(b)) || below(upper(b), lower(a))
}

/// True if a property that one of them requires has no value that suits both.
fn objects_apart(a: &Map<String, Value>, b: &Map<String, Value>, resolve: Resolve<'_>, depth: usize) -> bool {
    let required = |schema: &Map<String, Value>| -> Vec<String> {
        let names = schema.get("required").and_then(Value::as_array);
        names.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    required(a).iter().chain(&required(b)).any(|name| {
        let property = |schema: &Map<String, Value>| {
            let named = schema.get("properties").and_then(|properties| properties.get(name)).cloned();
            named.unwrap_or_else(|| {
                let is_closed = schema.get("additionalProperties") == Some(&Value::Bool(false))
                    && !schema.contains_key("patternProperties");
                Value::Bool(!is_closed)
            })
        };
        apart(&property(a), &property(b), resolve, depth - 1)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn contradictions_are_found_and_nothing_else() {
        let root = json!({"cat": {"properties": {"kind": {"const": "cat"}}, "required": ["kind"], "type": "object"}});
        let resolve = |reference: &str| root.get(reference);
        let dog = json!({"type": "object", "properties": {"kind": {"enum": ["dog", "wolf"]}}});
        for (a, b, expected) in [
            (json!({"type": "string"}), json!({"type": "integer"}), true),
            (json!({"type": "number"}), json!({"type": "integer"}), false),
            (json!({"const": 1}), json!({"const": 1.0}), false),
            (json!({"const": 1}), json!({"enum": [2, "1"]}), true),
            (json!({"const": [1]}), json!({"const": [1.0]}), false),
            (json!({"type": "number", "maximum": 1}), json!({"type": "number", "minimum": 2}), true),
            (json!({"type": "number", "maximum": 2}), json!({"type": "number", "minimum": 2}), false),
            (json!({"type": "number", "exclusiveMaximum": 2}), json!({"type": "number", "minimum": 2}), true),
            (json!({"maximum": 1}), json!({"minimum": 2}), false),
            (json!({"type": "string", "maxLength": 3}), json!({"type": "string", "minLength": 4}), true),
            (json!({"$ref": "cat"}), dog.clone(), true),
            (json!({"allOf": [{"$ref": "cat"}]}), dog.clone(), true),
            (json!({"anyOf": [{"$ref": "cat"}, {"type": "null"}]}), dog, true),
            (
                json!({"type": "object", "required": ["a"]}),
                json!({"type": "object", "required": ["b"]}),
                false,
            ),
            (
                json!({"type": "object", "required": ["a"]}),
                json!({"type": "object", "properties": {"b": true}, "additionalProperties": false}),
                true,
            ),
            (json!(true), json!({"type": "null"}), false),
            (json!(false), json!(true), true),
            (json!({"type": ["null", "string"]}), json!({"type": ["null", "array"]}), false),
        ] {
            assert_eq!(exclusive(&a, &b, &resolve), expected, "{a} {b}");
            assert_eq!(exclusive(&b, &a, &resolve), expected, "{b} {a}");
        }
    }
}
