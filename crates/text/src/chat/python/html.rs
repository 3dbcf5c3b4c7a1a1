//! Filters for HTML and addresses.

use minijinja::{
    Error, ErrorKind, Value,
    value::{Rest, ValueKind, ValueOrKwargs},
};

use super::{Arguments, methods::split_at_space, pairs, to_str};
use crate::chat::bounds::charge;

/// The filters `e` and `escape`.
pub(super) fn escape(value: &Value) -> Result<Value, Error> {
    if value.is_safe() { Ok(value.clone()) } else { force_escape(value) }
}

/// The filter `forceescape`.
pub(super) fn force_escape(value: &Value) -> Result<Value, Error> {
    Ok(Value::from_safe_string(escaped(&to_str(value)?)))
}

/// `markupsafe.escape`.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

/// The filter `xmlattr`: a mapping as attributes.
pub(super) fn xmlattr(value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let mut args = Arguments::of(args)?;
    let has_space = args.flag("autospace", true)?;
    args.finish()?;
    let mut out = String::new();
    for (key, value) in pairs(value).ok_or_else(|| not_iterable(value))? {
        if value.is_none() || value.is_undefined() {
            continue;
        }
        let key = to_str(&key)?;
        if key.contains(|c: char| c.is_ascii_whitespace() || matches!(c, '/' | '>' | '=' | '\u{b}')) {
            let message = "invalid character in the name of an attribute";
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        let value = escape(&value)?;
        let attribute = format!(" {}=\"{}\"", escaped(&key), value.as_str().unwrap_or_default());
        charge(attribute.len())?;
        out.push_str(&attribute);
    }
    Ok(if has_space { out } else { out.trim_start().to_owned() })
}

fn not_iterable(value: &Value) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a value of type {} has no items", value.kind()))
}

/// The filter `urlencode`: a text for a path, or pairs for a query.
pub(super) fn urlencode(value: &Value) -> Result<String, Error> {
    let pairs = match value.kind() {
        ValueKind::Map => pairs(value).ok_or_else(|| not_iterable(value))?,
        ValueKind::Seq | ValueKind::Iterable => {
            let pair = |item: Value| match item.try_iter()?.collect::<Vec<_>>().as_slice() {
                [key, value] => Ok((key.clone(), value.clone())),
                _ => Err(Error::new(ErrorKind::InvalidOperation, "urlencode takes a text or pairs")),
            };
            value.try_iter()?.map(pair).collect::<Result<_, _>>()?
        }
        _ => return quoted(&to_str(value)?, "/"),
    };
    let quoted = |value: &Value| Ok::<_, Error>(quoted(&to_str(value)?, " ")?.replace(' ', "+"));
    let pairs = pairs.iter().map(|(key, value)| Ok(format!("{}={}", quoted(key)?, quoted(value)?)));
    Ok(pairs.collect::<Result<Vec<_>, Error>>()?.join("&"))
}

/// A text with all characters but letters, digits, four marks and those in `safe` as `%XX`.
fn quoted(text: &str, safe: &str) -> Result<String, Error> {
    charge(text.len().saturating_mul("%XX".len()))?;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let c = char::from(byte);
        if c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '~') || safe.contains(c) {
            out.push(c);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    Ok(out)
}

/// The filter `striptags`: a text without tags and comments, entities as their characters, white space as single spaces.
pub(super) fn striptags(value: &Value) -> Result<String, Error> {
    let text = to_str(value)?;
    let mut kept = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some((before, tag)) = rest.find('<').map(|at| rest.split_at(at)) {
        let end = match tag.strip_prefix("<!--") {
            Some(comment) => comment.find("-->").map(|end| end + "<!---->".len()),
            None => tag.find('>').map(|end| end + 1),
        };
        let Some(end) = end else { break };
        kept.push_str(before);
        rest = &tag[end..];
    }
    kept.push_str(rest);
    let words = split_at_space(&kept, usize::MAX, false);
    Ok(unescaped(&words.join(" ")))
}

/// A text with entities as their characters: numbers, and the names that escaping writes.
fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        let (c, len) = entity(&rest[at..]).unwrap_or(('&', 1));
        out.push(c);
        rest = &rest[at + len..];
    }
    out.push_str(rest);
    out
}

/// The character of an entity at the start of a text, and how long the entity is.
fn entity(text: &str) -> Option<(char, usize)> {
    let names =
        [("&amp", '&'), ("&lt", '<'), ("&gt", '>'), ("&quot", '"'), ("&apos;", '\''), ("&nbsp", '\u{a0}')];
    let named = names.into_iter().find(|(name, _)| text.starts_with(name)).map(|(name, c)| (c, name.len()));
    let (c, len) = match text.strip_prefix("&#") {
        Some(number) => {
            let (radix, start) = if number.starts_with(['x', 'X']) { (16, 1) } else { (10, 0) };
            let digits = &number[start..];
            let digits = &digits[..digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len())];
            let c = char::from_u32(u32::from_str_radix(digits, radix).ok()?)?;
            (c, "&#".len() + start + digits.len())
        }
        None => named?,
    };
    Some((c, len + usize::from(text[len..].starts_with(';'))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_stripped() {
        let strip = |text: &str| striptags(&Value::from(text)).unwrap_or_else(|error| error.to_string());
        assert_eq!(strip(" <b>a</b>\n\n<!-- <i> -->b &lt;c&#62; &#x27;&amp &x; &#; "), "a b <c> '& &x; &#;");
        assert_eq!(strip("a < b <c"), "a < b <c");
        assert_eq!(strip("a<b"), "a<b");
        assert_eq!(strip("<!--a>b"), "<!--a>b");
    }
}
