//! Words, sentences and the parts of a text that similarity must not blur.

use crate::error::Result;
use crate::model::Embed;

/// Longest run of letters that counts as one word; longer runs are read letter by letter.
const MAX_WORD_CHARS: usize = 40;

/// Word or symbol of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    /// Letters, digits and apostrophes between them; or one ideograph or kana.
    Word(&'a str),
    /// One other character that is no white space.
    Symbol(&'a str),
}

/// Tokens of a text, in order. Linear in its length.
pub(crate) fn tokens(text: &str) -> impl Iterator<Item = Token<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        let first = rest.chars().next()?;
        let len = word_len(rest).unwrap_or(first.len_utf8());
        let (token, tail) = rest.split_at(len);
        rest = tail;
        Some(if first.is_alphanumeric() { Token::Word(token) } else { Token::Symbol(token) })
    })
}

/// Bytes of the word at the beginning; `None` if one character stands alone there.
fn word_len(text: &str) -> Option<usize> {
    let is_letter = |c: char| c.is_alphanumeric() && !stands_alone(c);
    let is_apostrophe = |c: char| c == '\'' || c == '\u{2019}';
    let mut end = 0;
    for (n_chars, (at, c)) in text.char_indices().enumerate() {
        if n_chars == MAX_WORD_CHARS {
            return None;
        }
        if is_letter(c) {
            end = at + c.len_utf8();
        } else if at == 0 || end != at || !is_apostrophe(c) {
            break;
        }
    }
    (end > 0).then_some(end)
}

/// True for characters of scripts that are written without spaces.
fn stands_alone(c: char) -> bool {
    matches!(u32::from(c), 0x3040..=0x30FF | 0x3400..=0x9FFF | 0x2_0000..=0x3_FFFF)
}

/// Words of a text.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    tokens(text).filter_map(|token| match token {
        Token::Word(word) => Some(word),
        Token::Symbol(_) => None,
    })
}

