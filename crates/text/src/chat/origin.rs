//! Origin of a prompt's characters: template text and message text use different code points.
//!
//! Special tokens are recognized only in text that the template wrote. So that this survives every
//! transformation, each character carries its origin: template text (text between tags, string
//! literals, the texts of BOS and EOS, names of common roles) is rendered in planes 15 and 16 of
//! Unicode, one character for one ([`mark`]); message text stays as it is. Comparisons and searches
//! see [`plain`] characters. After rendering, [`Prompt`] maps everything back and records the
//! ranges of template text.
//!
//! White space and control characters have no marked form: templates strip and split at them, and
//! no special token consists of them alone. Characters of planes 15 and 16 in messages (private
//! use) are moved to planes 4 and 5 meanwhile ([`shelter`]), where Unicode has no characters.

use std::borrow::Cow;
use std::ops::Range;

use crate::error::{Error, Result};

/// Offset from a character to its marked form.
const MARK: u32 = 0xF_0000;

/// Last character with a marked form. Later ones are rare ideographs and tags.
const LAST_MARKED: u32 = 0x1_FFFF;

/// Offset by which characters of planes 15 and 16 are moved down.
const SHELTER: u32 = 0xB_0000;

/// Range to which characters of planes 15 and 16 are moved; no text has characters there.
const SHELTERED: Range<u32> = 0x4_0000..0x6_0000;

/// Roles whose names may be part of the template's special tokens, as in `<|user|>`. Every other
/// role is message text.
const ROLES: [&str; 12] = [
    "system",
    "user",
    "assistant",
    "tool",
    "developer",
    "function",
    "model",
    "ipython",
    "observation",
    "environment",
    "chatbot",
    "context",
];

/// First UTF-8 byte of all characters from U+C0000 on, thus of every marked character.
const FIRST_BYTE: u8 = 0xF3;

/// First UTF-8 byte of the characters from plane 4 on.
const PLANE_4_BYTE: u8 = 0xF1;

/// Marks a character as template text.
fn mark(c: char) -> char {
    match u32::from(c) {
        _ if c.is_whitespace() || c.is_control() => c,
        code @ ..=LAST_MARKED => char::from_u32(code + MARK).unwrap_or(c),
        _ => sheltered(c),
    }
}

/// Unmarks a character; unmarked ones stay.
pub(super) fn plain(c: char) -> char {
    match u32::from(c) {
        code @ MARK.. => char::from_u32(code - MARK).unwrap_or(c),
        _ => c,
    }
}

fn is_marked(c: char) -> bool {
    u32::from(c) >= MARK
}

fn sheltered(c: char) -> char {
    if is_marked(c) { char::from_u32(u32::from(c) - SHELTER).unwrap_or(c) } else { c }
}

/// Converts a rendered character to that of the prompt.
pub(super) fn restored(c: char) -> char {
    let code = u32::from(c);
    if SHELTERED.contains(&code) { char::from_u32(code + SHELTER).unwrap_or(c) } else { plain(c) }
}

/// True if a text may contain marked characters.
pub(super) fn has_marks(text: &str) -> bool {
    text.bytes().any(|byte| byte >= FIRST_BYTE)
}

/// Marks a text as template text.
pub(super) fn marked(text: &str) -> String {
    text.chars().map(mark).collect()
}

/// Unmarks a text, for comparisons.
pub(super) fn plain_text(text: &str) -> Cow<'_, str> {
    if has_marks(text) { Cow::Owned(text.chars().map(plain).collect()) } else { Cow::Borrowed(text) }
}

/// Prepares message text for the template: moves characters that would count as marked.
pub(super) fn shelter(text: &str) -> Cow<'_, str> {
    if has_marks(text) { Cow::Owned(text.chars().map(sheltered).collect()) } else { Cow::Borrowed(text) }
}

/// Converts rendered text to the text of the prompt.
pub(super) fn restore(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    // Characters below plane 4 are copied in runs.
    while let Some(at) = rest.bytes().position(|byte| byte >= PLANE_4_BYTE) {
        let (run, after) = rest.split_at(at);
        out.push_str(run);
        let mut chars = after.chars();
        out.extend(chars.next().map(restored));
        rest = chars.as_str();
    }
    out.push_str(rest);
    out
}

/// Prepares a message's role for the template.
pub(super) fn role(role: &str) -> Cow<'_, str> {
    if ROLES.contains(&role) { Cow::Owned(marked(role)) } else { shelter(role) }
}

/// Rejects a text with characters in the range that sheltered ones use.
pub(super) fn check(text: &str) -> Result<()> {
    if !text.bytes().any(|byte| byte >= PLANE_4_BYTE) {
        return Ok(());
    }
    match text.chars().find(|&c| SHELTERED.contains(&u32::from(c))) {
        Some(c) => Err(Error::UnassignedCharacter { code: u32::from(c) }),
        None => Ok(()),
    }
}

