//! Python's manners in templates: how values print, `json.dumps`, and the methods of strings.

use std::fmt::Write;

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Kwargs, ValueKind, from_args},
};
use serde_json::Value as Json;

/// Converts JSON; the order of keys stays.
pub(super) fn from_json(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::from(value),
            (None, Some(value)) => Value::from(value),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(values) => values.iter().map(from_json).collect(),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(key, value)| (key.as_str(), from_json(value)))),
    }
}

/// `str(value)`: what `{{ value }}` prints.
pub(super) fn to_str(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None => {
            let mut out = String::new();
            write_repr(value, &mut out);
            out
        }
    }
}

/// `repr(value)`: how a value prints inside a list. An undefined value prints nothing.
fn write_repr(value: &Value, out: &mut String) {
    match value.kind() {
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => out.push_str(&float_repr(number)),
            Err(_) => write_display(value, out),
        },
        ValueKind::String => write_str_repr(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq => {
            let items: Vec<Value> = value.try_iter().map(Iterator::collect).unwrap_or_default();
            write_joined("[", "]", items.iter(), out, |item, out| write_repr(item, out));
        }
        // Namespaces, macros and the like have no items of their own.
        ValueKind::Map => match pairs(value) {
            Some(pairs) => write_joined("{", "}", pairs.iter(), out, |(key, value), out| {
                write_repr(key, out);
                out.push_str(": ");
                write_repr(value, out);
            }),
            None => write_display(value, out),
        },
        _ => write_display(value, out),
    }
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
    write: impl Fn(T, &mut String),
) {
    out.push_str(open);
    for (i, item) in items.enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        write(item, out);
    }
    out.push_str(close);
}

/// Keys and values of a mapping, in order.
fn pairs(value: &Value) -> Option<Vec<(Value, Value)>> {
    Some(value.as_object()?.try_iter_pairs()?.collect())
}

/// The shortest text that reads back as the same number, as Python writes it: `1e+16`, `1e-07`, `0.0001`, `2.0`.
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

/// A string literal: in single quotes unless it holds one and no double quote.
fn write_str_repr(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => {
                let code = c as u32;
                let _ = match code {
                    ..=0xFF => write!(out, "\\x{code:02x}"),
                    ..=0xFFFF => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// `str.isprintable` for one character, of the general categories that the standard library can tell.
fn is_printable(c: char) -> bool {
    let is_noncharacter = matches!(c, '\u{FDD0}'..='\u{FDEF}') || c as u32 & 0xFFFE == 0xFFFE;
    let is_format = matches!(c,
        '\u{AD}' | '\u{600}'..='\u{605}' | '\u{61C}' | '\u{6DD}' | '\u{70F}' | '\u{180E}' | '\u{200B}'..='\u{200F}'
        | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FEFF}' | '\u{FFF9}'..='\u{FFFB}'
        | '\u{E000}'..='\u{F8FF}' | '\u{E0001}'..='\u{E007F}' | '\u{F0000}'..);
    c == ' ' || !(c.is_control() || c.is_whitespace() || is_noncharacter || is_format)
}

/// The filter `tojson` as transformers defines it: `json.dumps` with the keys in their order, characters beyond ASCII
/// as they are and no escapes for HTML.
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

/// Widest indentation: more is a mistake of the template, and would cost memory.
const MAX_INDENT: usize = 64;

/// Deepest nesting that is written; more would exhaust the stack.
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
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => {
                let text = to_str(value);
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
        for c in text.chars() {
            match c {
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
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn not_json(value: &Value) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a value of type {} has no JSON", value.kind()))
}

/// What Python takes for white space.
fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1C}'..='\u{1F}')
}

/// The filter `trim`.
pub(super) fn trim(value: &Value, chars: Option<&str>) -> String {
    strip(&to_str(value), chars, true, true).to_owned()
}

/// The characters of a string as a list; other values as they are.
pub(super) fn characters(value: Value) -> Value {
    match value.as_str() {
        Some(text) => text.chars().map(Value::from).collect(),
        None => value,
    }
}

fn strip<'t>(text: &'t str, chars: Option<&str>, start: bool, end: bool) -> &'t str {
    let goes = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if start { text.trim_start_matches(goes) } else { text };
    if end { text.trim_end_matches(goes) } else { text }
}

