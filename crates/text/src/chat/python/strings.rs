//! String operations shared by filters and methods.

use std::collections::HashSet;

use crate::chat::origin::{has_marks, map_chars, plain};

/// True for white space as Python defines it.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1C}'..='\u{1F}')
}

pub(super) fn strip<'t>(text: &'t str, chars: Option<&str>, start: bool, end: bool) -> &'t str {
    let chars: Option<HashSet<char>> = chars.map(|chars| chars.chars().map(plain).collect());
    let goes = |c: char| chars.as_ref().map_or_else(|| is_space(c), |chars| chars.contains(&plain(c)));
    let text = if start { text.trim_start_matches(goes) } else { text };
    if end { text.trim_end_matches(goes) } else { text }
}

/// `str.upper`.
pub(super) fn upper(text: &str) -> String {
    if has_marks(text) { map_chars(text, char::to_uppercase) } else { text.to_uppercase() }
}

/// `str.lower`.
pub(super) fn lower(text: &str) -> String {
    if has_marks(text) { map_chars(text, char::to_lowercase) } else { text.to_lowercase() }
}

/// `str.capitalize`: the first letter in upper case, the others in lower case.
pub(super) fn capitalize(text: &str) -> String {
    let (first, rest) = text.split_at(text.chars().next().map_or(0, char::len_utf8));
    upper(first) + &lower(rest)
}

/// Padding for a text to a width in characters, at most [`MAX_WIDTH`].
pub(super) fn fill(text: &str, width: usize, with: char) -> String {
    let missing = width.min(MAX_WIDTH).saturating_sub(text.chars().count());
    std::iter::repeat_n(with, missing).collect()
}

/// Maximum width of padding: a larger one is an error of the template and would cost memory.
pub(super) const MAX_WIDTH: usize = 4096;

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

/// Section `text[start:stop]`, with the number of characters before it.
pub(super) fn section(text: &str, start: Option<i64>, stop: Option<i64>) -> (usize, &str) {
    if start.is_none() && stop.is_none() {
        return (0, text);
    }
    let len = text.chars().count();
    let (start, stop) = (place(start, len).unwrap_or(0), place(stop, len).unwrap_or(len));
    let byte = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
    (start, text.get(byte(start)..byte(stop)).unwrap_or_default())
}

/// Clamps a slice bound to `len` items; negative bounds count from the end.
fn place(bound: Option<i64>, len: usize) -> Option<usize> {
    let at = |bound: u64| usize::try_from(bound).unwrap_or(usize::MAX).min(len);
    bound.map(|bound| if bound < 0 { len - at(bound.unsigned_abs()) } else { at(bound.unsigned_abs()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_of_characters() {
        assert_eq!(section("äbc", Some(1), None), (1, "bc"));
        assert_eq!(section("äbc", Some(-3), Some(-2)), (0, "ä"));
        assert_eq!(section("äbc", Some(2), Some(1)), (2, ""));
        assert_eq!(section("äbc", Some(i64::MIN), Some(i64::MAX)), (0, "äbc"));
    }
}
