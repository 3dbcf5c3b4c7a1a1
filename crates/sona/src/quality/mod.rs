//! Quality of texts and data sets: scorers, their report and alerts.
//!
//! A score is a number from 0 to 1 with the quantities it was computed from, or absent with the
//! reason where it does not apply; [`Quality`] combines those that do. Scores order texts of one
//! kind. They do not say that a text is true.

mod alert;
mod coherence;
mod ngrams;
mod report;
mod schema;
mod temporal;
mod uniqueness;

pub use alert::{Alert, AlertRule, Alerts};
pub use coherence::Coherence;
pub use ngrams::{Diversity, Repetition};
pub use report::{Quality, QualityReport, Scored};
pub use schema::SchemaCompliance;
pub use temporal::TemporalRealism;
pub use uniqueness::{History, Uniqueness};

use serde_json::Value;

use crate::error::Result;

/// Text to be scored, with what scorers compare it with.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample<'a> {
    /// The text: an answer, or a data set as JSON lines.
    pub text: &'a str,
    /// JSON Schema that the text was to follow.
    pub schema: Option<&'a Value>,
    /// Previous outputs of the same tenant.
    pub history: Option<&'a History>,
    /// Current Unix time in milliseconds; timestamps after it are future dates.
    pub now_ms: Option<u64>,
}

impl<'a> Sample<'a> {
    /// Makes a sample of a text alone.
    pub fn new(text: &'a str) -> Self {
        Self { text, ..Self::default() }
    }
}

/// Result of a [`Scorer`].
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// Score from 0 (worst) to 1; `None` if the scorer does not apply to the sample.
    pub value: Option<f64>,
    /// Quantities from which it was computed, by name.
    pub evidence: Vec<(&'static str, f64)>,
    /// Remark for people: the reason for an absent score, the first fault.
    pub note: Option<String>,
}

impl Score {
    /// Makes a score. A value outside 0 to 1 is clamped; NaN makes the score absent.
    pub fn new(value: f64, evidence: Vec<(&'static str, f64)>) -> Self {
        let value = (!value.is_nan()).then(|| value.clamp(0.0, 1.0));
        Self { value, evidence, note: None }
    }

    /// Makes an absent score.
    pub fn absent(reason: impl Into<String>) -> Self {
        Self { value: None, evidence: Vec::new(), note: Some(reason.into()) }
    }

    /// Adds a remark.
    #[must_use]
    pub fn with_note(mut self, note: Option<String>) -> Self {
        self.note = note;
        self
    }

    /// Quantity of the evidence.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.evidence.iter().find(|(key, _)| *key == name).map(|&(_, value)| value)
    }
}

/// Measure of one aspect of a text.
pub trait Scorer: Send + Sync {
    /// Name in reports and alerts, unique within a [`Quality`].
    fn name(&self) -> &'static str;

    /// Scores a sample.
    ///
    /// # Errors
    /// Errors of a model behind the scorer. A bad sample is no error: its score is low or absent.
    fn score(&self, sample: &Sample<'_>) -> Result<Score>;
}

#[cfg(test)]
mod tests;