/// Methods that differ from Python's, or are absent, in the engine's own Python layer; the rest goes there.
pub(super) fn unknown_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str()
        && let Some(result) = string_method(text, method, args)
    {
        return result;
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "strip" => stripped(text, args, true, true),
        "lstrip" => stripped(text, args, true, false),
        "rstrip" => stripped(text, args, false, true),
        "split" => split(text, args, false),
        "rsplit" => split(text, args, true),
        "splitlines" => from_args(args).map(|(keep,): (Option<bool>,)| split_lines(text, keep.unwrap_or(false))),
        "isspace" => from_args(args).map(|()| Value::from(!text.is_empty() && text.chars().all(is_space))),
        "title" => from_args(args).map(|()| Value::from(title(text))),
        "removeprefix" => from_args(args)
            .map(|(prefix,): (&str,)| Value::from(text.strip_prefix(prefix).unwrap_or(text))),
        "removesuffix" => from_args(args)
            .map(|(suffix,): (&str,)| Value::from(text.strip_suffix(suffix).unwrap_or(text))),
        "partition" => from_args(args).map(|(by,): (&str,)| match text.split_once(by) {
            Some((before, after)) => [before, by, after].into_iter().collect(),
            None => [text, "", ""].into_iter().collect(),
        }),
        "rpartition" => from_args(args).map(|(by,): (&str,)| match text.rsplit_once(by) {
            Some((before, after)) => [before, by, after].into_iter().collect(),
            None => ["", "", text].into_iter().collect(),
        }),
        _ => return None,
    })
}

fn stripped(text: &str, args: &[Value], start: bool, end: bool) -> Result<Value, Error> {
    let (chars,): (Option<&str>,) = from_args(args)?;
    Ok(Value::from(strip(text, chars, start, end)))
}

/// `split` and `rsplit`: at a separator, or at runs of white space; at most `maxsplit` times.
fn split(text: &str, args: &[Value], from_right: bool) -> Result<Value, Error> {
    let (separator, max, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = match separator {
        Some(separator) => Some(separator),
        None => kwargs.get("sep")?,
    };
    let max = max.or(kwargs.get("maxsplit")?).and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX);
    kwargs.assert_all_used()?;
    let limit = max.saturating_add(1);
    let separator = separator.filter(|separator| !separator.is_none());
    let mut parts: Vec<&str> = match separator.as_ref().map(|separator| separator.as_str()) {
        Some(Some("")) => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        Some(Some(separator)) if from_right => text.rsplitn(limit, separator).collect(),
        Some(Some(separator)) => text.splitn(limit, separator).collect(),
        Some(None) => return Err(Error::new(ErrorKind::InvalidOperation, "the separator must be a string")),
        None => split_at_space(text, max, from_right),
    };
    if from_right {
        parts.reverse();
    }
    Ok(parts.into_iter().collect())
}

/// Words between white space; for `from_right` in reverse order.
fn split_at_space(text: &str, max: usize, from_right: bool) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text;
    loop {
        rest = strip(rest, None, !from_right, from_right);
        if rest.is_empty() {
            return words;
        }
        if words.len() == max {
            words.push(strip(rest, None, from_right, !from_right));
            return words;
        }
        let word = if from_right {
            let start = rest.rfind(is_space).map_or(0, |at| at + rest[at..].chars().next().map_or(1, char::len_utf8));
            let (before, word) = rest.split_at(start);
            rest = before;
            word
        } else {
            let (word, after) = rest.split_at(rest.find(is_space).unwrap_or(rest.len()));
            rest = after;
            word
        };
        words.push(word);
    }
}

