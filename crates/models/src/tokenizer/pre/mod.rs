//! Pre-tokenization: cuts a text into the pieces that byte-pair merges never cross, by the regular
//! expressions of a model family.

pub(super) mod find;
mod rules;

use regex::Regex;

use self::rules::{CASED, CASED_MARK, KNOWN, Rules, Spaces};
use crate::{Error, Result};

/// Cuts texts as one pre-tokenizer type says. Linear in the length of the text.
#[derive(Debug, Clone)]
pub(crate) struct PreTokenizer {
    cuts: Vec<(Regex, Spaces)>,
    ignore_merges: bool,
    add_bos: bool,
}

impl PreTokenizer {
    /// The pre-tokenizer of a value of `tokenizer.ggml.pre`.
    ///
    /// # Errors
    /// [`Error::UnknownPreTokenizer`] with the known types: a wrong guess would only show as bad answers.
    pub(crate) fn named(name: &str) -> Result<Self> {
        let Some(rules) = KNOWN.iter().find(|rules| rules.names.contains(&name)) else {
            return Err(Error::UnknownPreTokenizer { found: name.to_owned(), known: known_names() });
        };
        Self::build(rules)
    }

    fn build(rules: &Rules) -> Result<Self> {
        let compile = |&(pattern, spaces): &(&str, Spaces)| {
            let pattern = if pattern.contains(CASED_MARK) {
                pattern.replace(CASED_MARK, &cased_class())
            } else {
                pattern.to_owned()
            };
            let regex = Regex::new(&pattern)
                .map_err(|error| Error::TokenizerDefinition { message: error.to_string() })?;
            Ok((regex, spaces))
        };
        let cuts = rules.cuts.iter().map(compile).collect::<Result<_>>()?;
        Ok(Self { cuts, ignore_merges: rules.ignore_merges, add_bos: rules.add_bos })
    }

    /// Whether a piece that is a token as a whole is not built by merges.
    pub(crate) fn ignores_merges(&self) -> bool {
        self.ignore_merges
    }

    /// Whether texts begin with a BOS token unless the file says otherwise.
    pub(crate) fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Gives the pieces of `text` to `piece`, in order and without gaps.
    pub(crate) fn split<'t>(&self, text: &'t str, piece: &mut impl FnMut(&'t str)) {
        cut(&self.cuts, text, piece);
    }
}

fn cut<'t>(cuts: &[(Regex, Spaces)], text: &'t str, piece: &mut impl FnMut(&'t str)) {
    if text.is_empty() {
        return;
    }
    let Some(((regex, spaces), rest)) = cuts.split_first() else { return piece(text) };
    let mut at = 0;
    while let Some(found) = regex.find_at(text, at) {
        cut(rest, &text[at..found.start()], piece);
        let end = found.end() - last_space(text, found.start(), found.end(), *spaces);
        cut(rest, &text[found.start()..end], piece);
        at = end;
        if at == text.len() {
            return;
        }
    }
    cut(rest, &text[at..], piece);
}

/// How many bytes at the end of a match belong to the next piece.
fn last_space(text: &str, start: usize, end: usize, spaces: Spaces) -> usize {
    if spaces == Spaces::Keep || end == text.len() {
        return 0;
    }
    let Some(last) = text[start..end].chars().next_back().filter(|c| c.is_whitespace()) else { return 0 };
    let from_line_end = spaces == Spaces::LeaveLastNoNewline && matches!(last, '\r' | '\n');
    // A single space stays: `\s+(?!\S)` cannot match it, the plain `\s+` after it does.
    if from_line_end || last.len_utf8() == end - start { 0 } else { last.len_utf8() }
}

/// The inside of a character class with the letters of [`CASED`].
fn cased_class() -> String {
    CASED.iter().map(|(first, last)| format!(r"\x{{{first:X}}}-\x{{{last:X}}}")).collect()
}

