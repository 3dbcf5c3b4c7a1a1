//! Uniqueness against previous outputs, by `MinHash`.

use std::collections::{HashSet, VecDeque};

use crate::error::{Error, Result};
use crate::lexical::{hash, mix, words};

use super::{Sample, Score, Scorer};

/// Hash functions per signature: the standard error of an estimated similarity is at most 0.045.
const HASHES: usize = 128;
/// Words per shingle.
const SHINGLE: usize = 3;
/// Words of a text that are read.
const MAX_WORDS: usize = 50_000;

type Signature = Box<[u32; HASHES]>;

/// Signatures of the latest outputs of one tenant, 512 bytes each; keep one per tenant.
#[derive(Debug, Clone)]
pub struct History {
    signatures: VecDeque<Signature>,
    capacity: usize,
}

impl History {
    /// Makes an empty history of at most `capacity` outputs.
    ///
    /// # Errors
    /// [`Error::Setting`] for a capacity of 0.
    pub fn new(capacity: usize) -> Result<Self> {
        if capacity == 0 {
            return Err(Error::Setting { name: "capacity", value: "0".into(), range: "at least 1" });
        }
        Ok(Self { signatures: VecDeque::new(), capacity })
    }

    /// Adds an output; the oldest leaves a full history. False for texts of less than three words,
    /// which are not kept.
    pub fn push(&mut self, text: &str) -> bool {
        let Some(signature) = signature(text) else { return false };
        if self.signatures.len() == self.capacity {
            self.signatures.pop_front();
        }
        self.signatures.push_back(signature);
        true
    }

    /// Number of outputs kept.
    pub fn len(&self) -> usize {
        self.signatures.len()
    }

    /// True without any output.
    pub fn is_empty(&self) -> bool {
        self.signatures.is_empty()
    }
}

/// One minus the largest Jaccard similarity to an output in the sample's [`History`], estimated by
/// `MinHash` (Broder 1997) over shingles of three words.
#[derive(Debug, Clone, Copy, Default)]
pub struct Uniqueness;

impl Scorer for Uniqueness {
    fn name(&self) -> &'static str {
        "uniqueness"
    }

    fn score(&self, sample: &Sample<'_>) -> Result<Score> {
        let Some(history) = sample.history.filter(|history| !history.is_empty()) else {
            return Ok(Score::absent("no previous outputs"));
        };
        let Some(signature) = signature(sample.text) else {
            return Ok(Score::absent(format!("less than {SHINGLE} words")));
        };
        let equal = |other: &Signature| signature.iter().zip(other.iter()).filter(|(a, b)| a == b).count();
        let (age, most) = history
            .signatures
            .iter()
            .rev()
            .map(equal)
            .enumerate()
            .fold((0, 0), |best, (age, count)| if count > best.1 { (age, count) } else { best });
        let similarity = most as f64 / HASHES as f64;
        let mut evidence = vec![("outputs", history.len() as f64), ("largest_similarity", similarity)];
        if most > 0 {
            evidence.push(("outputs_ago", (age + 1) as f64));
        }
        Ok(Score::new(1.0 - similarity, evidence))
    }
}

/// Smallest hash of the text's shingles under each hash function; `None` without a shingle.
fn signature(text: &str) -> Option<Signature> {
    let words: Vec<u64> = words(text).map(hash).take(MAX_WORDS).collect();
    let shingles: HashSet<u64> =
        words.windows(SHINGLE).map(|w| w.iter().fold(0, |sum, &word| mix(sum ^ word, 4))).collect();
    if shingles.is_empty() {
        return None;
    }
    let mut signature = Box::new([u32::MAX; HASHES]);
    for shingle in shingles {
        for (i, least) in signature.iter_mut().enumerate() {
            *least = (*least).min(mix(shingle, i as u64 + 5) as u32);
        }
    }
    Some(signature)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn similarity(a: &str, b: &str) -> f64 {
        let mut history = History::new(1).unwrap();
        assert!(history.push(a));
        let sample = Sample { history: Some(&history), ..Sample::new(b) };
        Uniqueness.score(&sample).unwrap().get("largest_similarity").unwrap()
    }

    #[test]
    fn estimates_are_close_to_the_jaccard_similarity() {
        let text = |words: std::ops::Range<u32>| words.map(|i| format!("w{i} ")).collect::<String>();
        // 98 shingles each, 48 of them common: 48 / 148.
        let estimate = similarity(&text(0..100), &text(50..150));
        assert!((estimate - 48.0 / 148.0).abs() < 0.13, "{estimate}");
        assert_eq!(similarity(&text(0..50), &text(0..50)), 1.0);
        assert!(similarity(&text(0..50), &text(50..100)) < 0.03);
    }

    #[test]
    fn history_is_bounded() {
        assert!(History::new(0).is_err());
        let mut history = History::new(2).unwrap();
        for text in ["one two three", "four five six", "seven eight nine"] {
            assert!(history.push(text));
        }
        assert!(!history.push("too short"));
        let score =
            |text| Uniqueness.score(&Sample { history: Some(&history), ..Sample::new(text) }).unwrap();
        assert_eq!(score("one two three").value, Some(1.0));
        assert_eq!(score("four five six").value, Some(0.0));
        assert_eq!(score("four five six").get("outputs_ago"), Some(2.0));
    }
}
