//! Python's string formatting: operator `%`, filter `format`, and method `format`.

use std::borrow::Cow;

use minijinja::{
    Error, ErrorKind, State, Value,
    formatting::{FormatStyle, format as format_number},
    value::{Kwargs, Rest, Tuple, ValueKind, ValueOrKwargs},
};

use super::{
    arguments::{Arguments, operands},
    html::escaped,
    strings::{MAX_WIDTH, fill},
    values::{is_tuple, to_repr, to_str},
};
use crate::chat::{
    bounds::charge,
    origin::{Places, has_marks, plain_text},
};

/// Bytes charged for a placeholder, in addition to its output.
const PLACE_BYTES: usize = 64;

fn invalid(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// `a % b` of a list with both: the remainder, or printf-style formatting if `a` is a string.
pub(super) fn remainder(state: &State, list: &Value) -> Result<Value, Error> {
    let [left, right] = operands(list)?;
    if left.as_str().is_some() {
        return percent(&left, &right);
    }
    state.env().compile_expression("a % b")?.eval(minijinja::context! { a => left, b => right })
}

/// Filter `format`.
pub(super) fn format(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let (by_place, by_name) = Arguments::of(args)?.rest();
    let has_names = by_name.args().next().is_some();
    match (by_place.is_empty(), has_names) {
        (_, false) => percent(value, &Value::from(Tuple::from(by_place))),
        (true, true) => percent(value, &Value::from(by_name)),
        (false, true) => Err(invalid("a format takes arguments by place or by name, not both")),
    }
}

/// `format % values`.
fn percent(format: &Value, values: &Value) -> Result<Value, Error> {
    let text = to_str(format)?;
    charge(text.len())?;
    // A tuple holds the values; anything else is the only value.
    let by_place = if is_tuple(values) { values.try_iter()?.collect() } else { vec![values.clone()] };
    let mut by_place = by_place.into_iter();
    let mut out = String::new();
    let (plain, mut places) = Places::new(&text);
    let mut rest = &*plain;
    // Bytes of the text already written.
    let mut written = 0;
    while let Some(at) = rest.find('%') {
        let start = places.of(plain.len() - rest.len() + at);
        out.push_str(&text[written..start]);
        let (place, after) = Place::parse(&rest[at + 1..]).ok_or_else(|| invalid("incomplete format"))?;
        rest = after;
        written = places.of(plain.len() - rest.len());
        if place.conversion == '%' {
            out.push('%');
            continue;
        }
        let value = match place.key {
            Some(_) if values.kind() != ValueKind::Map => return Err(invalid("format requires a mapping")),
            Some(key) => values.get_item(&Value::from(key)).ok().filter(|value| !value.is_undefined()),
            None => by_place.next(),
        };
        let value = value.ok_or_else(|| invalid("not enough arguments for format string"))?;
        let piece = place.write(&value, format.is_safe())?;
        charge(PLACE_BYTES + piece.len())?;
        out.push_str(&piece);
    }
    out.push_str(&text[written..]);
    // Python checks this for strings, numbers and tuples only: other values may be mappings.
    let is_mapping =
        !is_tuple(values) && matches!(values.kind(), ValueKind::Map | ValueKind::Seq | ValueKind::Iterable);
    if by_place.next().is_some() && !is_mapping {
        return Err(invalid("not all arguments converted during string formatting"));
    }
    Ok(if format.is_safe() { Value::from_safe_string(out) } else { Value::from(out) })
}

/// Placeholder of a `%` format: `%(key)-5.2f`.
struct Place<'a> {
    key: Option<&'a str>,
    flags: &'a str,
    width: &'a str,
    precision: Option<&'a str>,
    conversion: char,
}

