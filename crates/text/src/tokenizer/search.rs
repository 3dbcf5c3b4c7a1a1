//! Regular expressions of a `tokenizer.json`, with limits on time. Exceeding one is an error, never
//! the silent end of the matches.
//!
//! The tokenizers library runs all patterns by backtracking and treats an error as the end of the
//! matches, so that a long text is silently split differently. Here a pattern without look-around
//! runs in linear time, and so does one whose only look-ahead is `\s+(?!\S)|\s+` at its end, as in
//! published ones. Other patterns (look-around elsewhere, back-references, possessive quantifiers)
//! run by backtracking, with limits.

use std::time::{Duration, Instant};

use regex::Regex;
use tokenizers::{Offsets, pattern::Pattern};

/// End of a pattern: white space, without the last character if text follows.
const SPACE_BEFORE_TEXT: &str = r"|\s+(?!\S)|\s+";

/// Name of the group for such white space.
const SPACE: &str = "__space";

/// Maximum size of a compiled pattern in bytes.
const LARGEST: usize = 4 << 20;

/// Maximum backtracking steps per match.
const MOST_STEPS: usize = 1_000_000;

/// Time limit for all matches in a text of `bytes`.
fn longest_time(bytes: usize) -> Duration {
    Duration::from_secs(1) + Duration::from_micros(10).saturating_mul(bytes.try_into().unwrap_or(u32::MAX))
}

/// True if a pattern has possessive quantifiers, such as `a++` and `a{1,3}+`: the linear engine
/// reads them as nested quantifiers.
fn is_possessive(pattern: &str) -> bool {
    let counts = |before: &str| {
        before
            .rsplit_once('{')
            .is_some_and(|(_, count)| count.chars().all(|c| c.is_ascii_digit() || c == ','))
    };
    ["?+", "*+", "++"].iter().any(|mark| pattern.contains(mark))
        || pattern.match_indices("}+").any(|(at, _)| counts(&pattern[..at]))
}

/// Searcher for the matches of a pattern.
#[derive(Debug)]
pub(super) enum Search {
    /// In linear time. With the flag, the group [`SPACE`] leaves its last character to following
    /// text.
    Linear(Regex, bool),
    Backtracking(Box<fancy_regex::Regex>),
}

impl Search {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// A pattern that is not valid or too large.
    pub(super) fn new(pattern: &str) -> tokenizers::Result<Self> {
        let linear = |pattern: &str| regex::RegexBuilder::new(pattern).size_limit(LARGEST).build().ok();
        if !is_possessive(pattern) {
            if let Some(before) = pattern.strip_suffix(SPACE_BEFORE_TEXT)
                && linear(before).is_some()
                && let Some(regex) = linear(&format!(r"(?:{before})|(?P<{SPACE}>\s+)"))
            {
                return Ok(Self::Linear(regex, true));
            }
            if let Some(regex) = linear(pattern) {
                return Ok(Self::Linear(regex, false));
            }
        }
        let built = fancy_regex::RegexBuilder::new(pattern)
            .backtrack_limit(MOST_STEPS)
            .delegate_size_limit(LARGEST)
            .build()?;
        Ok(Self::Backtracking(Box::new(built)))
    }

    /// Creates a searcher for a literal text.
    ///
    /// # Errors
    /// A text that is too large.
    pub(super) fn literal(text: &str) -> tokenizers::Result<Self> {
        Self::new(&regex::escape(text))
    }

    /// End of a match. White space of the group [`SPACE`] leaves its last character to following
    /// text, but keeps at least one.
    fn end_of(&self, text: &str, found: &regex::Match<'_>) -> usize {
        let Self::Linear(regex, true) = self else { return found.end() };
        let mut chars = found.as_str().chars();
        match chars.next_back() {
            Some(last)
                if found.end() < text.len()
                    && !chars.as_str().is_empty()
                    && found.as_str().chars().all(char::is_whitespace)
                    && regex
                        .captures_at(text, found.start())
                        .is_some_and(|groups| groups.name(SPACE).is_some()) =>
            {
                found.end() - last.len_utf8()
            }
            _ => found.end(),
        }
    }

