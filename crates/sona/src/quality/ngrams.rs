//! Diversity and repetition by n-grams of words.

use std::collections::{HashMap, HashSet};

use crate::error::Result;
use crate::lexical::{Token, hash, mix, tokens, words};

use super::{Sample, Score, Scorer};

/// Words per window of [`Diversity`]: distinct-n falls with length, so texts of different lengths
/// are compared by windows of one length (as the moving-average type-token ratio does).
const WINDOW: usize = 100;
/// Fewest words that are scored.
const MIN_WORDS: usize = 20;
/// Longest period of a loop, in tokens.
const MAX_PERIOD: usize = 64;
/// Fewest tokens that a loop covers.
const MIN_LOOP: usize = 16;
/// Tokens that are scored; the rest of a longer text is ignored.
const MAX_TOKENS: usize = 50_000;

/// Distinct-2 (Li et al., arXiv 1510.03055): different word pairs per pair, mean over windows of
/// 100 words. Shorter texts are one window.
#[derive(Debug, Clone, Copy, Default)]
pub struct Diversity;

impl Scorer for Diversity {
    fn name(&self) -> &'static str {
        "diversity"
    }

    fn score(&self, sample: &Sample<'_>) -> Result<Score> {
        let words: Vec<u64> = words(sample.text).map(hash).take(MAX_TOKENS).collect();
        if words.len() < MIN_WORDS {
            return Ok(Score::absent(format!("{} words, need {MIN_WORDS}", words.len())));
        }
        let distinct = [1, 2, 3].map(|n| mean_distinct(&words, n));
        Ok(Score::new(
            distinct[1],
            vec![
                ("words", words.len() as f64),
                ("distinct_1", distinct[0]),
                ("distinct_2", distinct[1]),
                ("distinct_3", distinct[2]),
            ],
        ))
    }
}

/// Mean of distinct-n over windows that overlap by half.
fn mean_distinct(words: &[u64], n: usize) -> f64 {
    let last = words.len().saturating_sub(WINDOW);
    let starts = (0..last).step_by(WINDOW / 2).chain([last]);
    let (mut sum, mut count) = (0.0, 0.0);
    let mut grams = HashSet::new();
    for start in starts {
        let window = &words[start..words.len().min(start + WINDOW)];
        grams.clear();
        grams.extend(window.windows(n));
        sum += grams.len() as f64 / (window.len() + 1 - n) as f64;
        count += 1.0;
    }
    sum / count
}

/// One minus the larger of two shares: 4-grams that occurred before (rep-4 of Welleck et al., arXiv
/// 1908.04319), and tokens inside loops (a period of at most 64 tokens, three times or more).
/// Tokens are words and symbols, so that loops of punctuation count.
#[derive(Debug, Clone, Copy, Default)]
pub struct Repetition;

impl Scorer for Repetition {
    fn name(&self) -> &'static str {
        "repetition"
    }

    fn score(&self, sample: &Sample<'_>) -> Result<Score> {
        let tokens: Vec<u64> = tokens(sample.text)
            .map(|token| match token {
                Token::Word(word) => hash(word),
                Token::Symbol(symbol) => mix(hash(symbol), 3),
            })
            .take(MAX_TOKENS)
            .collect();
        let n = tokens.len();
        if n < MIN_WORDS {
            return Ok(Score::absent(format!("{n} words and symbols, need {MIN_WORDS}")));
        }
        let grams: HashSet<&[u64]> = tokens.windows(4).collect();
        let repeated = 1.0 - grams.len() as f64 / (n - 3) as f64;
        let loops = Loops::find(&tokens);
        let looped = loops.covered as f64 / n as f64;
        Ok(Score::new(
            1.0 - repeated.max(looped),
            vec![
                ("tokens", n as f64),
                ("rep_4", repeated),
                ("looped_share", looped),
                ("loop_period", loops.period as f64),
                ("loop_tokens", loops.longest as f64),
                ("longest_repeated_run", longest_repeated_run(&tokens) as f64),
            ],
        ))
    }
}

/// Loops of a token sequence.
#[derive(Debug, PartialEq, Eq)]
struct Loops {
    /// Tokens in any loop.
    covered: usize,
    /// Tokens of the longest loop, and its period; 0 without a loop.
    longest: usize,
    period: usize,
}

impl Loops {
    fn find(tokens: &[u64]) -> Self {
        let mut is_covered = vec![false; tokens.len()];
        let (mut longest, mut period) = (0, 0);
        for p in 1..=MAX_PERIOD.min(tokens.len() / 3) {
            let mut run = 0;
            for i in p..=tokens.len() {
                if i < tokens.len() && tokens[i] == tokens[i - p] {
                    run += 1;
                    continue;
                }
                // `run` tokens equal those a period before: the loop has a period more.
                let len = run + p;
                if run >= 2 * p && len >= MIN_LOOP {
                    is_covered[i - len..i].fill(true);
                    if len > longest {
                        (longest, period) = (len, p);
                    }
                }
                run = 0;
            }
        }
        Self { covered: is_covered.iter().filter(|&&x| x).count(), longest, period }
    }
}

/// Length of the longest run of tokens that occurs twice (occurrences may overlap): binary search
/// over lengths, with polynomial hashes modulo 2^61 - 1.
fn longest_repeated_run(tokens: &[u64]) -> usize {
    let (mut found, mut refuted) = (0, tokens.len());
    while refuted - found > 1 {
        let len = found + (refuted - found) / 2;
        if has_repeated_run(tokens, len) {
            found = len;
        } else {
            refuted = len;
        }
    }
    found
}

fn has_repeated_run(tokens: &[u64], len: usize) -> bool {
    const BASE: u64 = 0x1e3a_77b5_04f1_93d7;
    let first_power = (1..len).fold(1, |power, _| mul(power, BASE));
    let mut hash = 0;
    let mut starts: HashMap<u64, usize> = HashMap::with_capacity(tokens.len());
    for (i, &token) in tokens.iter().enumerate() {
        if i >= len {
            hash = (hash + MODULUS - mul(tokens[i - len] % MODULUS, first_power)) % MODULUS;
        }
        hash = (mul(hash, BASE) + token % MODULUS) % MODULUS;
        if i + 1 >= len {
            let start = i + 1 - len;
            match starts.get(&hash) {
                Some(&other) if tokens[other..other + len] == tokens[start..start + len] => return true,
                Some(_) => {}
                None => {
                    starts.insert(hash, start);
                }
            }
        }
    }
    false
}

const MODULUS: u64 = (1 << 61) - 1;

fn mul(a: u64, b: u64) -> u64 {
    (u128::from(a) * u128::from(b) % u128::from(MODULUS)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn loops_have_period_and_extent() {
        let mut tokens: Vec<u64> = (100..120).collect();
        tokens.extend((0..30).map(|i| i % 5));
        tokens.extend(200..210);
        assert_eq!(Loops::find(&tokens), Loops { covered: 30, longest: 30, period: 5 });
        tokens.truncate(20 + 14);
        assert_eq!(Loops::find(&tokens).covered, 0);
    }

    proptest! {
        #[test]
        fn repeated_runs_equal_a_search_by_pairs(tokens in prop::collection::vec(0u64..4, 0..60)) {
            let common = |i: usize, j: usize| {
                tokens[i..].iter().zip(&tokens[j..]).take_while(|(a, b)| a == b).count()
            };
            let n = tokens.len();
            let longest = (0..n).flat_map(|i| (i + 1..n).map(move |j| common(i, j))).max().unwrap_or(0);
            prop_assert_eq!(longest_repeated_run(&tokens), longest);
        }
    }
}