/// All values of `tokenizer.ggml.pre` that can be loaded, separated by commas.
fn known_names() -> String {
    let mut names: Vec<&str> = KNOWN.iter().flat_map(|rules| rules.names).copied().collect();
    names.sort_unstable();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::{
        OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _, SplitDelimiterBehavior,
        pre_tokenizers::split::{Split, SplitPattern},
    };

    use super::*;

    fn pieces<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
        let mut pieces = Vec::new();
        let split = PreTokenizer::named(name).map(|pre| pre.split(text, &mut |piece| pieces.push(piece)));
        assert!(split.is_ok(), "{name}: {split:?}");
        pieces
    }

    #[test]
    fn every_known_type_compiles_and_loses_no_text() {
        let text = "Hello  world's 12345 a\u{300}\r\n\n  x\t\u{a0}y!?\u{3000}你好 ｆｏｏ… ";
        for name in KNOWN.iter().flat_map(|rules| rules.names) {
            assert_eq!(pieces(name, text).concat(), text, "{name}");
            assert!(pieces(name, "").is_empty());
        }
    }

    /// The patterns with their look-aheads, run by the tokenizers library.
    fn library_cuts(rules: &Rules) -> Vec<Split> {
        let split = |&(pattern, spaces): &(&str, Spaces)| {
            let mut pattern = pattern.replace(CASED_MARK, &cased_class());
            if spaces != Spaces::Keep {
                assert!(pattern.ends_with(r"|\s+"), "{pattern}");
                pattern.truncate(pattern.len() - r"|\s+".len());
                pattern.push_str(r"|\s+(?!\S)|\s+");
            }
            Split::new(SplitPattern::Regex(pattern), SplitDelimiterBehavior::Isolated, false)
        };
        rules.cuts.iter().filter_map(|cut| split(cut).ok()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn look_aheads_are_what_the_library_makes_of_them(
            parts in prop::collection::vec(
                prop_oneof![
                    "[ \\t\\n\\r]{1,5}",
                    "[a-zA-Z']{1,6}",
                    "[0-9]{1,5}",
                    "[\u{a0}\u{3000}\u{2028}\u{85} \n]{1,4}",
                    "[!-/:-@]{1,4}",
                    "[你好éÉß\u{301}ǅ١²]{1,4}",
                    "\\PC{1,3}",
                    any::<char>().prop_map(String::from),
                ],
                1..12,
            )
        ) {
            let text = parts.concat();
            for rules in KNOWN {
                let cuts = library_cuts(rules);
                prop_assert_eq!(cuts.len(), rules.cuts.len());
                let mut split = PreTokenizedString::from(text.as_str());
                for cut in &cuts {
                    prop_assert!(cut.pre_tokenize(&mut split).is_ok());
                }
                let expected: Vec<&str> = split
                    .get_splits(OffsetReferential::Normalized, OffsetType::Byte)
                    .into_iter()
                    .map(|(piece, ..)| piece)
                    .collect();
                prop_assert_eq!(pieces(rules.names[0], &text), expected, "{}", rules.names[0]);
            }
        }
    }

    #[test]
    fn no_pattern_matches_nothing() {
        for name in KNOWN.iter().map(|rules| rules.names[0]) {
            let matches_empty =
                PreTokenizer::named(name).map(|pre| pre.cuts.iter().any(|(r, _)| r.is_match("")));
            assert!(matches!(matches_empty, Ok(false)), "{name}");
        }
    }

    #[test]
    fn names_are_unique() {
        let names: Vec<_> = KNOWN.iter().flat_map(|rules| rules.names).collect();
        let unique: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
    }

    #[test]
    fn the_last_space_before_a_word_belongs_to_the_word() {
        assert_eq!(pieces("gpt-2", "a   b\n\n c "), ["a", "  ", " b", "\n\n", " c", " "]);
        assert_eq!(pieces("llama3", "a   b\n\n c "), ["a", "  ", " b", "\n\n", " c", " "]);
        assert_eq!(pieces("llama3", "a \n  \n   b"), ["a", " \n  \n", "  ", " b"]);
        assert_eq!(pieces("gpt-2", "\n\n\nx"), ["\n\n", "\n", "x"]);
        assert_eq!(pieces("llama3", "\t\u{3000}x"), ["\t", "\u{3000}x"]);
    }

    #[test]
    fn numbers_are_grouped_as_the_type_says() {
        assert_eq!(pieces("llama3", "12345"), ["123", "45"]);
        assert_eq!(pieces("qwen2", "123"), ["1", "2", "3"]);
        assert_eq!(pieces("gpt-2", "12345"), ["12345"]);
        assert_eq!(pieces("falcon", "12345"), ["123", "45"]);
        assert_eq!(pieces("starcoder", "1a 2"), ["1", "a", " ", "2"]);
    }

    #[test]
    fn contractions_in_capitals() {
        assert_eq!(pieces("gpt-2", "IT'S"), ["IT", "'", "S"]);
        assert_eq!(pieces("llama3", "IT'S"), ["IT", "'S"]);
        assert_eq!(pieces("gpt-4o", "helloWorld's"), ["hello", "World's"]);
    }

    #[test]
    fn an_unknown_type_is_an_error_that_lists_the_known_ones() {
        let error = PreTokenizer::named("nope").map(|_| ()).map_err(|error| error.to_string());
        let message = error.err().unwrap_or_default();
        assert!(message.contains("`nope`") && message.contains("llama-bpe, ") && message.contains("qwen2"));
    }
}
