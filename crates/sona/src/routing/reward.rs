//! Reward of a decision.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Formula of the reward: `quality * (1 - latency_weight + latency_weight * speed)`, where `quality
/// = (outcome + 1) / 2` and `speed = target / (target + latency)`.
///
/// A fast answer that is wrong earns nothing; a slow answer that is right loses at most
/// `latency_weight`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RewardFormula {
    /// Share of the reward that depends on latency, 0 to 1.
    pub latency_weight: f64,
    /// Latency whose speed is 1/2.
    pub target: Duration,
}

impl Default for RewardFormula {
    fn default() -> Self {
        Self { latency_weight: 0.3, target: Duration::from_secs(2) }
    }
}

impl RewardFormula {
    pub(super) fn check(&self) -> Result<()> {
        let weight = self.latency_weight;
        if !(0.0..=1.0).contains(&weight) {
            return Err(Error::Setting {
                name: "latency_weight",
                value: weight.to_string(),
                range: "0 to 1",
            });
        }
        if self.target.is_zero() {
            return Err(Error::Setting { name: "target", value: "0".into(), range: "above 0" });
        }
        Ok(())
    }

    /// Reward of an outcome in -1 to 1 after `latency`, in 0 to 1.
    ///
    /// # Errors
    /// [`Error::Input`] for an outcome that is NaN or out of range.
    pub fn reward(&self, outcome: f64, latency: Duration) -> Result<f64> {
        if !(-1.0..=1.0).contains(&outcome) {
            return Err(Error::Input { what: "outcome", value: outcome, range: "-1 to 1" });
        }
        let target = self.target.as_secs_f64();
        let speed = target / (target + latency.as_secs_f64());
        Ok((outcome + 1.0) / 2.0 * (1.0 - self.latency_weight + self.latency_weight * speed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewards_follow_the_formula() {
        let formula = RewardFormula { latency_weight: 0.5, target: Duration::from_secs(1) };
        let reward = |outcome, ms| formula.reward(outcome, Duration::from_millis(ms)).unwrap();
        assert_eq!(reward(1.0, 0), 1.0);
        assert_eq!(reward(1.0, 1000), 0.75);
        assert_eq!(reward(0.0, 3000), 0.3125);
        assert_eq!(reward(-1.0, 0), 0.0);
        assert!((formula.reward(1.0, Duration::MAX).unwrap() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn outcomes_out_of_range_are_refused() {
        for outcome in [f64::NAN, 1.01, -1.01, f64::INFINITY] {
            let error = RewardFormula::default().reward(outcome, Duration::ZERO).unwrap_err();
            assert_eq!(error.to_string(), format!("outcome is {outcome}; it must be -1 to 1"));
        }
    }
}
