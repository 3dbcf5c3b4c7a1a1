//! Python values: conversion from JSON, `str` and `repr`.

use std::fmt::Write;
use std::sync::Arc;

use minijinja::{
    Error, ErrorKind, Value,
    value::{Enumerator, Object, ObjectRepr, Tuple, ValueKind},
};
use serde_json::Value as Json;

use crate::chat::{
    bounds::{LONGEST_TEXT, TOO_LONG},
    origin::{plain_text, restored, shelter},
};

/// Converts JSON of messages; keys keep their order.
pub(in crate::chat) fn from_json(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::from(value),
            (None, Some(value)) => Value::from(value),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(shelter(text)),
        Json::Array(values) => values.iter().map(from_json).collect(),
        Json::Object(map) => {
            Value::from_pairs(map.iter().map(|(key, value)| (shelter(key), from_json(value))))
        }
    }
}

/// Converts a value as `str(value)` does: the text that `{{ value }}` prints.
///
/// # Errors
/// A text longer than [`LONGEST_TEXT`]: nested lists can share items, so that a small value has an
/// exponentially long text.
pub(in crate::chat) fn to_str(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None if value.is_undefined() => Ok(String::new()),
        None => to_repr(value),
    }
}

/// Filter `string`.
pub(super) fn string(value: &Value) -> Result<Value, Error> {
    if value.as_str().is_some() { Ok(value.clone()) } else { to_str(value).map(Value::from) }
}

/// Looks up a path such as `function.name` or `0`.
pub(super) fn at_path(value: &Value, path: &str) -> Option<Value> {
    plain_text(path).split('.').try_fold(value.clone(), |value, part| match part.parse::<usize>() {
        Ok(at) => value.get_item_by_index(at).ok(),
        Err(_) => value.get_attr(part).ok(),
    })
}

/// Converts a value as `repr(value)` does: its form inside a printed list.
///
/// # Errors
/// As [`to_str`].
pub(super) fn to_repr(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_repr(value, &mut out)?;
    Ok(out)
}

/// Rejects a text longer than [`LONGEST_TEXT`].
pub(super) fn check_length(text: &str) -> Result<(), Error> {
    if text.len() > LONGEST_TEXT {
        return Err(Error::new(ErrorKind::InvalidOperation, TOO_LONG));
    }
    Ok(())
}

fn write_repr(value: &Value, out: &mut String) -> Result<(), Error> {
    check_length(out)?;
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => out.push_str(&float_repr(number)),
            Err(_) => write_display(value, out),
        },
        ValueKind::String => write_str_repr(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable if value.len().is_some() => {
            let items: Vec<Value> = value.try_iter().map(Iterator::collect).unwrap_or_default();
            let (open, close) = match (is_tuple(value), items.len()) {
                (false, _) => ("[", "]"),
                (true, 1) => ("(", ",)"),
                (true, _) => ("(", ")"),
            };
            write_joined(open, close, items.iter(), out, write_repr)?;
        }
        // Namespaces, macros and the like have no items of their own.
        ValueKind::Map => match pairs(value) {
            Some(pairs) => write_joined("{", "}", pairs.iter(), out, |(key, value), out| {
                write_repr(key, out)?;
                out.push_str(": ");
                write_repr(value, out)
            })?,
            None => write_display(value, out),
        },
        _ => write_display(value, out),
    }
    Ok(())
}

/// True if a value is a tuple in Python.
pub(super) fn is_tuple(value: &Value) -> bool {
    value.downcast_object_ref::<Tuple>().is_some() || value.downcast_object_ref::<Group>().is_some()
}

fn write_display(value: &Value, out: &mut String) {
    // Writing to a string does not fail.
    let _ = write!(out, "{value}");
}

fn write_joined<T>(
    open: &str,
    close: &str,
    items: impl Iterator<Item = T>,
    out: &mut String,
    write: impl Fn(T, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push_str(open);
    for (i, item) in items.enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        write(item, out)?;
    }
    out.push_str(close);
    Ok(())
}

/// Keys and values of a mapping, in order.
pub(super) fn pairs(value: &Value) -> Option<Vec<(Value, Value)>> {
    Some(value.as_object()?.try_iter_pairs()?.collect())
}

/// Shortest text that parses to the same number, in Python's format: `1e+16`, `1e-07`, `0.0001`,
/// `2.0`.
fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(exponent) if (-4..16).contains(&exponent) => format!("{number:?}"),
        Ok(exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
        }
        Err(_) => scientific,
    }
}

/// Writes a string literal: in single quotes, unless it has a single quote and no double quote.
fn write_str_repr(text: &str, out: &mut String) {
    let has = |quote: char| text.chars().any(|c| restored(c) == quote);
    let quote = if has('\'') && !has('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        let written = c;
        match restored(c) {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(written),
            c => {
                let code = c as u32;
                let _ = match code {
                    ..=0xFF => write!(out, "\\x{code:02x}"),
                    0x100..=0xFFFF => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// True if `str.isprintable` holds for a character, as far as the standard library has its
/// category.
fn is_printable(c: char) -> bool {
    let is_noncharacter = matches!(c, '\u{FDD0}'..='\u{FDEF}') || c as u32 & 0xFFFE == 0xFFFE;
    let is_format = matches!(c,
        '\u{AD}' | '\u{600}'..='\u{605}' | '\u{61C}' | '\u{6DD}' | '\u{70F}' | '\u{180E}' | '\u{200B}'..='\u{200F}'
        | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FEFF}' | '\u{FFF9}'..='\u{FFFB}'
        | '\u{E000}'..='\u{F8FF}' | '\u{E0001}'..='\u{E007F}' | '\u{F0000}'..);
    c == ' ' || !(c.is_control() || c.is_whitespace() || is_noncharacter || is_format)
}

/// Group of `groupby`: a tuple of key and list, also accessible by name.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) key: Value,
    pub(super) items: Value,
}

impl Object for Group {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match (key.as_usize(), key.as_str()) {
            (Some(0), _) | (_, Some("grouper")) => Some(self.key.clone()),
            (Some(1), _) | (_, Some("list")) => Some(self.items.clone()),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_in_python() {
        let expected = [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e16, "1.5e+16"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1e-7, "1e-07"),
            (1e100, "1e+100"),
            (123_456.789, "123456.789"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (number, text) in expected {
            assert_eq!(float_repr(number), text);
        }
    }

    #[test]
    fn strings_in_lists_print_as_in_python() {
        let value = from_json(&serde_json::json!([
            "a\"b",
            "it's",
            "'\"",
            "\n\t\\",
            "\u{1}\u{7f}é\u{a0}\u{200b}\u{10ffff}"
        ]));
        assert_eq!(
            to_str(&value).unwrap(),
            r#"['a"b', "it's", '\'"', '\n\t\\', '\x01\x7fé\xa0\u200b\U0010ffff']"#
        );
    }
}
