//! Methods of values where the engine's own Python layer differs from Python or has nothing.

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Tuple, ValueKind, from_args},
};

use super::{
    Arguments,
    filters::{joined, replaced},
    format::format_method,
    is_printable, is_tuple,
    slices::section,
    words,
};
use crate::chat::bounds::charge;

/// What Python takes for white space.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1C}'..='\u{1F}')
}

pub(super) fn strip<'t>(text: &'t str, chars: Option<&str>, start: bool, end: bool) -> &'t str {
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
    match (value.kind(), method) {
        (ValueKind::Seq | ValueKind::Iterable, "index") => {
            let (item,): (&Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|other| other == *item);
            at.map(Value::from).ok_or_else(|| not_found("the value is not in the list"))
        }
        // Values do not change, so they are their copies.
        (ValueKind::Seq | ValueKind::Map, "copy") if !is_tuple(value) => {
            from_args(args).map(|()| value.clone())
        }
        (ValueKind::Number, "is_integer") => {
            let () = from_args(args)?;
            Ok(Value::from(value.is_integer() || f64::try_from(value.clone())?.fract() == 0.0))
        }
        (ValueKind::Number, "bit_length") if value.is_integer() => {
            let () = from_args(args)?;
            let magnitude = i128::try_from(value.clone())?.unsigned_abs();
            Ok(Value::from(u128::BITS - magnitude.leading_zeros()))
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
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
        "swapcase" => from_args(args).map(|()| Value::from(swap_case(text))),
        // Lower case but for this one letter, which is as good as all that models see.
        "casefold" => from_args(args).map(|()| Value::from(text.to_lowercase().replace('ß', "ss"))),
        "zfill" => from_args(args).map(|(width,): (usize,)| {
            let at = usize::from(text.starts_with(['-', '+']));
            Value::from(format!("{}{}{}", &text[..at], fill(text, width, '0'), &text[at..]))
        }),
        "ljust" | "rjust" | "center" => justify(text, method, args),
        "find" | "rfind" | "index" | "rindex" => position(text, method, args),
        "count" => from_args(args).map(|(part, start, stop): (&str, Option<i64>, Option<i64>)| {
            Value::from(section(text, start, stop).1.matches(part).count())
        }),
        "startswith" => has_affix(text, args, |text, affix| text.starts_with(affix)),
        "endswith" => has_affix(text, args, |text, affix| text.ends_with(affix)),
        "expandtabs" => expand_tabs(text, args),
        "isdecimal" => from_args(args).map(|()| Value::from(words::is_decimal(text))),
        "isidentifier" => from_args(args).map(|()| Value::from(words::is_identifier(text))),
        "isprintable" => from_args(args).map(|()| Value::from(text.chars().all(is_printable))),
        "istitle" => from_args(args).map(|()| Value::from(is_title(text))),
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
pub(super) fn fill(text: &str, width: usize, with: char) -> String {
    let missing = width.min(MAX_WIDTH).saturating_sub(text.chars().count());
    std::iter::repeat_n(with, missing).collect()
}

/// Widest field that is filled up: more is a mistake of the template, and would cost memory.
pub(super) const MAX_WIDTH: usize = 4096;

/// `str.center`.
pub(super) fn centered(text: &str, width: usize, with: char) -> String {
    let count = fill(text, width, with).chars().count();
    // Python puts the odd character to the left if the width is odd.
    around(text, width, with, count / 2 + (count & width & 1))
}

/// A text filled up to a width, with `left` characters before it at most.
fn around(text: &str, width: usize, with: char, left: usize) -> String {
    let filling = fill(text, width, with);
    let left = filling.char_indices().nth(left).map_or(filling.len(), |(at, _)| at);
    let (before, after) = filling.split_at(left);
    format!("{before}{text}{after}")
}

fn justify(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, with): (usize, Option<char>) = from_args(args)?;
    let with = with.unwrap_or(' ');
    Ok(Value::from(match method {
        "ljust" => around(text, width, with, 0),
        "rjust" => around(text, width, with, usize::MAX),
        _ => centered(text, width, with),
    }))
}

/// `startswith` and `endswith`: a text or several, in all of the text or a part.
fn has_affix(text: &str, args: &[Value], has: impl Fn(&str, &str) -> bool) -> Result<Value, Error> {
    let (affix, start, stop): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
    let (_, text) = section(text, start, stop);
    if let Some(affix) = affix.as_str() {
        return Ok(Value::from(has(text, affix)));
    }
    let mut has_any = false;
    for affix in affix.try_iter()? {
        let affix = affix.as_str().ok_or_else(|| {
            let message = format!("a text starts or ends with texts only, not {}", affix.kind());
            Error::new(ErrorKind::InvalidOperation, message)
        })?;
        has_any |= has(text, affix);
    }
    Ok(Value::from(has_any))
}

/// `str.expandtabs`.
fn expand_tabs(text: &str, args: &[Value]) -> Result<Value, Error> {
    let mut args = Arguments::new(args)?;
    let width =
        args.get::<i64>("tabsize")?.map_or(8, |width| usize::try_from(width).unwrap_or(0)).min(MAX_WIDTH);
    args.finish()?;
    charge(text.len() + text.matches('\t').count().saturating_mul(width))?;
    let mut out = String::with_capacity(text.len());
    let mut column = 0_usize;
    for c in text.chars() {
        match c {
            '\t' => {
                let spaces = column.checked_rem(width).map_or(0, |past| width - past);
                out.extend(std::iter::repeat_n(' ', spaces));
                column += spaces;
            }
            c => {
                out.push(c);
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    Ok(Value::from(out))
}

/// `str.istitle`: capitals follow no letter, small letters follow one.
fn is_title(text: &str) -> bool {
    let (mut has_letters, mut in_word) = (false, false);
    for c in text.chars() {
        let is_cased = c.is_uppercase() || c.is_lowercase();
        if is_cased && c.is_uppercase() == in_word {
            return false;
        }
        has_letters |= is_cased;
        in_word = is_cased;
    }
    has_letters
}

fn swap_case(text: &str) -> String {
    let swap =
        |c: char| if c.is_uppercase() { c.to_lowercase().to_string() } else { c.to_uppercase().to_string() };
    text.chars().map(swap).collect()
}

/// `find`, `rfind`, `index` and `rindex`: the place of a text, in characters.
fn position(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (part, start, stop): (&str, Option<i64>, Option<i64>) = from_args(args)?;
    let (before, section) = section(text, start, stop);
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

/// `split` and `rsplit`: at a separator, or at runs of white space; at most `maxsplit` times.
fn split(text: &str, args: &[Value], from_right: bool) -> Result<Value, Error> {
    let mut args = Arguments::new(args)?;
    let separator = args.value("sep")?.filter(|separator| !separator.is_none());
    let max = args.get::<i64>("maxsplit")?.and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX);
    args.finish()?;
    let limit = max.saturating_add(1);
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
pub(super) fn split_at_space(text: &str, max: usize, from_right: bool) -> Vec<&str> {
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
    use crate::chat::python::to_str;

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
