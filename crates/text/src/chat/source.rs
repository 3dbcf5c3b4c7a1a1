//! Rewrites template syntax that the engine lacks and that cannot be added as a filter or function.
//!
//! * `{% generation %}` blocks, which transformers uses to mark training text, become blocks
//!   without effect.
//! * `\\U0001F600` in string literals becomes the character itself.
//! * The iterable of a `for` goes through the filter [`CHARACTERS`]: the engine gives no length for
//!   a loop over a string, but does for a list of its characters.
//! * `{% raw %}` before a line break becomes `{% raw +%}`: the engine drops the line break, as
//!   after other tags, but Jinja2 keeps it.

use std::borrow::Cow;

/// Name of the filter that converts a string to a list of characters; other values stay.
pub(super) const CHARACTERS: &str = "__characters";

/// Prefix of escapes in literals with eight hexadecimal digits.
const LONG_ESCAPE: &str = "\\U";

/// Rewrites the source. Line numbers stay the same.
pub(super) fn rewrite(source: &str) -> String {
    let mut out = String::with_capacity(source.len() + source.len() / 16);
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let len = if tag.starts_with("{%") {
            let len = statement_len(tag);
            let inner = tag[..len].strip_prefix("{%").and_then(|tag| tag.strip_suffix("%}"));
            match inner {
                Some(inner) if name_of(inner) == "raw" => {
                    let raw_len = raw_len(tag);
                    let content = &tag[len..raw_len.max(len)];
                    out.push_str(&tag[..len - "%}".len()]);
                    if content.starts_with(['\r', '\n']) && !inner.ends_with(['-', '+']) {
                        out.push('+');
                    }
                    out.push_str("%}");
                    out.push_str(content);
                    raw_len.max(len)
                }
                Some(inner) => {
                    out.push_str("{%");
                    rewrite_statement(inner, &mut out);
                    out.push_str("%}");
                    len
                }
                // Not closed: the engine reports the error.
                None => {
                    out.push_str(&tag[..len]);
                    len
                }
            }
        } else {
            let len = match tag.as_bytes().get(1) {
                Some(b'{') => expression_end(&tag[2..], "}}").map_or(tag.len(), |at| 2 + at + 2),
                Some(b'#') => tag.find("#}").map_or(tag.len(), |at| at + 2),
                _ => 1,
            };
            if tag.starts_with("{{") {
                out.push_str(&without_long_escapes(&tag[..len]));
            } else {
                out.push_str(&tag[..len]);
            }
            len
        };
        rest = &tag[len..];
    }
    out.push_str(rest);
    out
}

/// Length of a statement tag at the start of `tag`, all of it if it is not closed.
fn statement_len(tag: &str) -> usize {
    expression_end(&tag[2..], "%}").map_or(tag.len(), |at| 2 + at + 2)
}

/// Length of a raw block at the start of `tag`, with its end tag; all of it if it is not closed.
fn raw_len(tag: &str) -> usize {
    let mut at = statement_len(tag);
    while let Some(start) = tag[at..].find("{%") {
        let end = at + start;
        let name = tag[end + 2..].trim_start_matches(['-', '+']).trim_start();
        // Only possible end tags are parsed in full: in a text without one, each tag would be
        // searched for its end up to the end of the template.
        if name.starts_with("endraw") {
            return end + statement_len(&tag[end..]);
        }
        at = end + 2;
    }
    tag.len()
}

/// Keyword at the start of a statement.
fn name_of(inner: &str) -> &str {
    let inner = inner.trim_start_matches(['-', '+']).trim_start();
    &inner[..inner.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(inner.len())]
}

/// Offset of `end` in an expression, outside of string literals.
fn expression_end(expression: &str, end: &str) -> Option<usize> {
    let mut at = 0;
    while at < expression.len() {
        let rest = &expression[at..];
        if rest.starts_with(end) {
            return Some(at);
        }
        at += literal_or_char_len(rest);
    }
    None
}

