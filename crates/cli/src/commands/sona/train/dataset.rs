//! Held-out split and removal of duplicates.

use std::collections::{HashMap, HashSet};

use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;

/// Words of a shingle.
const SHINGLE: usize = 5;
/// Smallest Jaccard similarity of near-duplicates.
const SIMILARITY: f64 = 0.8;
/// Bands of `MinHash` values, and values of a band: texts of similarity 0.8 share a band with
/// probability `1 - (1 - 0.8^4)^20` = 0.99997.
const BANDS: usize = 20;
const ROWS: usize = 4;

/// Duplicates that are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Dedup {
    /// None
    Off,
    /// Equal texts, but for case and white space
    Exact,
    /// Also texts that share 4 of 5 shingles of 5 words
    Near,
}

/// A training example and the text that identifies it.
pub(in super::super) struct Example<T> {
    text: String,
    pub(in super::super) value: T,
    level: Level,
}

/// Fields of a line that place its example in a curriculum; none for windows of a text.
#[derive(Debug, Default)]
pub(in super::super) struct Level {
    /// File and number of the line.
    pub(super) place: String,
    pub(super) phase: Option<Value>,
    pub(super) difficulty: Option<Value>,
}

impl<T> Example<T> {
    pub(in super::super) fn new(text: String, value: T) -> Self {
        Self { text, value, level: Level::default() }
    }

    /// The example with the level of its line.
    pub(in super::super) fn with_level(self, level: Level) -> Self {
        Self { level, ..self }
    }

    /// Text that identifies it: its JSON line, or its tokens.
    pub(in super::super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn into_parts(self) -> (T, Level) {
        (self.value, self.level)
    }
}

impl Level {
    /// Level of a line; its other fields are ignored.
    pub(in super::super) fn new(place: String, line: &Value) -> Self {
        let [phase, difficulty] = ["phase", "difficulty"].map(|name| line.get(name).cloned());
        Self { place, phase, difficulty }
    }
}

/// Numbers of examples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(super) struct Counts {
    /// Examples that are trained on.
    pub(super) trained: usize,
    /// Examples that are held out.
    pub(super) held_out: usize,
    /// Examples removed because an equal one is kept.
    pub(super) duplicates: usize,
    /// Examples removed because a similar one is kept.
    pub(super) near_duplicates: usize,
    /// Masked copies among those that are trained on.
    pub(super) masked: usize,
}

/// Removes duplicates from held-out and training examples. Held-out ones are kept where both have
/// one: a measurement on trained examples says nothing.
pub(super) fn remove_duplicates<T>(
    held_out: &mut Vec<Example<T>>,
    data: &mut Vec<Example<T>>,
    dedup: Dedup,
) -> Counts {
    let mut counts = Counts::default();
    if dedup != Dedup::Off {
        let mut seen = Seen::default();
        for list in [held_out, data] {
            list.retain(|example| match seen.add(&example.text, dedup) {
                Found::New => true,
                Found::Equal => {
                    counts.duplicates += 1;
                    false
                }
                Found::Similar => {
                    counts.near_duplicates += 1;
                    false
                }
            });
        }
    }
    counts
}

/// Splits examples by a hash of their normalized text: an example stays on its side when others
/// come or go, and equal ones are on one side. About `share` of distinct texts are held out.
pub(super) fn split<T>(data: Vec<Example<T>>, share: f32) -> (Vec<Example<T>>, Vec<Example<T>>) {
    let border = f64::from(share) * 2_f64.powi(64);
    data.into_iter().partition(|example| hash(normalized(&example.text).as_bytes(), 0) as f64 >= border)
}

enum Found {
    New,
    Equal,
    Similar,
}

/// Texts that were kept.
#[derive(Default)]
struct Seen {
    texts: HashSet<String>,
    shingles: Vec<HashSet<u64>>,
    /// Texts of each value of a band.
    bands: HashMap<(usize, u64), Vec<usize>>,
}

impl Seen {
    fn add(&mut self, text: &str, dedup: Dedup) -> Found {
        let text = normalized(text);
        if self.texts.contains(&text) {
            return Found::Equal;
        }
        if dedup == Dedup::Near {
            let shingles = shingles(&text);
            let keys: Vec<_> = min_hashes(&shingles).into_iter().enumerate().collect();
            let candidates = keys.iter().filter_map(|key| self.bands.get(key)).flatten();
            if candidates.copied().any(|other| jaccard(&shingles, &self.shingles[other]) >= SIMILARITY) {
                return Found::Similar;
            }
            for key in keys {
                self.bands.entry(key).or_default().push(self.shingles.len());
            }
            self.shingles.push(shingles);
        }
        self.texts.insert(text);
        Found::New
    }
}

