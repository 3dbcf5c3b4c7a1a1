//! Agreement between answers from several perspectives, and its calibration.

use crate::error::{Error, Result};
use crate::lexical::{guard, normalized};
use crate::model::{Embed, Generate, GenerateText, dot, embed_unit};

/// Instructions for three independent answers.
pub const PERSPECTIVES: [&str; 3] = [
    "Answer directly.",
    "Think step by step, then answer.",
    "List what could be wrong with the obvious answer, then answer.",
];

/// Asks for the line that is compared.
const FINAL_LINE: &str = "End with one line: `Answer: ` and the answer alone.";
const MARK: &str = "answer:";

/// Equality of answers.
#[derive(Clone, Copy)]
pub enum Matching<'a> {
    /// Equal words and symbols, case and sentence punctuation ignored.
    Exact,
    /// Embeddings of at least this cosine, and equal numbers, negations and names.
    Semantic(&'a dyn Embed, f32),
}

/// Answer from one perspective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The instruction.
    pub perspective: String,
    /// Text after the last `Answer:`, or all of it.
    pub answer: String,
    /// Number of its group of equal answers, from 0 in order of appearance.
    pub group: usize,
}

/// Agreement of answers. It says how stable the model's answer is; [`Calibration`] tells what that
/// was worth on checked answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Agreement {
    /// Answer of the largest group, the earlier one of equal size.
    pub answer: String,
    /// Share of the answers in that group.
    pub agreement: f64,
    /// All answers.
    pub answers: Vec<Answer>,
    /// Perspectives that the budget did not allow.
    pub skipped: usize,
}

/// Asks for an independent answer per perspective and groups equal ones. Each request has a seed of
/// its own; `tokens` bounds the sum of their [`GenerateText::max_tokens`].
///
/// # Errors
/// [`Error::Setting`] if the budget does not allow two answers; those of the models.
pub fn agreement(
    model: &dyn Generate,
    request: &GenerateText,
    perspectives: &[&str],
    matching: Matching<'_>,
    tokens: usize,
) -> Result<Agreement> {
    let allowed = (tokens / request.max_tokens.max(1)).min(perspectives.len());
    if allowed < 2 {
        let value = format!("{tokens} for {} perspectives", perspectives.len());
        return Err(Error::Setting { name: "tokens", value, range: "enough for two answers" });
    }
    let mut groups = Groups { matching, members: Vec::new() };
    let mut answers = Vec::with_capacity(allowed);
    for (i, perspective) in perspectives[..allowed].iter().enumerate() {
        let text = model.generate(&GenerateText {
            prompt: format!("{}\n\n{perspective} {FINAL_LINE}", request.prompt),
            seed: request.seed.wrapping_add(i as u64),
            ..request.clone()
        })?;
        let answer = final_answer(&text).to_owned();
        let group = groups.add(&answer)?;
        answers.push(Answer { perspective: (*perspective).to_owned(), answer, group });
    }
    let size = |group: usize| answers.iter().filter(|answer| answer.group == group).count();
    // `rev`: `max_by_key` takes the last of equals.
    let largest = (0..groups.members.len()).rev().max_by_key(|&group| size(group)).unwrap_or(0);
    let first = answers.iter().find(|answer| answer.group == largest);
    Ok(Agreement {
        answer: first.map(|answer| answer.answer.clone()).unwrap_or_default(),
        agreement: size(largest) as f64 / answers.len() as f64,
        skipped: perspectives.len() - allowed,
        answers,
    })
}

/// Text after the last `Answer:`, or all of the text.
fn final_answer(text: &str) -> &str {
    let at = text.to_ascii_lowercase().rfind(MARK);
    at.map_or(text, |at| &text[at + MARK.len()..]).trim().trim_matches(['*', '`'])
}

/// First answers of the groups, in the form that is compared.
struct Groups<'a> {
    matching: Matching<'a>,
    members: Vec<(String, Vec<f32>)>,
}

impl Groups<'_> {
    /// Number of the group of an answer; a new one if it equals none.
    fn add(&mut self, answer: &str) -> Result<usize> {
        let (form, embedding, least) = match self.matching {
            Matching::Exact => (normalized(answer), Vec::new(), 0.0),
            Matching::Semantic(embed, cosine) => (guard(answer), embed_unit(embed, answer)?, cosine),
        };
        let is_same = |(other, known): &(String, Vec<f32>)| {
            *other == form && known.len() == embedding.len() && dot(known, &embedding) >= least
        };
        if let Some(group) = self.members.iter().position(is_same) {
            return Ok(group);
        }
        self.members.push((form, embedding));
        Ok(self.members.len() - 1)
    }
}

/// Number of bins of a [`Calibration`].
const BINS: usize = 10;
/// Fewest checked answers in a bin for an estimate.
const MIN_SAMPLES: u32 = 10;

/// Correctness of checked answers by their agreement, in ten bins.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Calibration {
    bins: [Bin; BINS],
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Bin {
    correct: u32,
    total: u32,
    agreement: f64,
}

/// Share of correct answers among checked ones of like agreement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The share.
    pub correct: f64,
    /// Wilson's 95 % interval.
    pub interval: (f64, f64),
    /// Checked answers.
    pub samples: u32,
}

impl Calibration {
    /// Counts an answer whose correctness is known.
    ///
    /// # Errors
    /// [`Error::Setting`] for an agreement outside 0 to 1.
    pub fn record(&mut self, agreement: f64, is_correct: bool) -> Result<()> {
        if !(0.0..=1.0).contains(&agreement) {
            let value = agreement.to_string();
            return Err(Error::Setting { name: "agreement", value, range: "from 0 to 1" });
        }
        let bin = &mut self.bins[bin_of(agreement)];
        bin.correct = bin.correct.saturating_add(u32::from(is_correct));
        bin.total = bin.total.saturating_add(1);
        bin.agreement += agreement;
        Ok(())
    }

    /// Estimates the correctness of an answer; `None` while less than ten answers of like agreement
    /// were checked.
    pub fn estimate(&self, agreement: f64) -> Option<Estimate> {
        let bin = self.bins[bin_of(agreement)];
        if bin.total < MIN_SAMPLES {
            return None;
        }
        let (n, p) = (f64::from(bin.total), f64::from(bin.correct) / f64::from(bin.total));
        let z2 = 1.959_964_f64.powi(2);
        let center = (p + z2 / (2.0 * n)) / (1.0 + z2 / n);
        let half = (z2 * (p * (1.0 - p) / n + z2 / (4.0 * n * n))).sqrt() / (1.0 + z2 / n);
        Some(Estimate { correct: p, interval: (center - half, center + half), samples: bin.total })
    }

    /// Expected calibration error of agreement read as a probability: the mean distance between
    /// agreement and correctness over bins; `None` without checked answers.
    pub fn error(&self) -> Option<f64> {
        let total: f64 = self.bins.iter().map(|bin| f64::from(bin.total)).sum();
        let distance = |bin: &Bin| (bin.agreement - f64::from(bin.correct)).abs();
        (total > 0.0).then(|| self.bins.iter().map(distance).sum::<f64>() / total)
    }
}

fn bin_of(agreement: f64) -> usize {
    ((agreement * BINS as f64) as usize).min(BINS - 1)
}
