//! Wrapping of streamed text at the edge of a terminal, between words.

use unicode_width::UnicodeWidthChar;

/// Columns from one tab stop to the next.
const TAB: usize = 8;

/// Word wrapper for text that arrives piece by piece.
///
/// A word is held back until it ends, at most a line of it. Wide characters (CJK) are words of
/// their own. The terminal breaks words that are longer than a line, so that copied text has no
/// line break inside.
pub(crate) struct Wrap {
    /// Columns of the terminal, at least 1.
    width: usize,
    /// Columns in use on the current line.
    column: usize,
    /// Space before the word, dropped where the line breaks.
    space: String,
    word: String,
    word_width: usize,
    /// True inside a word that is longer than a line.
    is_overlong: bool,
}

impl Wrap {
    pub(crate) fn new(width: usize) -> Self {
        Self {
            width: width.max(1),
            column: 0,
            space: String::new(),
            word: String::new(),
            word_width: 0,
            is_overlong: false,
        }
    }

    /// Takes a piece; returns the text to print.
    pub(crate) fn push(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                '\n' => {
                    self.end_word(&mut out);
                    self.space.clear();
                    out.push('\n');
                    self.column = 0;
                }
                ' ' | '\t' => {
                    self.end_word(&mut out);
                    self.space.push(c);
                }
                _ => self.add(c, &mut out),
            }
        }
        out
    }

    /// Returns the text that was held back.
    pub(crate) fn finish(&mut self) -> String {
        let mut out = String::new();
        self.end_word(&mut out);
        out
    }

    fn add(&mut self, c: char, out: &mut String) {
        // Control characters have no width.
        let width = c.width().unwrap_or(0);
        if self.is_overlong {
            out.push(c);
            self.column = (self.column + width - 1) % self.width + 1;
            return;
        }
        if width > 1 {
            self.end_word(out);
        }
        self.word.push(c);
        self.word_width += width;
        if self.word_width > self.width {
            self.end_word(out);
            self.is_overlong = true;
        } else if width > 1 {
            self.end_word(out);
        }
    }

    fn end_word(&mut self, out: &mut String) {
        self.is_overlong = false;
        if self.word.is_empty() {
            return;
        }
        let start = self
            .space
            .chars()
            .fold(self.column, |column, c| if c == '\t' { (column / TAB + 1) * TAB } else { column + 1 });
        if start + self.word_width > self.width && start > 0 {
            out.push('\n');
            self.column = self.word_width;
        } else {
            out.push_str(&self.space);
            self.column = start + self.word_width;
        }
        self.column = self.column.saturating_sub(1) % self.width + usize::from(self.column > 0);
        out.push_str(&self.word);
        self.space.clear();
        self.word.clear();
        self.word_width = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole text, pushed in pieces of `n` characters.
    fn wrapped(width: usize, text: &str, n: usize) -> String {
        let mut wrap = Wrap::new(width);
        let chars: Vec<char> = text.chars().collect();
        let mut out: String =
            chars.chunks(n).map(|piece| wrap.push(&piece.iter().collect::<String>())).collect();
        out.push_str(&wrap.finish());
        out
    }

    #[track_caller]
    fn check(width: usize, text: &str, expected: &str) {
        for n in [1, 2, 3, 100] {
            assert_eq!(wrapped(width, text, n), expected, "pieces of {n}");
        }
    }

    #[test]
    fn lines_break_between_words() {
        check(10, "The cat sat on the mat.", "The cat\nsat on the\nmat.");
        check(7, "The cat sat", "The cat\nsat");
        check(6, "The cat sat", "The\ncat\nsat");
    }

    #[test]
    fn line_breaks_and_indentation_of_the_text_stay() {
        check(10, "a\n\n  b c\n", "a\n\n  b c\n");
    }

    #[test]
    fn longer_words_are_left_to_the_terminal() {
        check(5, "a bcdefghij k", "a\nbcdefghij\nk");
        check(5, "abcdefgh ij", "abcdefgh\nij");
        check(5, "abcdefg i", "abcdefg i");
    }

    #[test]
    fn wide_characters_take_two_columns() {
        check(6, "日本語日本", "日本語\n日本");
        check(6, "a 日本語", "a 日本\n語");
    }

    #[test]
    fn nothing_is_lost_but_spaces_at_breaks() {
        let text = "one two\tthree  fourteen 日本 fifteenhundred\n six";
        let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
        for width in 1..40 {
            assert_eq!(letters(&wrapped(width, text, 3)), letters(text), "{width}");
        }
    }
}
