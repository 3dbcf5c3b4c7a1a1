//! Options of online learning.

use serde::{Deserialize, Serialize};

use crate::continual::{ConsolidationSettings, EwcSettings, Gate, ReplaySettings};
use crate::error::{Error, Result};

/// Options of an [`OnlineLearner`](super::OnlineLearner).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct OnlineOptions {
    /// Lessons after which the state is judged and saved.
    pub gate_lessons: u64,
    /// Judgement of the loss at held-out ordinary text.
    pub gate: Gate,
    /// Judgement of texts that are rated: loss before the lesson beside that under the base model.
    /// A preference makes some of them likelier and others less; ratings against all text of a kind
    /// that the adapter has long ceased to write are poisoned.
    pub rated: Gate,
    /// Ordinary texts to hold on to from the first lesson on.
    pub ordinary_texts: u64,
    /// Ordinary texts that are added with each judgement.
    pub fresh_texts: u64,
    /// Other ordinary texts, for the gate.
    pub held_out_texts: u64,
    /// Mean log-probability under the base model, in nats, below which a correction or a text that
    /// is rated above 0 is an outlier.
    pub outlier_log_probability: f64,
    /// Consolidation of the lessons.
    pub consolidation: ConsolidationOptions,
}

/// Options of a consolidation of an adapter's lessons.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ConsolidationOptions {
    /// New lessons from which on there is something to consolidate.
    pub lessons: u64,
    /// Sample of all lessons: bytes of its observations, tasks, share that is held out. The lessons
    /// between two accepted consolidations are a task.
    pub replay: ReplaySettings,
    /// Protection of former tasks.
    pub ewc: EwcSettings,
    /// Training and gate; an example is 16 tokens.
    pub training: ConsolidationSettings,
    /// Most tokens from which the importance of parameters is estimated.
    pub fisher_positions: usize,
}

impl Default for ConsolidationOptions {
    fn default() -> Self {
        let replay = ReplaySettings { tenant_bytes: 32 << 20, max_tasks: 8, ..ReplaySettings::default() };
        // Measured with the built-in model (docs/sona.md): more steps or a larger rate learn the
        // sample by heart, a stronger penalty costs more of the gain than of the forgetting.
        let ewc = EwcSettings { strength: 0.1, ..EwcSettings::default() };
        let training = ConsolidationSettings {
            steps: 64,
            learning_rate: 1e-4,
            gate: Gate { needs_gain: true, ..Gate::default() },
            ..ConsolidationSettings::default()
        };
        Self { lessons: 64, replay, ewc, training, fisher_positions: 512 }
    }
}

impl Default for OnlineOptions {
    fn default() -> Self {
        // Random tokens of a vocabulary of 32,000 have -10.4 under a model that knows nothing, and
        // less under one that does.
        let outlier_log_probability = -12.0;
        Self {
            gate_lessons: 16,
            gate: Gate::default(),
            rated: Gate { tolerance: 0.5, min_examples: 8, ..Gate::default() },
            ordinary_texts: 16,
            fresh_texts: 4,
            held_out_texts: 5,
            outlier_log_probability,
            consolidation: ConsolidationOptions::default(),
        }
    }
}

impl OnlineOptions {
    pub(super) fn check(&self) -> Result<()> {
        self.gate.check()?;
        self.rated.check()?;
        self.consolidation.training.check()?;
        let positive = [
            ("gate_lessons", self.gate_lessons),
            ("ordinary_texts", self.ordinary_texts),
            ("held_out_texts", self.held_out_texts),
            ("consolidation.lessons", self.consolidation.lessons),
            ("consolidation.fisher_positions", self.consolidation.fisher_positions as u64),
        ];
        for (name, value) in positive {
            if value == 0 {
                return Err(Error::Setting { name, value: "0".to_owned(), range: "at least 1" });
            }
        }
        if self.outlier_log_probability.is_nan() {
            let value = "NaN".to_owned();
            return Err(Error::Setting { name: "outlier_log_probability", value, range: "a number" });
        }
        Ok(())
    }
}
