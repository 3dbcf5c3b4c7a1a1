//! Bounds of numbers.

use serde_json::{Map, Value, json};

/// Bound of numbers that have none: 15 digits, which a double keeps. Without a bound, digits and
/// exponents go beyond what JSON readers take.
const BOUND: i64 = 999_999_999_999_999;

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
