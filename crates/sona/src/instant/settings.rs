//! Settings of the instant loop.

use crate::error::{Error, Result};

/// Settings of an [`InstantLearner`](super::InstantLearner).
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Rank of the update of the hidden state, 0 to 4.
    pub hidden_rank: usize,
    /// Rank of the update of the logits, 0 to 4.
    pub logits_rank: usize,
    /// Seed of the first values of `A` and `C`.
    pub seed: u64,
    /// Learning rate of `A`, `B` and `C`.
    pub rate: f32,
    /// Learning rate of `D`, whose columns each belong to one token.
    pub column_rate: f32,
    /// Factor of both learning rates for ratings: one says less of each token than a correction.
    pub rating_rate: f32,
    /// Updates after which the rates are `1 / sqrt(2)` of the first ones: they fall with
    /// `1 / sqrt(1 + updates / decay_updates)`. Infinite for constant rates.
    pub decay_updates: f32,
    /// Largest norm of a gradient; longer ones are scaled down.
    pub largest_gradient: f32,
    /// Most positions of one update; a longer lesson is several updates.
    pub positions: usize,
    /// Most steps of an update with fewer positions.
    pub steps: usize,
    /// Weight of the divergence from the base model at ordinary positions
    /// ([`InstantLearner::observe_ordinary`](super::InstantLearner::observe_ordinary)), beside the
    /// mean loss of the lesson.
    pub anchor_weight: f32,
    /// Ordinary positions in an update, over all its steps.
    pub anchors: usize,
    /// Ordinary positions that are kept.
    pub kept_anchors: usize,
    /// Trust region: most nats by which an update, with all its steps, may move the mean divergence
    /// from the base model at its own positions.
    pub largest_step: f64,
    /// Trust region: largest product of the norms of the two factors of an update.
    pub largest_norm: f32,
    /// Weight of a rating in the running baseline of ratings.
    pub baseline_weight: f32,
    /// Smallest share of a rating that teaches, however close it is to the baseline.
    pub least_advantage: f32,
    /// Nats by which ratings may move the log-probability of a token from that of the base model.
    pub rating_clip: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            hidden_rank: 4,
            logits_rank: 4,
            seed: 0,
            rate: 1e-4,
            column_rate: 5e-4,
            rating_rate: 4.0,
            decay_updates: 500.0,
            largest_gradient: 1.0,
            positions: 64,
            steps: 8,
            anchor_weight: 30.0,
            anchors: 64,
            kept_anchors: 4096,
            largest_step: 0.05,
            largest_norm: 64.0,
            baseline_weight: 0.1,
            least_advantage: 0.25,
            rating_clip: 3.0,
        }
    }
}

impl Settings {
    /// Checks all settings but the ranks, which [`Shape`](super::Shape) checks.
    ///
    /// # Errors
    /// [`Error::Setting`].
    pub fn check(&self) -> Result<()> {
        let positive = [
            ("rate", f64::from(self.rate)),
            ("column_rate", f64::from(self.column_rate)),
            ("rating_rate", f64::from(self.rating_rate)),
            ("decay_updates", f64::from(self.decay_updates)),
            ("largest_gradient", f64::from(self.largest_gradient)),
            ("largest_step", self.largest_step),
            ("largest_norm", f64::from(self.largest_norm)),
            ("rating_clip", self.rating_clip),
        ];
        for (name, value) in positive {
            if value.is_nan() || value <= 0.0 {
                return Err(Error::Setting { name, value: value.to_string(), range: "above 0" });
            }
        }
        let shares = [("baseline_weight", self.baseline_weight), ("least_advantage", self.least_advantage)];
        for (name, value) in shares {
            if !(0.0..=1.0).contains(&value) {
                return Err(Error::Setting { name, value: value.to_string(), range: "0 to 1" });
            }
        }
        if self.anchor_weight.is_nan() || self.anchor_weight < 0.0 {
            let value = self.anchor_weight.to_string();
            return Err(Error::Setting { name: "anchor_weight", value, range: "at least 0" });
        }
        for (name, value) in [("positions", self.positions), ("steps", self.steps)] {
            if value == 0 {
                return Err(Error::Setting { name, value: "0".to_owned(), range: "at least 1" });
            }
        }
        Ok(())
    }
}
