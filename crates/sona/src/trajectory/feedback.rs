//! Feedback on a trajectory.

use serde::{Deserialize, Serialize};

use super::{MAX_TOKENS, check_len};
use crate::error::{Error, Result};
use crate::rating::Rating;

/// Feedback of one occasion; a field is absent where the user said nothing about it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Feedback {
    /// Rating of the response.
    pub rating: Option<Rating>,
    /// Token ids of the response that would have been right.
    pub correction: Option<Vec<u32>>,
    /// True if the response was accepted, false if it was rejected.
    pub accepted: Option<bool>,
    /// Signals from the user's behaviour.
    pub signals: Signals,
    /// Rewards of the steps of the response, in order; finite.
    pub step_rewards: Vec<f32>,
    /// Wall clock of the feedback, in milliseconds since 1970.
    pub created_ms: u64,
}

/// Implicit signals; absent where not observed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signals {
    /// The response was asked for again.
    pub regenerated: Option<bool>,
    /// The response was copied.
    pub copied: Option<bool>,
    /// The conversation ended without an action on the response.
    pub abandoned: Option<bool>,
    /// Token edits between the response and what the user made of it.
    pub edit_distance: Option<u32>,
}

impl Feedback {
    /// Checks that it says something, and its sizes.
    ///
    /// # Errors
    /// [`Error::Record`] or [`Error::NotFinite`].
    pub fn check(&self) -> Result<()> {
        let is_silent = self.rating.is_none()
            && self.correction.is_none()
            && self.accepted.is_none()
            && self.step_rewards.is_empty()
            && self.signals == Signals::default();
        if is_silent {
            let reason = "give a rating, a correction, an acceptance, a signal or step rewards".to_owned();
            return Err(Error::Record { field: "feedback", reason });
        }
        if let Some(correction) = &self.correction {
            if correction.is_empty() {
                return Err(Error::Record { field: "correction", reason: "it has no tokens".to_owned() });
            }
            check_len("correction", correction.len(), MAX_TOKENS)?;
        }
        check_len("step_rewards", self.step_rewards.len(), MAX_TOKENS)?;
        if self.step_rewards.iter().any(|reward| !reward.is_finite()) {
            return Err(Error::NotFinite { what: "step_rewards" });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feedback_without_content_is_refused() {
        let signals = Signals { copied: Some(false), ..Signals::default() };
        for good in [
            Feedback { rating: Some(Rating::new(0.0).expect("in range")), ..Feedback::default() },
            Feedback { correction: Some(vec![0; 100_000]), ..Feedback::default() },
            Feedback { accepted: Some(false), ..Feedback::default() },
            Feedback { signals, ..Feedback::default() },
            Feedback { step_rewards: vec![-1.5], ..Feedback::default() },
        ] {
            good.check().expect("valid");
        }
        for (bad, part) in [
            (Feedback::default(), "feedback"),
            (Feedback { correction: Some(vec![]), ..Feedback::default() }, "no tokens"),
            (Feedback { correction: Some(vec![0; MAX_TOKENS + 1]), ..Feedback::default() }, "1048577"),
            (Feedback { step_rewards: vec![0.0, f32::NAN], ..Feedback::default() }, "step_rewards"),
        ] {
            let error = bad.check().expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
