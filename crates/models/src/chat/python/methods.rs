//! Methods of strings, and the filter `trim`, where the engine's own Python layer differs from Python
//! or has nothing.

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Kwargs, Tuple, ValueKind, from_args},
};

use super::to_str;

/// What Python takes for white space.
fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1C}'..='\u{1F}')
}

/// The filter `trim`.
pub(in crate::chat) fn trim(value: &Value, chars: Option<&str>) -> String {
    strip(&to_str(value), chars, true, true).to_owned()
}

/// What a `for` loop goes through: the characters of a string as a list, other values as they are.
pub(in crate::chat) fn characters(value: Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) => Ok(text.chars().map(Value::from).collect()),
        // The engine takes it for an empty list; in Python it is an error, which templates rely on.
        None if value.is_none() => {
            Err(Error::new(ErrorKind::InvalidOperation, "'NoneType' object is not iterable"))
        }
        None => Ok(value),
    }
}

/// The test `iterable`.
pub(in crate::chat) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// The test `sequence`: everything with a length and items, so mappings and strings too.
pub(in crate::chat) fn is_sequence(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Undefined | ValueKind::Seq | ValueKind::Map | ValueKind::String => true,
        // Slices and sums of lists, but not generators.
        ValueKind::Iterable => value.len().is_some(),
        _ => false,
    }
}

fn strip<'t>(text: &'t str, chars: Option<&str>, start: bool, end: bool) -> &'t str {
    let goes = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if start { text.trim_start_matches(goes) } else { text };
    if end { text.trim_end_matches(goes) } else { text }
}

/// Methods that differ from Python's, or are absent, in the engine's own Python layer; the rest goes there.
pub(in crate::chat) fn unknown_method(
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
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) && method == "index" {
        let (item,): (&Value,) = from_args(args)?;
        return match value.try_iter()?.position(|other| other == *item) {
            Some(at) => Ok(Value::from(at)),
            None => Err(Error::new(ErrorKind::InvalidOperation, "the value is not in the list")),
        };
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
        "splitlines" => {
            from_args(args).map(|(keep,): (Option<bool>,)| split_lines(text, keep.unwrap_or(false)))
        }
        "swapcase" => from_args(args).map(|()| Value::from(swap_case(text))),
        // Lower case but for this one letter, which is as good as all that models see.
        "casefold" => from_args(args).map(|()| Value::from(text.to_lowercase().replace('ß', "ss"))),
        "zfill" => from_args(args).map(|(width,): (usize,)| {
            let at = usize::from(text.starts_with(['-', '+']));
            Value::from(format!("{}{}{}", &text[..at], fill(text, width, '0'), &text[at..]))
        }),
        "ljust" | "rjust" | "center" => justify(text, method, args),
        "index" => from_args(args).and_then(|(part,): (&str,)| position(text.find(part), text)),
        "rindex" => from_args(args).and_then(|(part,): (&str,)| position(text.rfind(part), text)),
        "isspace" => from_args(args).map(|()| Value::from(!text.is_empty() && text.chars().all(is_space))),
        "title" => from_args(args).map(|()| Value::from(title(text))),
        "removeprefix" => {
            from_args(args).map(|(prefix,): (&str,)| Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            from_args(args).map(|(suffix,): (&str,)| Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" => from_args(args).map(|(by,): (&str,)| match text.split_once(by) {
            Some((before, after)) => tuple([before, by, after]),
            None => tuple([text, "", ""]),
        }),
        "rpartition" => from_args(args).map(|(by,): (&str,)| match text.rsplit_once(by) {
            Some((before, after)) => tuple([before, by, after]),
            None => tuple(["", "", text]),
        }),
        _ => return None,
    })
}

/// What fills a text up to a width in characters. A width beyond [`MAX_WIDTH`] counts as that.
fn fill(text: &str, width: usize, with: char) -> String {
    let missing = width.min(MAX_WIDTH).saturating_sub(text.chars().count());
    std::iter::repeat_n(with, missing).collect()
}

/// Widest field that is filled up: more is a mistake of the template, and would cost memory.
const MAX_WIDTH: usize = 4096;

fn justify(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, with): (usize, Option<char>) = from_args(args)?;
    let filling = fill(text, width, with.unwrap_or(' '));
    let count = filling.chars().count();
    // Python puts the odd character to the left if the width is odd.
    let left = match method {
        "ljust" => 0,
        "rjust" => count,
        _ => count / 2 + (count & width & 1),
    };
    let (before, after) =
        filling.split_at(filling.char_indices().nth(left).map_or(filling.len(), |(at, _)| at));
    Ok(Value::from(format!("{before}{text}{after}")))
}

fn swap_case(text: &str) -> String {
    let swap =
        |c: char| if c.is_uppercase() { c.to_lowercase().to_string() } else { c.to_uppercase().to_string() };
    text.chars().map(swap).collect()
}

/// A place in a text, in characters.
fn position(at: Option<usize>, text: &str) -> Result<Value, Error> {
    match at {
        Some(at) => Ok(Value::from(text[..at].chars().count())),
        None => Err(Error::new(ErrorKind::InvalidOperation, "substring not found")),
    }
}

fn tuple(items: [&str; 3]) -> Value {
    Value::from(Tuple::from(items.map(Value::from)))
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
            let start =
                rest.rfind(is_space).map_or(0, |at| at + rest[at..].chars().next().map_or(1, char::len_utf8));
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
        matches!(
            c,
            '\n' | '\r' | '\u{B}' | '\u{C}' | '\u{1C}'..='\u{1E}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
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
        assert_eq!(call("Ab 1", "swapcase", &[]), "aB 1");
        assert_eq!(call("-5", "zfill", &[Value::from(4)]), "-005");
        assert_eq!(call("ab", "ljust", &[Value::from(4), v(".")]), "ab..");
        assert_eq!(call("é", "rjust", &[Value::from(3)]), "  é");
        assert_eq!(call("ab", "center", &[Value::from(5)]), "  ab ");
        assert_eq!(call("abc", "center", &[Value::from(6)]), " abc  ");
        assert_eq!(call("éab", "index", &[v("b")]), "2");
        assert_eq!(call("ab", "rindex", &[v("x")]), "invalid operation: substring not found");
        assert_eq!(call("foobar", "removeprefix", &[v("foo")]), "bar");
        assert_eq!(call("a=b=c", "partition", &[v("=")]), "('a', '=', 'b=c')");
    }
}
