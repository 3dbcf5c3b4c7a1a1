//! Decisions of the tuner as values.

use std::fmt;

use serde::Serialize;

use super::moves::Move;
use super::settings::StepSettings;

/// Cause of a change.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub enum Cause {
    /// KV pressure was above its limit.
    Pressure {
        /// The pressure, averaged over some steps.
        pressure: f64,
    },
    /// Quality was below its target.
    Quality {
        /// The quality, averaged over some answers.
        quality: f64,
    },
    /// The objective may be higher with the change.
    Throughput,
    /// The load is another than before: moves that failed are tried again.
    Shift,
}

/// Outcome of a change.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub enum Outcome {
    /// It is in force; its comparison follows.
    Applied,
    /// Steps with and without it alternate.
    Tried,
    /// It was compared and stays.
    Kept {
        /// Relative gain of the objective.
        gain: f64,
    },
    /// It was compared and taken back.
    RolledBack {
        /// Relative gain of the objective.
        gain: f64,
    },
    /// Its comparison was ended by a release of memory; it was taken back.
    Interrupted,
    /// No setting changed.
    Noted,
}

/// A decision with its reason.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Change {
    /// Number of the step after which it was made, from 1.
    pub step: u64,
    /// Its cause.
    pub cause: Cause,
    /// The setting that moved; absent for a shift of load.
    pub change: Option<Move>,
    /// Outcome so far.
    pub outcome: Outcome,
    /// Settings in force from the next step on, outside the alternating blocks of a trial.
    pub settings: StepSettings,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: ", self.step)?;
        if let Some(change) = self.change {
            write!(f, "{change:?} ")?;
        }
        match self.outcome {
            Outcome::Applied => f.write_str("applied")?,
            Outcome::Tried => f.write_str("tried")?,
            Outcome::Kept { gain } => write!(f, "kept ({:+.1} %)", gain * 100.0)?,
            Outcome::RolledBack { gain } => write!(f, "rolled back ({:+.1} %)", gain * 100.0)?,
            Outcome::Interrupted => f.write_str("interrupted")?,
            Outcome::Noted => f.write_str("noted")?,
        }
        match self.cause {
            Cause::Pressure { pressure } => write!(f, ": KV pressure {pressure:.2}"),
            Cause::Quality { quality } => write!(f, ": quality {quality:.2}"),
            Cause::Throughput => f.write_str(": throughput"),
            Cause::Shift => f.write_str(": load changed"),
        }
    }
}