/// Maps the characters of a text of mixed origin; results keep the origin of their character.
pub(super) fn map_chars<I: Iterator<Item = char>>(text: &str, mut map: impl FnMut(char) -> I) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let mapped = map(plain(c));
        if is_marked(c) { out.extend(mapped.map(mark)) } else { out.extend(mapped) }
    }
    out
}

/// Converts offsets in a text's plain form to offsets in the text. Both have the same characters,
/// of different UTF-8 lengths.
pub(super) struct Places<'t> {
    text: std::str::Chars<'t>,
    /// Length of the text in bytes.
    len: usize,
    /// Offset in the plain form that corresponds to the start of the remaining text.
    plain_at: usize,
    /// True if the text equals its plain form.
    is_plain: bool,
}

impl<'t> Places<'t> {
    /// Returns the plain form of a text, and the converter of its offsets.
    pub(super) fn new(text: &'t str) -> (Cow<'t, str>, Self) {
        let plain = plain_text(text);
        let is_plain = matches!(plain, Cow::Borrowed(_));
        (plain, Self { text: text.chars(), len: text.len(), plain_at: 0, is_plain })
    }

    /// Converts the byte offset `at` of the plain form, a character boundary. Offsets of later
    /// calls must not be smaller.
    pub(super) fn of(&mut self, at: usize) -> usize {
        if self.is_plain {
            return at;
        }
        while self.plain_at < at {
            match self.text.next() {
                Some(c) => self.plain_at += plain(c).len_utf8(),
                None => break,
            }
        }
        self.len - self.text.as_str().len()
    }
}

/// A rendered prompt.
#[derive(Debug)]
pub(super) struct Prompt {
    /// Text to encode.
    pub(super) text: String,
    /// Byte ranges of template text; white space counts as either origin.
    pub(super) runs: Vec<Range<usize>>,
}

impl Prompt {
    pub(super) fn new(rendered: &str) -> Self {
        let mut text = String::with_capacity(rendered.len());
        let mut runs = Vec::new();
        // Possible start of a run; the flag is set once it has a marked character.
        let (mut start, mut is_run) = (0, false);
        for c in rendered.chars() {
            if is_marked(c) {
                is_run = true;
            } else if !(c.is_whitespace() || c.is_control()) {
                if std::mem::take(&mut is_run) {
                    runs.push(start..text.len());
                }
                start = text.len() + restored(c).len_utf8();
            }
            text.push(restored(c));
        }
        if is_run {
            runs.push(start..text.len());
        }
        Self { text, runs }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_origin_of_a_character_is_part_of_it() {
        assert_eq!(
            marked("a <é｜😀> \n\u{0}"),
            "\u{F0061} \u{F003C}\u{F00E9}\u{FFF5C}\u{10F600}\u{F003E} \n\u{0}"
        );
        assert_eq!(plain_text(&marked("a<é｜😀>")), "a<é｜😀>");
        assert!(matches!(plain_text("a<é｜😀>"), Cow::Borrowed(_)));
        assert_eq!(shelter("\u{F0061}\u{10F600}a"), "\u{40061}\u{5F600}a");
        assert_eq!(restore(&(marked("<") + "\u{40061}")), "<\u{F0061}");
        assert!(check("a\u{3FFFF}\u{F0000}\u{60000}").is_ok());
        assert!(matches!(check("a\u{40000}"), Err(Error::UnassignedCharacter { code: 0x40000 })));
    }

    #[test]
    fn runs_are_the_text_of_the_template() {
        let prompt = Prompt::new(&format!("{} a {}\n{}b c", marked("<|x|>"), marked("<"), marked("|")));
        assert_eq!(prompt.text, "<|x|> a <\n|b c");
        let runs: Vec<&str> = prompt.runs.iter().map(|run| &prompt.text[run.clone()]).collect();
        assert_eq!(runs, ["<|x|> ", " <\n|"]);
        assert!(Prompt::new("a b").runs.is_empty());
    }

    proptest! {
        #[test]
        fn texts_come_back(text in any::<String>()) {
            prop_assert_eq!(restore(&marked(&text)), if check(&text).is_ok() { text.clone() } else { restore(&marked(&text)) });
            if check(&text).is_ok() {
                prop_assert_eq!(restore(&shelter(&text)), text.clone());
            }
            // No character of a message counts as marked.
            prop_assert!(shelter(&text).chars().all(|c| !is_marked(c)));
            let (plain, mut places) = Places::new(&text);
            for (at, c) in plain.char_indices() {
                let place = places.of(at);
                prop_assert_eq!(super::plain(text[place..].chars().next().unwrap()), c);
            }
        }
    }
}
