//! Online learning: each feedback is logged, learned, and from time to time judged at held-out
//! ordinary text.
//!
//! ```text
//! feedback ─▶ log on disk ─▶ InstantLearner ─▶ gate ─┬─ harmless: clean snapshot
//!                 │                 ▲                ├─ not sure: tentative snapshot
//!                 │                 │                └─ harmful: back to the last clean one, quarantine
//!                 └─ Consolidation ─┘ trained beside it on many lessons, taken if held-out text
//!                                     does not get worse
//! ```
//!
//! Harm is a rise of the loss at ordinary text, or at rated texts before they are learned: ratings
//! then go against all text of a kind that the adapter has long ceased to write.
//!
//! The log comes first: a process that is killed at any moment goes on with the state that its log
//! says, bit by bit. Engines implement [`ObservedModel`].

mod consolidation;
mod event;
mod learner;
mod log;
mod options;
mod sample;
mod state;
#[cfg(test)]
mod tests;
mod text;

use std::ops::Range;

use crate::continual::GateReport;
use crate::error::Result;
use crate::instant::{Observations, Update};
use crate::store::SnapshotInfo;

pub use self::consolidation::{Consolidation, ORDINARY_TASK};
pub use self::learner::OnlineLearner;
pub use self::options::{ConsolidationOptions, OnlineOptions};
pub use self::text::TaughtText;

/// Model whose last products learn.
pub trait ObservedModel {
    /// Digest of the weights: a log belongs to one model.
    ///
    /// # Errors
    /// [`Error::Model`](crate::Error::Model).
    fn digest(&self) -> Result<[u8; 32]>;

    /// Runs a text through the model, without adapters, and observes the `targets`: positions of
    /// tokens that are taught, from 1 on. Equal texts give equal bits.
    ///
    /// # Errors
    /// [`Error::Model`](crate::Error::Model).
    fn observe(&self, tokens: &[u32], targets: Range<usize>) -> Result<Observations>;

    /// Texts of ordinary traffic; without any, those that the model writes itself with these seeds.
    ///
    /// # Errors
    /// [`Error::Model`](crate::Error::Model).
    fn ordinary_texts(&self, seeds: &[u64]) -> Result<Vec<Vec<u32>>>;
}

/// Fate of a lesson.
#[derive(Debug, Clone, PartialEq)]
pub enum Taught {
    /// It was logged and learned.
    Learned {
        /// Position in the log.
        sequence: u64,
        /// Measurements of the update.
        update: Update,
        /// Judgement of the gate, if it was due.
        judged: Option<GateReport>,
    },
    /// The correction, or the text that is rated above 0, is so improbable that it is taken for
    /// noise; nothing was learned.
    Outlier {
        /// Mean log-probability of its tokens under the base model, in nats.
        log_probability: f64,
    },
    /// The adapter is in quarantine; nothing was learned.
    Quarantined,
}

/// Standing of an adapter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Standing {
    /// It learns.
    Learning,
    /// It has harmed ordinary text, is back at its last clean snapshot, and learns nothing until it
    /// is released.
    Quarantined {
        /// Wall clock in milliseconds since 1970.
        since_ms: u64,
        /// Lower 95 % bound of the rise of the loss at ordinary text, or at rated texts, in nats.
        harm: f64,
    },
}

/// State of a learner, in numbers that were counted or measured.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct OnlineStatus {
    /// Standing.
    pub standing: Standing,
    /// Lessons in the log that are in effect.
    pub lessons: u64,
    /// Steps of updates applied.
    pub updates: u64,
    /// Running mean of the ratings.
    pub baseline: f32,
    /// Bounds of the Frobenius norms of the updates of the hidden state and of the logits.
    pub norms: [f32; 2],
    /// Events included in the current state.
    pub through: u64,
    /// Snapshot that the current state goes back to, if any.
    pub snapshot: Option<SnapshotInfo>,
    /// Rise of the mean loss at held-out ordinary text when it was last judged by this process.
    pub harm: Option<f64>,
    /// Fault of the latest snapshot; it is tried again with the next lesson.
    pub fault: Option<String>,
    /// Lessons that no consolidation has considered yet.
    pub new_lessons: u64,
    /// Consolidations that the gate has accepted, and rejected.
    pub consolidations: [u64; 2],
    /// SHA-256 of the state.
    pub digest: [u8; 32],
}

/// Result of a replay of the whole log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// Lessons learned again.
    pub lessons: u64,
    /// SHA-256 of the state that the log gives.
    pub digest: [u8; 32],
    /// True if the current state has the same bits.
    pub is_equal: bool,
}
