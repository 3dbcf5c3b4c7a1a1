//! Judges: the verdict on one trajectory, by rules, by a program, or by a model.

mod command;
mod model;
mod rules;

use serde::{Deserialize, Serialize};

use super::item::Verdict;
use crate::error::Result;

pub use self::command::CommandJudge;
pub use self::model::ModelJudge;
pub(in crate::bank) use self::model::as_json;
pub use self::rules::{Rule, RulesJudge};

/// Trajectory as a judge sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Evidence<'a> {
    /// Task of the request.
    pub task: &'a str,
    /// Response, or the log of the steps that were taken.
    pub response: &'a str,
    /// Exit code of what the response ran; `None` if it ran nothing.
    pub exit_code: Option<i32>,
}

/// Verdict with its grounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// Outcome.
    pub verdict: Verdict,
    /// Quality, 0 to 1; `None` if the judge gives none.
    pub quality: Option<f32>,
    /// Reason, readable.
    pub reason: String,
}

impl Judgement {
    /// No verdict, for this reason.
    pub fn unknown(reason: impl Into<String>) -> Self {
        Self { verdict: Verdict::Unknown, quality: None, reason: reason.into() }
    }
}

/// Decides on the outcome of a trajectory.
pub trait Judge: Send + Sync {
    /// The verdict; [`Verdict::Unknown`] if the evidence does not suffice.
    ///
    /// # Errors
    /// [`Error::Judge`](crate::Error::Judge) and [`Error::Model`](crate::Error::Model) if the judge
    /// itself fails.
    fn judge(&self, evidence: &Evidence<'_>) -> Result<Judgement>;
}