impl<'a> Place<'a> {
    /// Parses the placeholder after a `%`; returns it and the text after it.
    fn parse(mut rest: &'a str) -> Option<(Self, &'a str)> {
        let mut key = None;
        if let Some(inner) = rest.strip_prefix('(') {
            let (name, after) = inner.split_once(')')?;
            (key, rest) = (Some(name), after);
        }
        let (flags, after) = split_while(rest, |c| matches!(c, '#' | '0' | '-' | ' ' | '+'));
        let (width, mut rest) = split_while(after, |c| c.is_ascii_digit());
        let mut precision = None;
        if let Some(after) = rest.strip_prefix('.') {
            let (digits, after) = split_while(after, |c| c.is_ascii_digit());
            (precision, rest) = (Some(digits), after);
        }
        let rest = rest.strip_prefix(['h', 'l', 'L']).unwrap_or(rest);
        let conversion = rest.chars().next()?;
        Some((Self { key, flags, width, precision, conversion }, &rest[conversion.len_utf8()..]))
    }

    fn write(&self, value: &Value, escapes: bool) -> Result<String, Error> {
        let width = number(self.width)?.unwrap_or(0);
        // A point without digits is a precision of 0.
        let precision =
            self.precision.map(|digits| number(digits).map(Option::unwrap_or_default)).transpose()?;
        let as_number = |conversion: char, value: Value| {
            let precision = precision.map_or_else(String::new, |precision| format!(".{precision}"));
            let format = format!("%{}{}{precision}{conversion}", self.flags, self.width);
            format_number(FormatStyle::Printf, &format, &[value]).and_then(as_text)
        };
        let text = match self.conversion {
            's' if escapes && !value.is_safe() => escaped(&to_str(value)?),
            's' => to_str(value)?,
            'r' => to_repr(value)?,
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' if precision.is_some() => {
                return Err(invalid("whole numbers are written without a precision"));
            }
            'd' | 'i' | 'u' => return as_number('d', truncated(value)?),
            'c' if value.as_str().is_some_and(|text| text.chars().count() == 1) => to_str(value)?,
            'x' | 'X' | 'o' | 'c' => return as_number(self.conversion, value.clone()),
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
                let number = match value.kind() {
                    ValueKind::Bool => f64::from(u8::from(value.is_true())),
                    _ => f64::try_from(value.clone())?,
                };
                return as_number(self.conversion, Value::from(number));
            }
            other => return Err(invalid(format!("unsupported format character '{other}'"))),
        };
        let align = if self.flags.contains('-') { '<' } else { '>' };
        Ok(padded(&text, precision, width, align, ' '))
    }
}

/// Text of a formatted number. A number can be a code point (`%c`), which must not be a marked one.
fn as_text(text: String) -> Result<String, Error> {
    if has_marks(&text) {
        return Err(invalid("the number of a character is too large"));
    }
    Ok(text)
}

/// Splits a text after its longest prefix of matching characters.
fn split_while(text: &str, is_of_kind: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !is_of_kind(c)).unwrap_or(text.len()))
}

/// Parses a width or precision; `None` if empty.
fn number(digits: &str) -> Result<Option<usize>, Error> {
    if digits.is_empty() {
        return Ok(None);
    }
    let number = digits.parse().ok().filter(|&number| number <= MAX_WIDTH);
    number.map(Some).ok_or_else(|| invalid("the format has a width that is too large"))
}

/// Truncates a number to an integer; other values stay.
fn truncated(value: &Value) -> Result<Value, Error> {
    if value.is_number() && !value.is_integer() {
        let number = f64::try_from(value.clone())?;
        if !number.is_finite() {
            return Err(invalid(format!("cannot convert {number} to an integer")));
        }
        return Ok(Value::from(number as i128));
    }
    Ok(value.clone())
}

/// Text cut to a precision and padded to a width.
fn padded(text: &str, precision: Option<usize>, width: usize, align: char, with: char) -> String {
    let end = precision.and_then(|precision| text.char_indices().nth(precision));
    let text = end.map_or(text, |(end, _)| &text[..end]);
    let filling = fill(text, width, with);
    let left = match align {
        '<' => 0,
        '>' => filling.len(),
        _ => filling.chars().count() / 2 * with.len_utf8(),
    };
    let (before, after) = filling.split_at(left);
    format!("{before}{text}{after}")
}