/// Length of the string literal or the character at the start of a text that is not empty.
fn literal_or_char_len(text: &str) -> usize {
    let mut chars = text.char_indices();
    let Some((_, quote)) = chars.next() else { return 0 };
    if !matches!(quote, '"' | '\'') {
        return quote.len_utf8();
    }
    while let Some((at, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if c == quote {
            return at + 1;
        }
    }
    text.len()
}

/// Replaces [`LONG_ESCAPE`]s in the literals of an expression.
fn without_long_escapes(expression: &str) -> Cow<'_, str> {
    if !expression.contains(LONG_ESCAPE) {
        return Cow::Borrowed(expression);
    }
    let mut out = String::with_capacity(expression.len());
    let mut rest = expression;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let (escape, after) =
            rest[at..].split_at(rest[at + 1..].chars().next().map_or(1, |c| 1 + c.len_utf8()));
        let code = after.get(..8).filter(|_| escape == LONG_ESCAPE);
        match code.and_then(|code| u32::from_str_radix(code, 16).ok()).and_then(char::from_u32) {
            Some(c) => {
                // Quotes and line breaks must stay escapes.
                match u32::from(c) {
                    code @ ..=0xFFFF => out.push_str(&format!("\\u{code:04x}")),
                    _ => out.push(c),
                }
                rest = &after[8..];
            }
            None => {
                out.push_str(escape);
                rest = after;
            }
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

fn rewrite_statement(inner: &str, out: &mut String) {
    let inner = &*without_long_escapes(inner);
    let name = name_of(inner);
    let start = inner.find(name).unwrap_or(0);
    let (lead, body) = (&inner[..start], &inner[start + name.len()..]);
    match name {
        "generation" => out.extend([lead, "if true", body]),
        "endgeneration" => out.extend([lead, "endif", body]),
        "for" => match iterable(body) {
            Some((from, to)) => {
                let (targets, tail) = (&body[..from], &body[to..]);
                out.extend([lead, name, targets, "(", &body[from..to], ")|", CHARACTERS, " ", tail]);
            }
            None => out.push_str(inner),
        },
        _ => out.push_str(inner),
    }
}

/// Byte range of the iterable in the text after a `for`. It begins after the first `in` and ends
/// before an `if` or `recursive` outside of brackets, or at the end.
fn iterable(body: &str) -> Option<(usize, usize)> {
    let mut from = None;
    let mut depth = 0;
    let mut at = 0;
    while at < body.len() {
        let rest = &body[at..];
        let word = &rest[..rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())];
        if word.is_empty() {
            match rest.as_bytes()[0] {
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' | b'}' => depth -= 1,
                _ => {}
            }
            at += literal_or_char_len(rest);
            continue;
        }
        match (word, from) {
            ("in", None) => from = Some(at + word.len()),
            ("if" | "recursive", Some(from)) if depth == 0 => return Some((from, at)),
            _ => {}
        }
        at += word.len();
    }
    // The end may have a white-space control sign.
    let end = body.trim_end_matches(['-', '+']).len();
    from.filter(|&from| !body[from..end].trim().is_empty()).map(|from| (from, end))
}

#[cfg(test)]
mod tests {
    use super::rewrite;

    #[test]
    fn generation_blocks_do_nothing() {
        let source = "a {%- generation %} b {% endgeneration -%} c{% if x %}";
        assert_eq!(rewrite(source), "a {%- if true %} b {% endif -%} c{% if x %}");
    }

    #[test]
    fn iterables_go_through_the_filter() {
        let cases = [
            ("{% for a in b %}", "{% for a in( b )|__characters %}"),
            ("{%- for k, v in d.items() -%}", "{%- for k, v in( d.items() )|__characters -%}"),
            ("{% for a in b if a not in c %}", "{% for a in( b )|__characters if a not in c %}"),
            ("{% for a in (b if c else d) %}", "{% for a in( (b if c else d) )|__characters %}"),
            ("{% for a in ' if %}' recursive %}", "{% for a in( ' if %}' )|__characters recursive %}"),
            ("{% for a in [1, 'in'] -%}", "{% for a in( [1, 'in'] )|__characters -%}"),
        ];
        for (source, rewritten) in cases {
            assert_eq!(rewrite(source), rewritten);
        }
    }

    #[test]
    fn long_escapes_become_characters() {
        let cases = [
            (r"{{ '\U0001F600\U00000027' }}\U0001F600", r"{{ '😀\u0027' }}\U0001F600"),
            (r"{% set a = '\U000000e9' %}", r"{% set a = '\u00e9' %}"),
            (
                r"{{ '\\U0001F600\U0001F60\U99999999\U000é' }}",
                r"{{ '\\U0001F600\U0001F60\U99999999\U000é' }}",
            ),
        ];
        for (source, rewritten) in cases {
            assert_eq!(rewrite(source), rewritten);
        }
    }

    #[test]
    fn raw_blocks_keep_their_first_line_break() {
        for (source, rewritten) in [
            ("{% raw %}\n{% endraw %}\n", "{% raw +%}\n{% endraw %}\n"),
            ("{%-raw%}\r\nx{%endraw%}", "{%-raw+%}\r\nx{%endraw%}"),
            ("{% raw -%}\nx{% endraw %}", "{% raw -%}\nx{% endraw %}"),
            ("{% raw +%}\nx{% endraw %}", "{% raw +%}\nx{% endraw %}"),
            ("{% raw %} \nx{% endraw %}", "{% raw %} \nx{% endraw %}"),
            ("{% raw %}\n{% raw %}\n", "{% raw +%}\n{% raw %}\n"),
        ] {
            assert_eq!(rewrite(source), rewritten);
        }
    }

    #[test]
    fn other_text_stays() {
        for source in [
            "",
            "{",
            "{{ '{% for a in b %}' }}",
            "{# {% for a in b %} #}",
            "{% raw %}{% for a in b %}{% endraw %}x",
            "{% for a",
            "{% raw %}{% for a in b %}",
            "{{ a",
            "{# a",
            "{% set a = '%}' %}",
            "ä{ö}ü",
            "{% for %}",
            "{% for a in -%}",
        ] {
            assert_eq!(rewrite(source), source);
        }
    }
}
