//! Origin of the characters of a prompt: those of the template are told from those of messages by
//! their code points.
//!
//! Special tokens are recognized only in text that the template wrote. So that this survives every
//! transformation, the origin is part of each character: the text of a template (what stands
//! between its tags, its string literals, the texts of BOS and EOS, and the names of common roles)
//! is rendered in planes 15 and 16 of Unicode, one character for one ([`mark`]); the text of
//! messages stays as it is. What compares texts or searches in them compares [`plain`] characters.
//! After rendering, [`Prompt`] maps everything back and says where the template's text is.
//!
//! White space and control characters are alike in both: templates strip and split at them, and no
//! special token consists of them alone. Characters of planes 15 and 16 that messages have
//! themselves (private use) are kept in planes 4 and 5 meanwhile ([`shelter`]), where Unicode has
//! no characters.

use std::borrow::Cow;
use std::ops::Range;

use crate::error::{Error, Result};

/// Distance of a template's character from the one that it stands for.
const MARK: u32 = 0xF_0000;

/// Characters up to here have a marked form. Later ones are rare ideographs and tags.
const LAST_MARKED: u32 = 0x1_FFFF;

/// Distance of a character of planes 15 and 16 from where it is kept.
const SHELTER: u32 = 0xB_0000;

/// Range to which characters of planes 15 and 16 are moved; no text has characters there.
const SHELTERED: Range<u32> = 0x4_0000..0x6_0000;

/// Roles whose names may be a part of the template's markers, as in `<|user|>`. Every other role is
/// text of the message.
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

/// The first byte of UTF-8 from U+C0000 on, so of every marked character.
const FIRST_BYTE: u8 = 0xF3;

/// The first byte of UTF-8 from plane 4 on.
const PLANE_4_BYTE: u8 = 0xF1;

/// The template's form of a character.
fn mark(c: char) -> char {
    match u32::from(c) {
        _ if c.is_whitespace() || c.is_control() => c,
        code @ ..=LAST_MARKED => char::from_u32(code + MARK).unwrap_or(c),
        _ => sheltered(c),
    }
}

/// The character that a template's character stands for; others as they are.
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

/// The character that a prompt has for one that was rendered.
pub(super) fn restored(c: char) -> char {
    let code = u32::from(c);
    if SHELTERED.contains(&code) { char::from_u32(code + SHELTER).unwrap_or(c) } else { plain(c) }
}

/// True if a text may hold characters of the template.
pub(super) fn has_marks(text: &str) -> bool {
    text.bytes().any(|byte| byte >= FIRST_BYTE)
}

/// A text as the template's own.
pub(super) fn marked(text: &str) -> String {
    text.chars().map(mark).collect()
}

/// A text without its origin, as comparisons see it.
pub(super) fn plain_text(text: &str) -> Cow<'_, str> {
    if has_marks(text) { Cow::Owned(text.chars().map(plain).collect()) } else { Cow::Borrowed(text) }
}

/// A text of messages as templates get it.
pub(super) fn shelter(text: &str) -> Cow<'_, str> {
    if has_marks(text) { Cow::Owned(text.chars().map(sheltered).collect()) } else { Cow::Borrowed(text) }
}

/// A rendered text as people read it.
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

/// The role of a message as templates get it.
pub(super) fn role(role: &str) -> Cow<'_, str> {
    if ROLES.contains(&role) { Cow::Owned(marked(role)) } else { shelter(role) }
}

/// Refuses a text with characters where those of planes 15 and 16 are kept.
pub(super) fn check(text: &str) -> Result<()> {
    if !text.bytes().any(|byte| byte >= PLANE_4_BYTE) {
        return Ok(());
    }
    match text.chars().find(|&c| SHELTERED.contains(&u32::from(c))) {
        Some(c) => Err(Error::UnassignedCharacter { code: u32::from(c) }),
        None => Ok(()),
    }
}

/// Applies a mapping of characters to a text with characters of both origins; what a character
/// becomes keeps its origin.
pub(super) fn map_chars<I: Iterator<Item = char>>(text: &str, mut map: impl FnMut(char) -> I) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let mapped = map(plain(c));
        if is_marked(c) { out.extend(mapped.map(mark)) } else { out.extend(mapped) }
    }
    out
}

/// Places in a text for places in its plain form. Both have the same characters, of other lengths.
pub(super) struct Places<'t> {
    text: std::str::Chars<'t>,
    /// Length of the text.
    len: usize,
    /// Bytes of the plain form before what is left of the text.
    plain_at: usize,
    /// The text is its own plain form.
    is_plain: bool,
}

impl<'t> Places<'t> {
    /// The plain form of a text, and the places of its parts.
    pub(super) fn new(text: &'t str) -> (Cow<'t, str>, Self) {
        let plain = plain_text(text);
        let is_plain = matches!(plain, Cow::Borrowed(_));
        (plain, Self { text: text.chars(), len: text.len(), plain_at: 0, is_plain })
    }

    /// The place for the byte `at` of the plain form, which starts a character or ends the text.
    /// Later calls ask for later places.
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
    /// The text as it is encoded.
    pub(super) text: String,
    /// Byte ranges of the template's own text; white space counts as either.
    pub(super) runs: Vec<Range<usize>>,
}

impl Prompt {
    pub(super) fn new(rendered: &str) -> Self {
        let mut text = String::with_capacity(rendered.len());
        let mut runs = Vec::new();
        // Possible start of a run; true once it has a character of the template.
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
            // No character of a message is one of the template.
            prop_assert!(shelter(&text).chars().all(|c| !is_marked(c)));
            let (plain, mut places) = Places::new(&text);
            for (at, c) in plain.char_indices() {
                let place = places.of(at);
                prop_assert_eq!(super::plain(text[place..].chars().next().unwrap()), c);
            }
        }
    }
}
