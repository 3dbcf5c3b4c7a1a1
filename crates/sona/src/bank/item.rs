//! Memory items and their counters.

use serde::{Deserialize, Serialize};

use super::text::ItemText;
use super::uplift::{Trials, Uplift};

/// Outcome of a task, as a judge sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The task is done.
    Success,
    /// The task is not done.
    Failure,
    /// Parts of the task are done.
    Partial,
    /// Nothing is known.
    Unknown,
}

/// Memory to learn from one trajectory.
#[derive(Debug, Clone, PartialEq)]
pub struct NewItem {
    /// Readable text.
    pub text: ItemText,
    /// Embedding of the task's query, `[dim]`: retrieval compares requests with it.
    pub query: Vec<f32>,
    /// Embedding of the item's own text, `[dim]`: near-duplicates are found by it.
    pub content: Vec<f32>,
    /// Outcome of the trajectory.
    pub verdict: Verdict,
    /// Quality of the trajectory, 0 to 1.
    pub quality: f32,
    /// Expiry in seconds since 1970; `None` = the bank's default.
    pub expires: Option<u64>,
}

/// Uses of an item and their outcomes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Outcomes recorded.
    pub uses: u64,
    /// Successes among them.
    pub wins: u64,
    /// Failures among them.
    pub losses: u64,
}

impl Counts {
    pub(crate) fn record(&mut self, verdict: Verdict) {
        self.uses += 1;
        match verdict {
            Verdict::Success => self.wins += 1,
            Verdict::Failure => self.losses += 1,
            Verdict::Partial | Verdict::Unknown => {}
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.uses += other.uses;
        self.wins += other.wins;
        self.losses += other.losses;
    }

    /// Outcomes that are clear.
    pub fn trials(&self) -> Trials {
        Trials { wins: self.wins, trials: self.wins + self.losses }
    }
}

/// Memory item of one tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// Id, unique in the bank and never used again.
    pub id: u64,
    /// Readable text.
    pub text: ItemText,
    /// Outcome of the trajectories that it was learned from.
    pub verdict: Verdict,
    /// Quality of the best of them, 0 to 1.
    pub quality: f32,
    /// Number of trajectories that it was learned from
    /// ([`Bank::provenance`](super::Bank::provenance)).
    pub sources: u64,
    /// Seconds since 1970.
    pub created: u64,
    /// Latest success with the item, or its latest merge; `created` at first.
    pub confirmed: u64,
    /// Seconds since 1970; `None` = never.
    pub expires: Option<u64>,
    /// 1 at first, one more with each change of text, sources or state.
    pub version: u32,
    /// False if retrieval ignores the item.
    pub is_enabled: bool,
    /// Requests that were given the item.
    pub with: Counts,
    /// Requests of the control arm that the item was withheld from.
    pub without: Counts,
}

impl Item {
    /// True if the item is enabled and not expired.
    pub fn is_usable(&self, now: u64) -> bool {
        self.is_enabled && self.expires.is_none_or(|expires| now < expires)
    }

    /// Success rate with the item minus that without; `None` until both arms have an outcome.
    pub fn uplift(&self) -> Option<Uplift> {
        Uplift::new(self.with.trials(), self.without.trials())
    }
}