    /// Calls `found` with start and end of each match.
    fn each(&self, text: &str, mut found: impl FnMut(usize, usize)) -> tokenizers::Result<()> {
        match self {
            Self::Linear(regex, false) => regex.find_iter(text).for_each(|m| found(m.start(), m.end())),
            Self::Linear(regex, true) => {
                let (mut at, mut last) = (0, None);
                while let Some(m) = regex.find_at(text, at) {
                    let end = self.end_of(text, &m);
                    // An empty match directly after another match does not count.
                    if m.start() < end || last != Some(end) {
                        found(m.start(), end);
                    }
                    (at, last) = (end, Some(end));
                    if m.start() == end {
                        match text[end..].chars().next() {
                            Some(c) => at += c.len_utf8(),
                            None => break,
                        }
                    }
                }
            }
            Self::Backtracking(regex) => {
                let (started, longest) = (Instant::now(), longest_time(text.len()));
                for (i, m) in regex.find_iter(text).enumerate() {
                    let m = m.map_err(|error| format!("a pattern cannot be matched: {error}"))?;
                    found(m.start(), m.end());
                    if i % 64 == 0 && started.elapsed() > longest {
                        return Err(format!("a pattern takes longer than {} s", longest.as_secs()).into());
                    }
                }
            }
        }
        Ok(())
    }
}

/// Covers the text with matches and the gaps between them.
impl Pattern for &Search {
    fn find_matches(&self, inside: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        if inside.is_empty() {
            return Ok(vec![((0, 0), false)]);
        }
        let mut parts = Vec::with_capacity(inside.len() / 4);
        let mut at = 0;
        self.each(inside, |start, end| {
            if at != start {
                parts.push(((at, start), false));
            }
            parts.push(((start, end), true));
            at = end;
        })?;
        if at != inside.len() {
            parts.push(((at, inside.len()), false));
        }
        Ok(parts)
    }
}

/// Precomputed matches.
pub(super) struct Found(pub(super) Vec<(Offsets, bool)>);

impl Pattern for &Found {
    fn find_matches(&self, _: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        Ok(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATTERNS: [&str; 5] = [
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"\p{N}|\s+(?!\S)|\s+",
        r"(x*)|\s+(?!\S)|\s+",
        r"[a-z]+|\d",
    ];

    #[test]
    fn published_patterns_run_in_linear_time() {
        for pattern in PATTERNS {
            assert!(matches!(Search::new(pattern), Ok(Search::Linear(..))), "{pattern}");
        }
        for pattern in [r"\p{N}{1,3}+|x", r"a(?=b)", r"(a)\1", r"\d{1,3}(?=(?:\d{3})*\b)"] {
            assert!(matches!(Search::new(pattern), Ok(Search::Backtracking(_))), "{pattern}");
        }
        assert!(Search::new("(").is_err() && Search::new(r"(\pL{100}){100}").is_err());
    }

    #[test]
    fn a_limit_that_is_hit_is_an_error() {
        let search = Search::new(r"(?:(a+)+)\1b|z").unwrap();
        assert!((&search).find_matches("aaaz").is_ok());
        assert!((&search).find_matches(&("a".repeat(60) + "z")).is_err());
        // Each match stays below the limit, but all of them would take an hour.
        let search = Search::new(r"(?:a|a)*(?=b)b|a").unwrap();
        assert!((&search).find_matches(&"a".repeat(200_000)).is_err());
    }

    proptest! {
        #[test]
        fn matches_are_those_of_the_pattern(text in r"[ax'1,;é \n\r\u{3000}]{0,12}", which in 0..PATTERNS.len()) {
            let search = Search::new(PATTERNS[which]).unwrap();
            let slow = fancy_regex::Regex::new(PATTERNS[which]).unwrap();
            let slow = Search::Backtracking(Box::new(slow));
            prop_assert_eq!((&search).find_matches(&text).unwrap(), (&slow).find_matches(&text).unwrap());
        }
    }
}