fn split_lines(text: &str, keep_ends: bool) -> Value {
    let is_end = |c: char| {
        matches!(c, '\n' | '\r' | '\u{B}' | '\u{C}' | '\u{1C}'..='\u{1E}' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let line = rest.find(is_end).unwrap_or(rest.len());
        let end = match rest[line..].chars().next() {
            Some('\r') if rest[line + 1..].starts_with('\n') => 2,
            Some(end) => end.len_utf8(),
            None => 0,
        };
        lines.push(&rest[..if keep_ends { line + end } else { line }]);
        rest = &rest[line + end..];
    }
    lines.into_iter().collect()
}

/// `str.title`: the first letter of every run of letters in upper case, the others in lower case.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_word = false;
    for c in text.chars() {
        if in_word {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        in_word = c.is_alphabetic();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_in_python() {
        let expected = [
            (1.0, "1.0"), (-0.0, "-0.0"), (0.1, "0.1"), (1e15, "1000000000000000.0"), (1e16, "1e+16"),
            (1.5e16, "1.5e+16"), (0.0001, "0.0001"), (0.00001, "1e-05"), (1e-7, "1e-07"), (1e100, "1e+100"),
            (123_456.789, "123456.789"), (f64::NAN, "nan"), (f64::NEG_INFINITY, "-inf"),
        ];
        for (number, text) in expected {
            assert_eq!(float_repr(number), text);
        }
    }

    #[test]
    fn strings_in_lists_print_as_in_python() {
        let value: Value = ["a\"b", "it's", "'\"", "\n\t\\", "\u{1}\u{7f}é\u{a0}\u{200b}\u{10ffff}"].into_iter().collect();
        assert_eq!(
            to_str(&value),
            r#"['a"b', "it's", '\'"', '\n\t\\', '\x01\x7fé\xa0\u200b\U0010ffff']"#
        );
    }

    fn call(text: &str, method: &str, args: &[Value]) -> String {
        string_method(text, method, args).map_or_else(String::new, |result| {
            result.map_or_else(|error| error.to_string(), |value| to_str(&value))
        })
    }

    #[test]
    fn string_methods() {
        let v = |text: &str| Value::from(text);
        assert_eq!(call("\u{1c} a \n", "strip", &[]), "a");
        assert_eq!(call("xxaxx", "lstrip", &[v("x")]), "axx");
        assert_eq!(call(" a  b ", "split", &[]), "['a', 'b']");
        assert_eq!(call(" a  b ", "split", &[v(" ")]), "['', 'a', '', 'b', '']");
        assert_eq!(call("a b c", "split", &[Value::from(()), Value::from(1)]), "['a', 'b c']");
        assert_eq!(call("a b c ", "rsplit", &[Value::from(()), Value::from(1)]), "['a b', 'c']");
        assert_eq!(call("a,b,c", "rsplit", &[v(","), Value::from(1)]), "['a,b', 'c']");
        assert_eq!(call("a\r\nb\u{2028}c\n", "splitlines", &[]), "['a', 'b', 'c']");
        assert_eq!(call("a\r\nb", "splitlines", &[Value::from(true)]), r"['a\r\n', 'b']");
        assert_eq!(call("it's a-b 3x", "title", &[]), "It'S A-B 3X");
        assert_eq!(call("foobar", "removeprefix", &[v("foo")]), "bar");
        assert_eq!(call("a=b=c", "partition", &[v("=")]), "['a', '=', 'b=c']");
    }

    #[test]
    fn json_as_in_python() -> Result<(), Error> {
        let value = from_json(&serde_json::json!({"b": [], "a": {}, "x": [1, {"y": 1e16}], "é\u{7f}": "\u{1}\u{8}<&>'"}));
        let plain = tojson(&value, None, Kwargs::from_iter([] as [(&str, Value); 0]))?;
        assert_eq!(to_str(&plain), "{\"b\": [], \"a\": {}, \"x\": [1, {\"y\": 1e+16}], \"é\u{7f}\": \"\\u0001\\b<&>'\"}");
        let ascii = Kwargs::from_iter([("ensure_ascii", Value::from(true)), ("sort_keys", Value::from(true))]);
        let ascii = tojson(&from_json(&serde_json::json!({"b": "é😀", "a": null})), None, ascii)?;
        assert_eq!(to_str(&ascii), r#"{"a": null, "b": "\u00e9\ud83d\ude00"}"#);
        let pretty = tojson(&from_json(&serde_json::json!([1, [], [2]])), Some(Value::from(1)), Kwargs::from_iter([] as [(&str, Value); 0]))?;
        assert_eq!(to_str(&pretty), "[\n 1,\n [],\n [\n  2\n ]\n]");
        Ok(())
    }
}
