//! Methods of values that the engine's Python layer lacks or implements differently from Python.

use std::ops::Range;

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Tuple, ValueKind, from_args},
};

use super::{
    arguments::Arguments,
    calls::refuse_stored,
    filters::{joined, replaced},
    format::format_method,
    plain::{checked, plain},
    strings::{capitalize, is_space, lines, lower, section, split_at_space, strip, upper},
    values::is_tuple,
};
use crate::chat::{
    bounds::{charge, charge_elements, work},
    origin::{Places, map_chars, plain_text},
};

/// Calls a method: those implemented here, else that of the engine's Python layer.
pub(in crate::chat) fn unknown_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    refuse_stored(args)?;
    for value in args {
        work(value.as_str().map_or(0, str::len))?;
    }
    if let Some(text) = value.as_str() {
        work(text.len())?;
        if let Some(result) = string_method(text, method, args) {
            return result.and_then(checked);
        }
        // The remaining methods inspect the class of characters.
        let text = Value::from(plain_text(text));
        return minijinja_contrib::pycompat::unknown_method_callback(state, &text, method, args);
    }
    match (value.kind(), method) {
        (ValueKind::Seq | ValueKind::Iterable, "index" | "count") => {
            let (item,): (&Value,) = from_args(args)?;
            let (list, item) = (plain(value.clone())?, plain(item.clone())?);
            if method == "count" {
                return Ok(Value::from(list.try_iter()?.filter(|other| *other == item).count()));
            }
            let at = list.try_iter()?.position(|other| other == item);
            at.map(Value::from).ok_or_else(|| not_found("the value is not in the list"))
        }
        (ValueKind::Map, "get") => {
            let (key, default): (&Value, Option<Value>) = from_args(args)?;
            let key = plain(key.clone())?;
            let found = value.as_object().and_then(|map| map.get_value(&key));
            Ok(found.or(default).unwrap_or_else(|| Value::from(())))
        }
        // Values are immutable, so a copy is the value itself.
        (ValueKind::Seq | ValueKind::Map, "copy") if !is_tuple(value) => {
            from_args(args).map(|()| value.clone())
        }
        _ => {
            let result = minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)?;
            checked(result)
        }
    }
}

fn not_found(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "replace" => {
            Arguments::new(args).and_then(|args| replaced(&Value::from(text), args)).map(Value::from)
        }
        "join" => from_args(args).and_then(|(items,): (Value,)| joined(items, text)).map(Value::from),
        "format" => format_method(text, args),
        "strip" => stripped(text, args, true, true),
        "lstrip" => stripped(text, args, true, false),
        "rstrip" => stripped(text, args, false, true),
        "split" => split(text, args, false),
        "rsplit" => split(text, args, true),
        "splitlines" => from_args(args)
            .map(|(keep,): (Option<bool>,)| lines(text, keep.unwrap_or(false)).into_iter().collect()),
        "lower" => from_args(args).map(|()| Value::from(lower(text))),
        "upper" => from_args(args).map(|()| Value::from(upper(text))),
        "capitalize" => from_args(args).map(|()| Value::from(capitalize(text))),
        "find" | "rfind" | "index" | "rindex" => position(&plain_text(text), method, args),
        "count" => from_args(args).map(|(part, start, stop): (&str, Option<i64>, Option<i64>)| {
            let (text, part) = (plain_text(text), plain_text(part));
            Value::from(section(&text, start, stop).1.matches(&*part).count())
        }),
        "startswith" => has_affix(&plain_text(text), args, |text, affix| text.starts_with(affix)),
        "endswith" => has_affix(&plain_text(text), args, |text, affix| text.ends_with(affix)),
        "isspace" => from_args(args).map(|()| Value::from(!text.is_empty() && text.chars().all(is_space))),
        "title" => from_args(args).map(|()| Value::from(title(text))),
        "removeprefix" => from_args(args).map(|(prefix,): (&str,)| {
            let (plain, mut places) = Places::new(text);
            let prefix = plain_text(prefix);
            Value::from(if plain.starts_with(&*prefix) { &text[places.of(prefix.len())..] } else { text })
        }),
        "removesuffix" => from_args(args).map(|(suffix,): (&str,)| {
            let (plain, mut places) = Places::new(text);
            let kept = plain.strip_suffix(&*plain_text(suffix)).map_or(plain.len(), str::len);
            Value::from(&text[..places.of(kept)])
        }),
        "partition" => from_args(args).map(|(by,): (&str,)| match cuts(text, by, 1, false).first() {
            Some(cut) => tuple([&text[..cut.start], &text[cut.clone()], &text[cut.end..]]),
            None => tuple([text, "", ""]),
        }),
        "rpartition" => from_args(args).map(|(by,): (&str,)| match cuts(text, by, 1, true).first() {
            Some(cut) => tuple([&text[..cut.start], &text[cut.clone()], &text[cut.end..]]),
            None => tuple(["", "", text]),
        }),
        _ => return None,
    })
}

