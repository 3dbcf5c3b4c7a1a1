//! Settings of a bank.

use crate::error::{Error, Result};
use crate::index::IndexConfig;

/// Settings of a [`Bank`](super::Bank).
#[derive(Debug, Clone, PartialEq)]
pub struct BankConfig {
    /// Values per embedding; fixed when the bank is created.
    pub dim: usize,
    /// Parameters of the index.
    pub index: IndexConfig,
    /// Items per request; more than one lowered success in the paper's ablation.
    pub max_items: usize,
    /// Smallest cosine similarity of a request and an item's query, 0 to 1.
    pub min_similarity: f32,
    /// Weight `w` of outcomes in `sim * (1 + w (wins - losses) / (uses + c))`, 0 to 1.
    pub outcome_weight: f32,
    /// Prior `c` of the same, above 0: uses before outcomes count in full.
    pub outcome_prior: f32,
    /// Seconds without a success after which a score is halved; `None` = never.
    pub half_life: Option<u64>,
    /// Seconds from creation to expiry of items that name none; `None` = never.
    pub expires_after: Option<u64>,
    /// Share of requests that get no memory, 0 to 1; with 1 memory is switched off.
    pub control_share: f64,
    /// Cosine similarity of two texts above which they are one lesson, 0 to 1.
    pub near_duplicate: f32,
}

impl BankConfig {
    /// Defaults for embeddings of `dim` values.
    pub fn new(dim: usize) -> Self {
        Self {
            dim,
            index: IndexConfig::default(),
            max_items: 1,
            min_similarity: 0.5,
            outcome_weight: 0.5,
            outcome_prior: 5.0,
            half_life: Some(30 * 24 * 3600),
            expires_after: Some(180 * 24 * 3600),
            control_share: 0.1,
            near_duplicate: 0.9,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let check = |name, is_valid, value: String, range| {
            if is_valid { Ok(()) } else { Err(Error::Setting { name, value, range }) }
        };
        let s = self.min_similarity;
        check("max_items", (1..=16).contains(&self.max_items), self.max_items.to_string(), "1 to 16")?;
        check("min_similarity", (0.0..=1.0).contains(&s), s.to_string(), "0 to 1")?;
        let w = self.outcome_weight;
        check("outcome_weight", (0.0..=1.0).contains(&w), w.to_string(), "0 to 1")?;
        let c = self.outcome_prior;
        check("outcome_prior", c > 0.0 && c.is_finite(), c.to_string(), "above 0 and finite")?;
        check("half_life", self.half_life != Some(0), "0".to_owned(), "at least 1 s, or absent")?;
        let share = self.control_share;
        check("control_share", (0.0..=1.0).contains(&share), share.to_string(), "0 to 1")?;
        let d = self.near_duplicate;
        check("near_duplicate", (0.0..=1.0).contains(&d), d.to_string(), "0 to 1")
    }
}