/// Method `format`.
pub(super) fn format_method(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (by_place, by_name) = Arguments::new(args)?.rest();
    Fields { by_place, by_name, next: 0 }.write(text, 2).map(Value::from)
}

/// Arguments for the fields of a format like `{name!r:>5}`.
struct Fields {
    by_place: Vec<Value>,
    by_name: Kwargs,
    /// Index in `by_place` for the next field without a name.
    next: usize,
}

impl Fields {
    /// Formats the fields of `format`, whose specifications may contain fields, `depth` levels in
    /// all.
    fn write(&mut self, format: &str, depth: usize) -> Result<String, Error> {
        charge(format.len())?;
        let depth = depth.checked_sub(1).ok_or_else(|| invalid("the format is nested too deeply"))?;
        let mut out = String::new();
        let (plain, mut places) = Places::new(format);
        let mut rest = &*plain;
        // Bytes of the format already written.
        let mut done = 0;
        while let Some(at) = rest.find(['{', '}']) {
            let mark = &rest[at..];
            let from = plain.len() - mark.len();
            out.push_str(&format[done..places.of(from)]);
            if mark.starts_with("{{") || mark.starts_with("}}") {
                out.push_str(&mark[..1]);
                rest = &mark[2..];
                done = places.of(from + 2);
                continue;
            }
            let len = field_len(mark).ok_or_else(|| invalid("single '{' or '}' in a format"))?;
            let written = self.field(&mark[1..len - 1], depth)?;
            charge(PLACE_BYTES + written.len())?;
            out.push_str(&written);
            rest = &mark[len..];
            done = places.of(from + len);
        }
        out.push_str(&format[done..]);
        Ok(out)
    }

    /// Formats one field, `name!conversion:specification`.
    fn field(&mut self, field: &str, depth: usize) -> Result<String, Error> {
        let (name, rest) = split_while(field, |c| !matches!(c, '!' | ':'));
        let (conversion, specification) = rest.split_once(':').unwrap_or((rest, ""));
        let value = self.value(name)?;
        let value = match conversion {
            "" => value,
            "!s" => Value::from(to_str(&value)?),
            "!r" => Value::from(to_repr(&value)?),
            _ => return Err(invalid("a field of the format has an unknown conversion")),
        };
        match specification {
            "" => to_str(&value),
            nested if nested.contains(['{', '}']) => {
                let specification = self.write(nested, depth)?;
                write_as(&value, &plain_text(&specification))
            }
            specification => write_as(&value, specification),
        }
    }

    /// Looks up a name such as `0`, `user.name` or `list[2]`; an empty one takes the next argument.
    fn value(&mut self, name: &str) -> Result<Value, Error> {
        let (first, mut path) = split_while(name, |c| !matches!(c, '.' | '['));
        let at = if first.is_empty() { Ok(self.next) } else { first.parse::<usize>() };
        self.next += usize::from(first.is_empty());
        let missing = || invalid("a field of the format has no argument");
        let mut value = match at {
            Ok(at) => self.by_place.get(at).cloned().ok_or_else(missing)?,
            Err(_) => self.by_name.get(first).map_err(|_| missing())?,
        };
        while !path.is_empty() {
            if let Some(inner) = path.strip_prefix('[') {
                let (key, after) = inner.split_once(']').ok_or_else(missing)?;
                let key = key.parse::<usize>().map_or_else(|_| Value::from(key), Value::from);
                (value, path) = (value.get_item(&key)?, after);
            } else {
                let (key, after) = split_while(&path[1..], |c| !matches!(c, '.' | '['));
                (value, path) = (value.get_attr(key)?, after);
            }
        }
        Ok(value)
    }
}

