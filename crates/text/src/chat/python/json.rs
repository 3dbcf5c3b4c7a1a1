//! Filter `tojson`: Python's `json.dumps` with the settings of transformers.

use std::fmt::Write;

use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, ValueKind},
};

use super::values::{check_length, pairs, to_str};
use crate::chat::origin::restored;

/// Filter `tojson` as transformers defines it. Keys keep their order; there are no escapes for
/// characters beyond ASCII, nor for HTML.
pub(super) fn tojson(value: &Value, indent: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => kwargs.get("indent")?,
    };
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => match indent.as_str() {
            Some(text) => Some(text.to_owned()),
            None => Some(" ".repeat(usize::try_from(indent)?.min(MAX_INDENT))),
        },
    };
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "separators takes two strings")),
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let style = JsonStyle {
        indent,
        item,
        key,
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    Ok(Value::from(out))
}

/// Maximum indentation: a larger one is an error of the template and would cost memory.
const MAX_INDENT: usize = 64;

/// Maximum nesting: deeper values would exhaust the stack.
const MAX_DEPTH: usize = 200;

/// The arguments of `json.dumps`.
struct JsonStyle {
    indent: Option<String>,
    item: String,
    key: String,
    ensure_ascii: bool,
    sort_keys: bool,
}

impl JsonStyle {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "the value is nested too deeply for JSON"));
        }
        check_length(out)?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => {
                let text = to_str(value)?;
                out.push_str(match text.as_str() {
                    "nan" => "NaN",
                    "inf" => "Infinity",
                    "-inf" => "-Infinity",
                    other => other,
                });
            }
            ValueKind::String => self.write_str(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_all('[', ']', depth, out, &items, |item, out| self.write(item, depth + 1, out))?;
            }
            ValueKind::Map => {
                let mut pairs = pairs(value).ok_or_else(|| not_json(value))?;
                if self.sort_keys {
                    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.write_all('{', '}', depth, out, &pairs, |(key, value), out| {
                    self.write_key(key, out)?;
                    out.push_str(&self.key);
                    self.write(value, depth + 1, out)
                })?;
            }
            _ => return Err(not_json(value)),
        }
        Ok(())
    }

    fn write_all<T>(
        &self,
        open: char,
        close: char,
        depth: usize,
        out: &mut String,
        items: &[T],
        write: impl Fn(&T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let new_line = |depth: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                out.extend(std::iter::repeat_n(indent.as_str(), depth));
            }
        };
        out.push(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(&self.item);
            }
            new_line(depth + 1, out);
            write(item, out)?;
        }
        if !items.is_empty() {
            new_line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn write_key(&self, key: &Value, out: &mut String) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.write_str(key.as_str().unwrap_or_default(), out),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                out.push('"');
                self.write(key, 0, out)?;
                out.push('"');
            }
            _ => return Err(not_json(key)),
        }
        Ok(())
    }

    fn write_str(&self, text: &str, out: &mut String) {
        out.push('"');
        for written in text.chars() {
            match restored(written) {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{C}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                _ => out.push(written),
            }
        }
        out.push('"');
    }
}

fn not_json(value: &Value) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a value of type {} has no JSON", value.kind()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::python::values::from_json;

    #[test]
    fn json_as_in_python() -> Result<(), Error> {
        let value = from_json(
            &serde_json::json!({"b": [], "a": {}, "x": [1, {"y": 1e16}], "é\u{7f}": "\u{1}\u{8}<&>'"}),
        );
        let plain = tojson(&value, None, Kwargs::from_iter([] as [(&str, Value); 0]))?;
        assert_eq!(
            to_str(&plain)?,
            "{\"b\": [], \"a\": {}, \"x\": [1, {\"y\": 1e+16}], \"é\u{7f}\": \"\\u0001\\b<&>'\"}"
        );
        let ascii =
            Kwargs::from_iter([("ensure_ascii", Value::from(true)), ("sort_keys", Value::from(true))]);
        let ascii = tojson(&from_json(&serde_json::json!({"b": "é😀", "a": null})), None, ascii)?;
        assert_eq!(to_str(&ascii)?, r#"{"a": null, "b": "\u00e9\ud83d\ude00"}"#);
        let pretty = tojson(
            &from_json(&serde_json::json!([1, [], [2]])),
            Some(Value::from(1)),
            Kwargs::from_iter([] as [(&str, Value); 0]),
        )?;
        assert_eq!(to_str(&pretty)?, "[\n 1,\n [],\n [\n  2\n ]\n]");
        Ok(())
    }
}
