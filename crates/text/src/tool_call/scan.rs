//! End of a JSON value in text that arrives character by character.

/// Deepest nesting of a value: that of `serde_json`, which checks it afterwards.
const NESTING: usize = 127;

/// Place of a character relative to the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// White space before the value.
    Before,
    /// Part of the value, which goes on.
    Inside,
    /// Last character of the value.
    Last,
    /// The value, a number or word, has ended before this character.
    Behind,
    /// No JSON value goes on like this.
    Fault,
}

/// Finds the end of one value by its brackets and quotes. Anything else about its syntax is left to
/// the parser that reads the whole value.
#[derive(Debug, Clone, Default)]
pub(super) struct ValueScan {
    /// Open brackets and braces.
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// Within a number, `true`, `false` or `null`.
    in_word: bool,
}

impl ValueScan {
    /// True if the text is the beginning of a value and ends within a string of it.
    pub(super) fn ends_in_string(text: &str) -> bool {
        let mut scan = Self::default();
        let goes_on = text.chars().all(|c| matches!(scan.push(c), Place::Before | Place::Inside));
        goes_on && scan.in_string
    }

    /// Takes the next character.
    pub(super) fn push(&mut self, c: char) -> Place {
        if self.in_string {
            return self.push_string(c);
        }
        if self.in_word {
            let goes_on = c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
            return if goes_on { Place::Inside } else { Place::Behind };
        }
        match c {
            '{' | '[' if self.depth == NESTING => return Place::Fault,
            '{' | '[' => self.depth += 1,
            '}' | ']' if self.depth == 0 => return Place::Fault,
            '}' | ']' => {
                self.depth -= 1;
                return if self.depth == 0 { Place::Last } else { Place::Inside };
            }
            '"' => self.in_string = true,
            ' ' | '\t' | '\n' | '\r' if self.depth == 0 => return Place::Before,
            _ if self.depth > 0 => {}
            '-' | '0'..='9' | 'a'..='z' => self.in_word = true,
            _ => return Place::Fault,
        }
        Place::Inside
    }

    fn push_string(&mut self, c: char) -> Place {
        match c {
            _ if self.escaped => self.escaped = false,
            '\\' => self.escaped = true,
            '"' => {
                self.in_string = false;
                return if self.depth == 0 { Place::Last } else { Place::Inside };
            }
            // Control characters are escaped in JSON: a string that has one has lost its end.
            '\0'..='\x1f' => return Place::Fault,
            _ => {}
        }
        Place::Inside
    }
}
