//! Weighted report over several scorers.

use crate::error::{Error, Result};

use super::{Sample, Score, Scorer};

/// Scorers with their weights and thresholds.
#[derive(Default)]
pub struct Quality {
    scorers: Vec<Weighted>,
}

struct Weighted {
    scorer: Box<dyn Scorer>,
    weight: f64,
    threshold: Option<f64>,
}

/// Scores of one sample.
#[derive(Debug, Clone, PartialEq)]
pub struct QualityReport {
    /// Results in the order of the scorers.
    pub scores: Vec<Scored>,
    /// Weighted mean of the scores that apply; `None` if none does.
    pub overall: Option<f64>,
}

/// Result of one scorer in a report.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// Name of the scorer.
    pub name: &'static str,
    /// Its weight.
    pub weight: f64,
    /// Its result.
    pub score: Score,
    /// True if the score is at least the threshold; `None` without a score or a threshold.
    pub passes: Option<bool>,
}

impl Quality {
    /// Makes a report without scorers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a scorer with its weight in the mean and the least score that passes.
    ///
    /// # Errors
    /// [`Error::Setting`] for a weight that is negative or not finite, a threshold outside 0 to 1,
    /// or a name that is taken.
    pub fn add(&mut self, scorer: Box<dyn Scorer>, weight: f64, threshold: Option<f64>) -> Result<()> {
        let error = |name, value: String, range| Err(Error::Setting { name, value, range });
        if !(weight.is_finite() && weight >= 0.0) {
            return error("weight", weight.to_string(), "finite and at least 0");
        }
        if let Some(threshold) = threshold.filter(|x| !(0.0..=1.0).contains(x)) {
            return error("threshold", threshold.to_string(), "from 0 to 1");
        }
        if self.scorers.iter().any(|other| other.scorer.name() == scorer.name()) {
            return error("scorer", scorer.name().into(), "a name that no other scorer has");
        }
        self.scorers.push(Weighted { scorer, weight, threshold });
        Ok(())
    }

    /// Applies all scorers to a sample.
    ///
    /// # Errors
    /// The first error of a scorer.
    pub fn assess(&self, sample: &Sample<'_>) -> Result<QualityReport> {
        let mut scores = Vec::with_capacity(self.scorers.len());
        let (mut sum, mut weights) = (0.0, 0.0);
        for Weighted { scorer, weight, threshold } in &self.scorers {
            let score = scorer.score(sample)?;
            if let Some(value) = score.value {
                sum += weight * value;
                weights += weight;
            }
            let passes = score.value.zip(*threshold).map(|(value, threshold)| value >= threshold);
            scores.push(Scored { name: scorer.name(), weight: *weight, score, passes });
        }
        Ok(QualityReport { scores, overall: (weights > 0.0).then(|| sum / weights) })
    }
}

impl QualityReport {
    /// Score by the name of its scorer; `overall` is the weighted mean.
    pub fn value(&self, name: &str) -> Option<f64> {
        if name == "overall" {
            return self.overall;
        }
        self.scores.iter().find(|scored| scored.name == name)?.score.value
    }

    /// True if no score is below its threshold.
    pub fn passes(&self) -> bool {
        self.scores.iter().all(|scored| scored.passes != Some(false))
    }
}