/// FNV-1a over the lower-case characters: the identity of a word in counts and sketches.
pub(crate) fn hash(word: &str) -> u64 {
    word.chars().flat_map(char::to_lowercase).fold(0xcbf2_9ce4_8422_2325, |hash, c| {
        (hash ^ u64::from(u32::from(c))).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Mixes a hash with a seed (the finalizer of SplitMix64).
pub(crate) fn mix(hash: u64, seed: u64) -> u64 {
    crate::random::mix(hash ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Sentences: parts between line breaks and between full stops before white space.
pub(crate) fn sentences(text: &str) -> Vec<&str> {
    let mut sentences = Vec::new();
    for line in text.lines() {
        let mut start = 0;
        for (at, c) in line.char_indices() {
            let end = at + c.len_utf8();
            let is_end = match c {
                '.' | '!' | '?' => line[end..].chars().next().is_none_or(char::is_whitespace),
                '。' | '！' | '？' => true,
                _ => false,
            };
            if is_end {
                sentences.push(line[start..end].trim());
                start = end;
            }
        }
        sentences.push(line[start..].trim());
    }
    sentences.retain(|sentence| words(sentence).next().is_some());
    sentences
}

/// Text in lower case with single spaces and without sentence punctuation: equal for two texts that
/// differ in form alone.
pub(crate) fn normalized(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for token in tokens(text) {
        let (Token::Word(part) | Token::Symbol(part)) = token;
        if matches!(part, "." | "," | "!" | "?" | ";" | ":" | "\"") {
            continue;
        }
        if !out.is_empty() {
            out.push(' ');
        }
        out.extend(part.chars().flat_map(char::to_lowercase));
    }
    out
}

/// Words that change the meaning of a sentence and hardly its embedding (English).
const DECISIVE: &[&str] = &[
    "no", "not", "never", "none", "nobody", "nothing", "neither", "nor", "without", "except", "cannot",
    "unless", "only", "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "hundred", "thousand", "million", "billion", "half", "double", "first", "last",
    "more", "less", "fewer", "most", "least", "before", "after", "above", "below", "over", "under", "min",
    "max", "minimum", "maximum", "increase", "decrease", "enable", "disable", "true", "false",
];

/// Parts of a text in which two texts of one meaning agree: numbers, negations, comparisons and
/// names (capitalized words after the first). Two texts whose guards differ are never taken for the
/// same, however alike their embeddings are; equal guards prove nothing.
pub(crate) fn guard(text: &str) -> String {
    let mut out = String::new();
    let mut is_first = true;
    let mut was_minus = false;
    for token in tokens(text) {
        if let Token::Word(word) = token {
            let lower = word.to_lowercase();
            let has_digit = word.contains(|c: char| c.is_numeric());
            let is_name = !is_first && word.starts_with(char::is_uppercase) && lower != "i";
            let is_negation = lower.ends_with("n't") || lower.ends_with("n\u{2019}t");
            if has_digit && was_minus {
                out.push('-');
            }
            if is_negation {
                out.push_str("not ");
            } else if has_digit || is_name || DECISIVE.contains(&lower.as_str()) {
                out.push_str(&lower);
                out.push(' ');
            }
            is_first = false;
        }
        was_minus = token == Token::Symbol("-");
    }
    out
}

/// Embedding of words without a model: signed feature hashing of words and their letter trigrams
/// (Weinberger et al., arXiv 0902.2206). It knows common words, not meanings.
#[derive(Debug, Clone, Copy)]
pub struct HashedWords {
    /// Values per embedding, at least 1.
    pub dimension: usize,
}

impl Embed for HashedWords {
    /// Embeds a text; one without words gives the embedding of an empty word.
    fn embed(&self, text: &str) -> Result<Vec<f32>> {
        let mut sums = vec![0.0; self.dimension.max(1)];
        let mut add = |feature: u64, weight: f32| {
            let hash = mix(feature, 1);
            let at = (hash >> 1) as usize % sums.len();
            sums[at] += if hash & 1 == 0 { weight } else { -weight };
        };
        let mut is_empty = true;
        for word in words(text) {
            is_empty = false;
            add(hash(word), 1.0);
            let ends = || word.char_indices().map(|(at, _)| at).chain([word.len()]);
            for (start, end) in ends().zip(ends().skip(3)) {
                add(mix(hash(&word[start..end]), 2), 0.25);
            }
        }
        if is_empty || sums.iter().all(|&x| x == 0.0) {
            sums[0] = 1.0;
        }
        Ok(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_several_scripts() {
        let split = |text| words(text).collect::<Vec<_>>();
        assert_eq!(split("Don't stop: 3.5 \u{fc}ber 'x'"), ["Don't", "stop", "3", "5", "\u{fc}ber", "x"]);
        assert_eq!(split("日本語 is 語"), ["日", "本", "語", "is", "語"]);
        assert_eq!(split(&"a".repeat(100)).len(), 100 - MAX_WORD_CHARS + 1);
        assert_eq!(tokens("a+b").count(), 3);
    }

    #[test]
    fn sentences_end_at_stops_and_lines() {
        assert_eq!(sentences("It is 3.5. Yes!\n\n- A point\n***"), ["It is 3.5.", "Yes!", "- A point"]);
    }

    #[test]
    fn guard_tells_numbers_negations_and_names() {
        for (a, b) in [
            ("open until 5", "open until 6"),
            ("at -5 degrees", "at 5 degrees"),
            ("it does not start", "it does start"),
            ("it doesn't start", "it does start"),
            ("weather in Paris", "weather in London"),
            ("more than usual", "less than usual"),
        ] {
            assert_ne!(guard(a), guard(b), "{a} / {b}");
        }
        assert_eq!(guard("It doesn't start at 5"), guard("So it does not start at 5"));
        assert_eq!(guard("How is the weather?"), guard("What about the weather?"));
    }

    #[test]
    fn normalized_text_keeps_symbols_of_names() {
        assert_eq!(normalized("I like  C++."), normalized("i like C++"));
        assert_ne!(normalized("I like C++"), normalized("I like C"));
    }
}
