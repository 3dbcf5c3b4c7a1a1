//! Lexer for Rust source, as far as `tidy` needs it: separates comments, strings and code.

/// One token and the line it begins on, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) line: usize,
    pub(super) kind: Kind<'a>,
}

/// Kinds of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind<'a> {
    /// A keyword or a name, raw ones without `r#`.
    Word(&'a str),
    /// Any other character; `::` is two tokens.
    Mark(char),
    /// A string, a character, a number or a lifetime.
    Literal,
    /// A comment with its slashes; doc comments too. A block comment is one token.
    Comment(&'a str),
}

/// Tokenizes `source` without white space.
pub(super) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let (mut rest, mut line) = (source, 1);
    while let Some(first) = rest.chars().next() {
        let (length, kind) = next(rest, first);
        if let Some(kind) = kind {
            tokens.push(Token { line, kind });
        }
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    tokens
}

/// Length in bytes and kind of the first token; `None` for white space.
fn next(text: &str, first: char) -> (usize, Option<Kind<'_>>) {
    if first.is_whitespace() {
        return (first.len_utf8(), None);
    }
    if text.starts_with("//") {
        let length = text.find('\n').unwrap_or(text.len());
        return (length, Some(Kind::Comment(&text[..length])));
    }
    if text.starts_with("/*") {
        let length = block_comment(text);
        return (length, Some(Kind::Comment(&text[..length])));
    }
    if let Some(length) = string(text) {
        return (length, Some(Kind::Literal));
    }
    if first == '\'' {
        return (character_or_lifetime(text), Some(Kind::Literal));
    }
    if first.is_ascii_digit() {
        return (word_length(text), Some(Kind::Literal));
    }
    let raw = if text.starts_with("r#") { 2 } else { 0 };
    match word_length(&text[raw..]) {
        0 => (first.len_utf8(), Some(Kind::Mark(first))),
        length => (raw + length, Some(Kind::Word(&text[raw..raw + length]))),
    }
}

fn word_length(text: &str) -> usize {
    text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())
}

/// Block comments nest.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of a string literal with its prefix (`b`, `c`, `r` and hashes), if `text` begins with
/// one.
fn string(text: &str) -> Option<usize> {
    let prefix = text.find(|c: char| !matches!(c, 'b' | 'c' | 'r')).filter(|n| *n <= 2)?;
    let is_raw = text[..prefix].contains('r');
    let hashes = if is_raw { text[prefix..].find(|c| c != '#')? } else { 0 };
    let open = prefix + hashes;
    if !text[open..].starts_with('"') {
        return None;
    }
    let body = &text[open + 1..];
    let inside = if is_raw {
        let close = format!("\"{}", "#".repeat(hashes));
        body.find(&close).map(|end| end + close.len())
    } else {
        let mut escaped = false;
        let mut ends = |c: char| {
            let end = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            end
        };
        body.find(&mut ends).map(|end| end + 1)
    };
    Some(inside.map_or(text.len(), |length| open + 1 + length))
}

/// `'x'` and `'\n'` are characters, `'a` is a lifetime.
fn character_or_lifetime(text: &str) -> usize {
    let mut characters = text.char_indices().skip(1);
    match (characters.next(), characters.next()) {
        (Some((_, '\\')), Some((escaped, _))) => {
            let from = escaped + 1;
            text[from..].find('\'').map_or(text.len(), |end| from + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1 + word_length(&text[1..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_not_code() {
        let source =
            "fn a<'x>() { // fn b\n  let s = \"fn c\\\" {\"; /* fn /* d */ } */ let r = r#\"\"fn\"#;\n}";
        let words: Vec<(usize, &str)> = tokens(source)
            .iter()
            .filter_map(|token| match token.kind {
                Kind::Word(word) => Some((token.line, word)),
                _ => None,
            })
            .collect();
        assert_eq!(words, [(1, "fn"), (1, "a"), (2, "let"), (2, "s"), (2, "let"), (2, "r")]);
        let marks: String = tokens(source)
            .iter()
            .filter_map(|token| match token.kind {
                Kind::Mark(mark) => Some(mark),
                _ => None,
            })
            .collect();
        assert_eq!(marks, "<>(){=;=;}");
    }

    #[test]
    fn characters_are_told_from_lifetimes() {
        for (source, literals) in
            [("'a' 'b", 2), ("'\\'' '{'", 2), ("b'x'", 1), ("b\"{\" c\"}\"", 2), ("1_u8", 1)]
        {
            let found = tokens(source).iter().filter(|token| token.kind == Kind::Literal).count();
            assert_eq!(found, literals, "{source}");
        }
    }
}