/// Lower case, with single spaces.
fn normalized(text: &str) -> String {
    text.split_whitespace().map(str::to_lowercase).collect::<Vec<_>>().join(" ")
}

/// Hashes of all runs of [`SHINGLE`] words; a shorter text is one shingle.
fn shingles(text: &str) -> HashSet<u64> {
    let words: Vec<&str> = text.split(' ').collect();
    words.windows(SHINGLE.min(words.len())).map(|words| hash(words.join(" ").as_bytes(), 1)).collect()
}

/// One value for each band of `MinHash` (Broder, 1997).
fn min_hashes(shingles: &HashSet<u64>) -> Vec<u64> {
    let least = |seed: u64| shingles.iter().map(|shingle| mix(shingle ^ mix(seed))).min().unwrap_or(0);
    let band =
        |band: usize| (0..ROWS).fold(0, |value, row| mix(value ^ least((band * ROWS + row + 1) as u64)));
    (0..BANDS).map(band).collect()
}

fn jaccard(a: &HashSet<u64>, b: &HashSet<u64>) -> f64 {
    let common = a.intersection(b).count();
    common as f64 / (a.len() + b.len() - common).max(1) as f64
}

/// FNV-1a with a final mix: equal on all platforms and in all versions.
fn hash(bytes: &[u8], seed: u64) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ seed;
    mix(bytes.iter().fold(start, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)))
}

fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examples(texts: &[String]) -> Vec<Example<usize>> {
        texts.iter().enumerate().map(|(value, text)| Example::new(text.clone(), value)).collect()
    }

    #[test]
    fn a_split_is_stable_and_keeps_duplicates_together() {
        let texts: Vec<String> = (0..2000).map(|number| format!("Example {} of all", number / 2)).collect();
        let (data, held_out) = split(examples(&texts), 0.25);
        assert_eq!(data.len() + held_out.len(), 2000);
        assert!((400..600).contains(&held_out.len()), "{}", held_out.len());
        let side: HashSet<&String> = held_out.iter().map(|example| &example.text).collect();
        assert!(data.iter().all(|example| !side.contains(&example.text)));
        // Half of the examples, in other order and spelling, are on the same sides.
        let fewer: Vec<String> =
            texts.iter().rev().step_by(2).map(|t| t.to_uppercase().replace(' ', "  ")).collect();
        let (_, again) = split(examples(&fewer), 0.25);
        let again: HashSet<String> = again.iter().map(|example| normalized(&example.text)).collect();
        assert_eq!(again, side.iter().map(|text| normalized(text)).collect::<HashSet<_>>());
        assert!(split(examples(&texts), 0.0).1.is_empty());
    }

    #[test]
    fn duplicates_are_counted_and_the_held_out_ones_stay() {
        let long: String = (0..60).map(|word| format!("word{word} ")).collect();
        let similar = long.replace("word59", "other");
        let distinct: String = (0..60).map(|word| format!("thing{word} ")).collect();
        let texts = [long.clone(), "A b".into(), "a  B\n".into(), similar, distinct.clone()];
        for (dedup, kept, duplicates, near_duplicates) in [
            (Dedup::Off, vec![0, 1, 2, 3, 4], 0, 0),
            (Dedup::Exact, vec![0, 1, 3], 2, 0),
            (Dedup::Near, vec![0, 1], 2, 1),
        ] {
            let (mut data, mut held_out) = (examples(&texts), examples(std::slice::from_ref(&distinct)));
            let counts = remove_duplicates(&mut held_out, &mut data, dedup);
            assert_eq!((counts.duplicates, counts.near_duplicates), (duplicates, near_duplicates));
            assert_eq!(held_out.len(), 1, "{dedup:?}");
            let left: Vec<usize> = data.iter().map(|example| example.value).collect();
            assert_eq!(left, kept, "{dedup:?}");
        }
    }

    #[test]
    fn similar_texts_are_found_and_others_are_not() {
        let text = |from: usize| (from..from + 100).map(|word| format!("w{word} ")).collect::<String>();
        let mut seen = Seen::default();
        assert!(matches!(seen.add(&text(0), Dedup::Near), Found::New));
        assert!(matches!(seen.add(&text(2), Dedup::Near), Found::Similar));
        assert!(matches!(seen.add(&text(50), Dedup::Near), Found::New), "half of it is other text");
    }
}
