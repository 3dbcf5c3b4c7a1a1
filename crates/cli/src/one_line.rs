//! Text of errors that stays on one line.

/// The error and its causes on one line: `what: why: why`.
///
/// Repetition between an error and its source is left out; line breaks and control characters (file
/// contents may appear in messages) are escaped.
pub(crate) fn one_line(error: &dyn std::error::Error) -> String {
    let mut parts = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        match parts.last_mut() {
            Some(last) if last.contains(&text) => {}
            Some(last) if text.starts_with(last.as_str()) => *last = text,
            _ => parts.push(text),
        }
        cause = error.source();
    }
    printable(&parts.join(": "))
}

/// Escapes control characters and bidirectional formatting characters. The text stays on one line,
/// reads in its order, and cannot control a terminal.
pub(crate) fn printable(text: &str) -> String {
    let reorders = |c| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || reorders(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_follow_on_the_same_line() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot read a\nb.txt")]
        struct ReadFile(#[source] std::io::Error);
        let error = ReadFile(std::io::Error::new(std::io::ErrorKind::NotFound, "gone\r\nfor good"));
        assert_eq!(one_line(&error), r"cannot read a\nb.txt: gone\r\nfor good");
        assert_eq!(printable("a\u{202e}fugg.\u{9b}"), r"a\u{202e}fugg.\u{9b}");
    }

    #[test]
    fn what_is_said_twice_is_written_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot open x")]
        struct Context(#[source] Cause);
        #[derive(Debug, thiserror::Error)]
        #[error("cannot open x: gone")]
        struct Cause;
        assert_eq!(one_line(&Context(Cause)), "cannot open x: gone");
    }

    #[test]
    fn repeated_causes_are_said_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer: inner; do this")]
        struct Hint(#[source] Inner);
        assert_eq!(one_line(&Hint(Inner)), "outer: inner; do this");
        #[derive(Debug, thiserror::Error)]
        #[error("outer: inner")]
        struct Outer(#[source] Inner);
        #[derive(Debug, thiserror::Error)]
        #[error("inner")]
        struct Inner;
        assert_eq!(one_line(&Outer(Inner)), "outer: inner");
    }
}
