//! Methods of strings, and the filter `trim`, where the engine's own Python layer differs from Python
//! or has nothing.

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Kwargs, Rest, StringInput, Tuple, ValueKind, ValueOrKwargs, from_args},
};

use super::to_str;
use crate::chat::bounds::charge;

/// What Python takes for white space.
fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1C}'..='\u{1F}')
}

/// The filter `trim`.
pub(in crate::chat) fn trim(value: &Value, chars: Option<&str>) -> Result<String, Error> {
    Ok(strip(&to_str(value)?, chars, true, true).to_owned())
}

/// What a `for` loop goes through: the characters of a string as a list, other values as they are. `text_bytes` is what a
/// pass of the loop may write beside values.
pub(in crate::chat) fn characters(value: Value, text_bytes: usize) -> Result<Value, Error> {
    let items = match value.as_str() {
        Some(text) => text.chars().map(Value::from).collect(),
        // The engine takes it for an empty list; in Python it is an error, which templates rely on.
        None if value.is_none() => {
            return Err(Error::new(ErrorKind::InvalidOperation, "'NoneType' object is not iterable"));
        }
        None if value.len().is_none() && !value.is_undefined() => value.try_iter()?.collect(),
        None => value,
    };
    let passes = items.len().unwrap_or(0);
    charge(passes.saturating_mul(text_bytes + size_of::<Value>()))?;
    Ok(items)
}

/// The filter and the method `replace`.
pub(in crate::chat) fn replace(
    value: &Value,
    from: &str,
    to: &str,
    count: Option<usize>,
) -> Result<String, Error> {
    let text = to_str(value)?;
    let found = text.matches(from).count().min(count.unwrap_or(usize::MAX));
    charge(text.len() + found.saturating_mul(to.len()))?;
    Ok(count.map_or_else(|| text.replace(from, to), |count| text.replacen(from, to, count)))
}

/// The filter `join`.
pub(in crate::chat) fn join(
    state: &mut State,
    value: &Value,
    joiner: Option<StringInput<'_>>,
    attribute: Option<&str>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    charge_joined(value, joiner.as_ref().map_or("", |joiner| joiner.as_str()))?;
    minijinja::filters::join(state, value, joiner, attribute, kwargs)
}

/// Counts what a list joined with a text between its items will be.
fn charge_joined(items: &Value, between: &str) -> Result<(), Error> {
    if items.as_str().is_none() {
        for item in items.try_iter()? {
            charge(between.len() + to_str(&item)?.len())?;
        }
    }
    Ok(())
}

/// The filter `format`.
pub(in crate::chat) fn format(
    state: &mut State,
    value: &Value,
    args: Rest<ValueOrKwargs>,
) -> Result<Value, Error> {
    let longest = args.iter().map(|arg| arg.as_str().map_or(0, str::len)).max();
    check_format(value.as_str().unwrap_or_default(), '%', longest.unwrap_or(0))?;
    minijinja::filters::format(state, value, args)
}

/// Refuses a format with a width or precision beyond [`MAX_WIDTH`], or one that comes from an argument; counts what it will
/// make if each place that begins with `mark` takes the longest argument.
fn check_format(format: &str, mark: char, longest: usize) -> Result<(), Error> {
    charge(format.len() + format.matches(mark).count().saturating_mul(longest.max(MAX_WIDTH)))?;
    let is_wide =
        |number: &str| number.parse::<usize>().map_or(!number.is_empty(), |width| width > MAX_WIDTH);
    if format.contains('*') || format.split(|c: char| !c.is_ascii_digit()).any(is_wide) {
        return Err(Error::new(ErrorKind::InvalidOperation, "the format has a width that is too large"));
    }
    Ok(())
}

/// The filter `batch`.
pub(in crate::chat) fn batch(
    state: &State,
    value: Value,
    count: usize,
    fill: Option<Value>,
) -> Result<Value, Error> {
    charge_elements(count)?;
    minijinja::filters::batch(state, value, count, fill)
}

/// The filter `slice`.
pub(in crate::chat) fn slice(
    state: &State,
    value: Value,
    count: usize,
    fill: Option<Value>,
) -> Result<Value, Error> {
    charge_elements(count)?;
    minijinja::filters::slice(state, value, count, fill)
}

fn charge_elements(count: usize) -> Result<(), Error> {
    charge(count.saturating_mul(size_of::<Value>()))
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
        "replace" => from_args(args).and_then(|(from, to, count): (&str, &str, Option<i64>)| {
            // A negative count is none.
            let count = count.and_then(|count| usize::try_from(count).ok());
            replace(&Value::from(text), from, to, count).map(Value::from)
        }),
        "join" => from_args(args).and_then(|(items,): (&Value,)| joined(text, items)),
        "format" => {
            let longest = args.iter().map(|arg| arg.as_str().map_or(0, str::len)).max();
            match check_format(text, '{', longest.unwrap_or(0)) {
                Ok(()) => return None,
                Err(error) => Err(error),
            }
        }
        "strip" => stripped(text, args, true, true),
        "lstrip" => stripped(text, args, true, false),
        "rstrip" => stripped(text, args, false, true),
        "split" => split(text, args, false),
        "rsplit" => split(text, args, true),
        "splitlines" => from_args(args)
            .map(|(keep,): (Option<bool>,)| lines(text, keep.unwrap_or(false)).into_iter().collect()),
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

/// The method `join`.
fn joined(between: &str, items: &Value) -> Result<Value, Error> {
    charge_joined(items, between)?;
    let items: Vec<String> = items.try_iter()?.map(|item| to_str(&item)).collect::<Result<_, _>>()?;
    Ok(Value::from(items.join(between)))
}

/// What fills a text up to a width in characters. A width beyond [`MAX_WIDTH`] counts as that.
fn fill(text: &str, width: usize, with: char) -> String {
    let missing = width.min(MAX_WIDTH).saturating_sub(text.chars().count());
    std::iter::repeat_n(with, missing).collect()
}

/// Widest field that is filled up: more is a mistake of the template, and would cost memory.
pub(super) const MAX_WIDTH: usize = 4096;

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

/// `str.splitlines`.
pub(super) fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
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
    lines
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