/// Byte ranges of a separator in a text, at most `max`.
fn cuts(text: &str, separator: &str, max: usize, from_right: bool) -> Vec<Range<usize>> {
    let (plain, mut places) = Places::new(text);
    let separator = plain_text(separator);
    let mut found: Vec<usize> = if from_right {
        plain.rmatch_indices(&*separator).take(max).map(|(at, _)| at).collect()
    } else {
        plain.match_indices(&*separator).take(max).map(|(at, _)| at).collect()
    };
    if from_right {
        found.reverse();
    }
    let len = separator.len();
    found.into_iter().map(|at| places.of(at)..places.of(at + len)).collect()
}

/// Methods `startswith` and `endswith`: one affix or several, on the whole text or a section.
fn has_affix(text: &str, args: &[Value], has: impl Fn(&str, &str) -> bool) -> Result<Value, Error> {
    let (affix, start, stop): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
    let (_, text) = section(text, start, stop);
    if let Some(affix) = affix.as_str() {
        return Ok(Value::from(has(text, &plain_text(affix))));
    }
    let mut has_any = false;
    for affix in affix.try_iter()? {
        let affix = affix.as_str().ok_or_else(|| {
            let message = format!("a text starts or ends with texts only, not {}", affix.kind());
            Error::new(ErrorKind::InvalidOperation, message)
        })?;
        work(affix.len())?;
        has_any |= has(text, &plain_text(affix));
    }
    Ok(Value::from(has_any))
}

/// Methods `find`, `rfind`, `index` and `rindex`: position in characters.
fn position(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (part, start, stop): (&str, Option<i64>, Option<i64>) = from_args(args)?;
    let (before, section) = section(text, start, stop);
    let part = &*plain_text(part);
    let at = if method.starts_with('r') { section.rfind(part) } else { section.find(part) };
    match at {
        Some(at) => Ok(Value::from(before + section[..at].chars().count())),
        None if method.ends_with("find") => Ok(Value::from(-1)),
        None => Err(not_found("substring not found")),
    }
}

fn tuple(items: [&str; 3]) -> Value {
    Value::from(Tuple::from(items.map(Value::from)))
}

fn stripped(text: &str, args: &[Value], start: bool, end: bool) -> Result<Value, Error> {
    let (chars,): (Option<&str>,) = from_args(args)?;
    Ok(Value::from(strip(text, chars, start, end)))
}

/// Methods `split` and `rsplit`: at a separator or at runs of white space, at most `maxsplit`
/// times.
fn split(text: &str, args: &[Value], from_right: bool) -> Result<Value, Error> {
    let mut args = Arguments::new(args)?;
    let separator = args.value("sep")?.filter(|separator| !separator.is_none());
    let max = args.get::<i64>("maxsplit")?.and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX);
    args.finish()?;
    let separator = match separator.as_ref().map(|separator| separator.as_str()) {
        Some(Some("")) => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        Some(None) => return Err(Error::new(ErrorKind::InvalidOperation, "the separator must be a string")),
        Some(Some(separator)) => separator,
        None => {
            let mut parts = split_at_space(text, max, from_right);
            if from_right {
                parts.reverse();
            }
            return Ok(parts.into_iter().collect());
        }
    };
    let mut parts = Vec::new();
    let mut after = 0;
    for cut in cuts(text, separator, max, from_right) {
        parts.push(&text[after..cut.start]);
        after = cut.end;
    }
    parts.push(&text[after..]);
    charge_elements(parts.len())?;
    charge(text.len())?;
    Ok(parts.into_iter().collect())
}

/// Method `title`: first letter of every run of letters in upper case, the others in lower case.
fn title(text: &str) -> String {
    let mut in_word = false;
    map_chars(text, |c| {
        let (lower, upper) = (c.to_lowercase(), c.to_uppercase());
        let is_lower = std::mem::replace(&mut in_word, c.is_alphabetic());
        lower.take(if is_lower { usize::MAX } else { 0 }).chain(upper.take(if is_lower {
            0
        } else {
            usize::MAX
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::python::values::to_str;

    fn call(text: &str, method: &str, args: &[Value]) -> String {
        string_method(text, method, args).map_or_else(String::new, |result| {
            result.and_then(|value| to_str(&value)).unwrap_or_else(|error| error.to_string())
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
        assert_eq!(call("éab", "index", &[v("b")]), "2");
        assert_eq!(call("ab", "rindex", &[v("x")]), "invalid operation: substring not found");
        assert_eq!(call("foobar", "removeprefix", &[v("foo")]), "bar");
        assert_eq!(call("a=b=c", "partition", &[v("=")]), "('a', '=', 'b=c')");
    }
}
