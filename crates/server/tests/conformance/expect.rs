//! Expectations of values.
//!
//! A plain value is expected to be equal. An object with one of these keys says something else:
//! `$type` (`string`, `number`, `integer`, `array`, `object`, `boolean`, `null`), `$absent`,
//! `$contains` (text), `$starts` (text), `$least` and `$most` (numbers), `$length` (array, object
//! or text), `$one_of` (values), `$keys` (of an object, in any order).

use serde_json::{Map, Value};

/// Checks values by their JSON pointers.
///
/// # Errors
/// The first expectation that is not met.
pub(crate) fn check_all(expected: &Map<String, Value>, value: &Value) -> Result<(), String> {
    for (pointer, expected) in expected {
        check(expected, value.pointer(pointer)).map_err(|error| format!("{pointer} {error} in {value}"))?;
    }
    Ok(())
}

/// Checks one value; `None` is an absent one.
///
/// # Errors
/// The expectation, if it is not met.
pub(crate) fn check(expected: &Value, found: Option<&Value>) -> Result<(), String> {
    let rules = expected.as_object().filter(|rules| rules.keys().any(|key| key.starts_with('$')));
    let Some(rules) = rules else {
        return if found == Some(expected) { Ok(()) } else { Err(format!("is not {expected}")) };
    };
    for (rule, argument) in rules {
        if !holds(rule, argument, found) {
            return Err(format!("does not fit {rule} {argument}"));
        }
    }
    Ok(())
}

fn holds(rule: &str, argument: &Value, found: Option<&Value>) -> bool {
    let text = || found.and_then(Value::as_str).unwrap_or_default();
    let argument_text = || argument.as_str().unwrap_or_else(|| panic!("{rule} takes a text"));
    let number = || found.and_then(Value::as_f64);
    match rule {
        "$absent" => found.is_none() == argument.as_bool().unwrap_or(true),
        "$type" => {
            found.is_some_and(|value| type_of(value) == argument_text() || is_integer(value, argument))
        }
        "$contains" => text().contains(argument_text()),
        "$starts" => text().starts_with(argument_text()),
        "$least" => number() >= argument.as_f64(),
        "$most" => number().is_some() && number() <= argument.as_f64(),
        "$length" => found.map(length) == argument.as_u64().map(|length| length as usize),
        "$one_of" => {
            argument.as_array().is_some_and(|values| values.iter().any(|value| Some(value) == found))
        }
        "$keys" => {
            let found = found.and_then(Value::as_object).map(|map| {
                let mut keys: Vec<_> = map.keys().map(String::as_str).collect();
                keys.sort_unstable();
                keys
            });
            let mut keys: Vec<_> =
                argument.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            keys.sort_unstable();
            found == Some(keys)
        }
        unknown => panic!("there is no rule {unknown}"),
    }
}

fn is_integer(value: &Value, argument: &Value) -> bool {
    argument == "integer" && (value.is_u64() || value.is_i64())
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn length(value: &Value) -> usize {
    match value {
        Value::Array(values) => values.len(),
        Value::Object(fields) => fields.len(),
        Value::String(text) => text.chars().count(),
        _ => 0,
    }
}
