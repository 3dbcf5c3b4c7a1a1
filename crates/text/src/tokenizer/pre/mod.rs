//! Pre-tokenization: splits a text into pieces that byte-pair merges never cross. The regular
//! expressions are those of a model family.

#[cfg(feature = "tokenizer-json")]
pub(super) mod find;
mod rules;

use regex::Regex;

use self::rules::{After, CASED, CASED_MARK, KNOWN, OVER_CHARACTERS, Rules};
use crate::error::{Error, Result};

/// Splitter of one pre-tokenizer type. Linear in the length of the text.
#[derive(Debug, Clone)]
pub(crate) struct PreTokenizer {
    cuts: Vec<(Regex, After)>,
    ignore_merges: bool,
    add_bos: bool,
}

impl PreTokenizer {
    /// Creates the pre-tokenizer for a value of `tokenizer.ggml.pre`.
    ///
    /// # Errors
    /// [`Error::UnknownPreTokenizer`] with the known types: a wrong guess would show only as bad
    /// answers.
    pub(crate) fn named(name: &str) -> Result<Self> {
        let Some(rules) = KNOWN.iter().find(|rules| rules.names.contains(&name)) else {
            return Err(Error::UnknownPreTokenizer { found: name.to_owned(), known: known_names() });
        };
        Self::build(rules)
    }

    fn build(rules: &Rules) -> Result<Self> {
        let compile = |&(pattern, after): &(&str, After)| {
            let pattern = if pattern.contains(CASED_MARK) {
                pattern.replace(CASED_MARK, &cased_class())
            } else {
                pattern.to_owned()
            };
            let regex = Regex::new(&pattern)
                .map_err(|error| Error::TokenizerDefinition { message: error.to_string() })?;
            Ok((regex, after))
        };
        let cuts = rules.cuts.iter().map(compile).collect::<Result<_>>()?;
        Ok(Self { cuts, ignore_merges: rules.ignore_merges, add_bos: rules.add_bos })
    }

    /// True if a piece that is a token as a whole takes precedence over merges.
    pub(crate) fn ignores_merges(&self) -> bool {
        self.ignore_merges
    }

    /// True if texts begin with a BOS token by default.
    pub(crate) fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Calls `piece` with the pieces of `text`, in order and without gaps.
    pub(crate) fn split<'t>(&self, text: &'t str, piece: &mut impl FnMut(&'t str)) {
        cut(&self.cuts, text, piece);
    }
}

fn cut<'t>(cuts: &[(Regex, After)], text: &'t str, piece: &mut impl FnMut(&'t str)) {
    if text.is_empty() {
        return;
    }
    let Some(((regex, after), rest)) = cuts.split_first() else { return piece(text) };
    let mut at = 0;
    while let Some(found) = regex.find_at(text, at) {
        cut(rest, &text[at..found.start()], piece);
        let (found, behind) = (found.as_str(), &text[found.end()..]);
        let mut left = found;
        after.pieces(found, behind.is_empty(), &mut |len| {
            let (first, others) = left.split_at(len);
            cut(rest, first, piece);
            left = others;
        });
        at = text.len() - behind.len() - left.len();
        if at == text.len() {
            return;
        }
    }
    cut(rest, &text[at..], piece);
}

impl After {
    /// Calls `piece` with the lengths of a match's pieces, in bytes. The rest of the match is
    /// matched again. `at_end`: no text follows.
    fn pieces(self, found: &str, at_end: bool, piece: &mut impl FnMut(usize)) {
        match self {
            Self::Keep => piece(found.len()),
            Self::LeaveLastNoNewline | Self::LeaveLastInPowers if found.ends_with(['\r', '\n']) => {
                piece(found.len());
            }
            Self::LeaveLast | Self::LeaveLastNoNewline => piece(without_last_space(found, at_end)),
            Self::LeaveLastInPowers if !found.ends_with(char::is_whitespace) => piece(found.len()),
            Self::LeaveLastInPowers => {
                let mut run = found[..without_last_space(found, at_end)].chars();
                while !run.as_str().is_empty() {
                    let left = run.clone().take(512).count();
                    piece(run.by_ref().take(1 << left.ilog2()).map(char::len_utf8).sum());
                }
            }
            Self::GroupsOfThree => {
                let mut digits = found.chars();
                let mut size = (digits.clone().count() + 2) % 3 + 1;
                while !digits.as_str().is_empty() {
                    piece(digits.by_ref().take(size).map(char::len_utf8).sum());
                    size = 3;
                }
            }
        }
    }
}

/// Length in bytes of a match without its last character, if that is white space before a text: it
/// belongs to the next piece. A match of one character is kept: `\s+(?!\S)` cannot match it, the
/// plain `\s+` after it does.
fn without_last_space(found: &str, at_end: bool) -> usize {
    let left = found.chars().next_back().filter(|last| !at_end && last.is_whitespace());
    match left.map(char::len_utf8) {
        Some(left) if left < found.len() => found.len() - left,
        _ => found.len(),
    }
}

/// Inside of a character class with the letters of [`CASED`].
fn cased_class() -> String {
    CASED.iter().map(|(first, last)| format!(r"\x{{{first:X}}}-\x{{{last:X}}}")).collect()
}

/// True if a value of `tokenizer.ggml.pre` belongs to a vocabulary over characters, not bytes.
pub(crate) fn is_over_characters(name: &str) -> bool {
    OVER_CHARACTERS.contains(&name)
}

/// All supported values of `tokenizer.ggml.pre`, separated by commas.
fn known_names() -> String {
    let mut names: Vec<&str> =
        KNOWN.iter().flat_map(|rules| rules.names).chain(OVER_CHARACTERS).copied().collect();
    names.sort_unstable();
    names.join(", ")
}

#[cfg(all(test, feature = "tokenizer-json"))]
mod tests;