/// Length of the field at the start of a text, brackets included.
fn field_len(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return Some(at + 1),
            '}' if depth == 0 => return None,
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Formats a value by a specification such as `>10` or `.2f`.
fn write_as(value: &Value, specification: &str) -> Result<String, Error> {
    for digits in specification.split(|c: char| !c.is_ascii_digit()) {
        number(digits)?;
    }
    let Some(text) = value.as_str() else {
        return match value.kind() {
            ValueKind::Bool | ValueKind::Number => format_number(
                FormatStyle::StrFormat,
                &format!("{{:{specification}}}"),
                std::slice::from_ref(value),
            )
            .and_then(as_text),
            kind => Err(invalid(format!("a value of type {kind} cannot be written that way"))),
        };
    };
    let is_align = |c: &char| matches!(c, '<' | '>' | '^');
    let mut chars = specification.chars();
    let (with, align, rest) = match (chars.next(), chars.next().filter(is_align)) {
        (Some(with), Some(align)) => (with, align, chars.as_str()),
        (Some(align), None) if is_align(&align) => (' ', align, &specification[1..]),
        _ => (' ', '<', specification),
    };
    // A zero before the width fills with zeros.
    let (with, rest) =
        rest.strip_prefix('0').map_or((with, rest), |rest| (if with == ' ' { '0' } else { with }, rest));
    let (width, rest) = split_while(rest, |c| c.is_ascii_digit());
    let precision = match rest.strip_suffix('s').unwrap_or(rest) {
        "" => None,
        rest => Some(
            rest.strip_prefix('.')
                .map(number)
                .transpose()?
                .flatten()
                .ok_or_else(|| invalid("a text cannot be written that way"))?,
        ),
    };
    Ok(padded(text, precision, number(width)?.unwrap_or(0), align, with))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_filled_as_in_python() {
        let percent = |format: &str, values: Value| {
            percent(&Value::from(format), &values)
                .map_or_else(|error| error.to_string(), |text| text.to_string())
        };
        let tuple = |values: &[Value]| Value::from(Tuple::from(values));
        assert_eq!(percent("%5s|%-4r|%.1s", tuple(&["é".into(), "a".into(), "bc".into()])), "    é|'a' |b");
        assert_eq!(percent("%d %x %.2f%%", tuple(&[3.9.into(), 255.into(), 1.into()])), "3 ff 1.00%");
        assert_eq!(percent("%(a)s %(b)03d", Value::from_pairs([("a", 1), ("b", 2)])), "1 002");
        assert_eq!(percent("x", Value::from(vec![1])), "x");
        for (format, values) in [("%s", tuple(&[])), ("%s", tuple(&[1.into(), 2.into()])), ("x", 1.into())] {
            assert!(percent(format, values).contains("argument"), "{format}");
        }
        for format in ["%", "%(a", "%(a)s", "%d", "%9999999d", "%*d", "%y"] {
            assert!(percent(format, "a".into()).contains("invalid operation"), "{format}");
        }
    }

    #[test]
    fn fields_are_filled_as_in_python() {
        let format = |format: &str, args: &[Value]| {
            format_method(format, args).map_or_else(|error| error.to_string(), |text| text.to_string())
        };
        assert_eq!(
            format("{{{}}} {!r} {:>3}|{:*^5}", &["a", "b", "é", "c"].map(Value::from)),
            "{a} 'b'   é|**c**"
        );
        assert_eq!(format("{1} {0:.1f} {0}", &[2.0.into(), Value::from(())]), "None 2.0 2.0");
        assert_eq!(format("{0[1]} {0[0].a}", &[vec![Value::from_pairs([("a", 1)]), 2.into()].into()]), "2 1");
        assert_eq!(format("{:{}}|{:05}", &["a".into(), 3.into(), "b".into()]), "a  |b0000");
        for wrong in ["{", "}", "{0", "{}{}", "{a}", "{!x}", "{:9999999}", "{:d}", "{:{:{}}}"] {
            assert!(format(wrong, &["a".into()]).contains("invalid operation"), "{wrong}");
        }
    }
}
