//! Bounds of numbers.

use serde_json::{Map, Value, json};

/// Bound of numbers that have none: 15 digits, which a double keeps. Without a bound, digits and
/// exponents go beyond what JSON readers take.
const BOUND: i64 = 999_999_999_999_999;

/// Kinds of numbers, each with a definition of its own: numbers without keywords share it, since
/// their bounds take long to compile.
pub(super) const KINDS: [&str; 2] = ["integer", "number"];

/// The definition of all numbers of a kind.
pub(super) fn definition(kind: &str) -> Value {
    let mut number = Map::from_iter([("type".to_owned(), json!(kind))]);
    bound(&mut number);
    Value::Object(number)
}

/// Takes the numbers out of the types of a schema, if no keyword restricts them; their kind.
pub(super) fn take_unrestricted(schema: &mut Map<String, Value>) -> Option<&'static str> {
    let keywords = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
    if keywords.iter().any(|keyword| schema.contains_key(*keyword)) {
        return None;
    }
    let names: Vec<Value> = match schema.get("type")? {
        Value::Array(names) => names.clone(),
        name => vec![name.clone()],
    };
    let kind = KINDS.into_iter().rfind(|kind| names.iter().any(|name| name == kind))?;
    let others: Vec<Value> =
        names.into_iter().filter(|name| !KINDS.iter().any(|kind| name == kind)).collect();
    schema.insert("type".to_owned(), Value::Array(others));
    Some(kind)
}

/// Adds the bounds that a numeric schema lacks.
pub(super) fn bound(schema: &mut Map<String, Value>) {
    let of = |name: &str| schema.get(name).and_then(Value::as_f64);
    let lower = of("minimum").or(of("exclusiveMinimum"));
    let upper = of("maximum").or(of("exclusiveMaximum"));
    let bound = BOUND as f64;
    if lower.is_none() && upper.is_none_or(|upper| upper > -bound) {
        schema.insert("minimum".to_owned(), json!(-BOUND));
    }
    if upper.is_none() && lower.is_none_or(|lower| lower < bound) {
        schema.insert("maximum".to_owned(), json!(BOUND));
    }
}
