//! Retrieval with its score, the control arm, and outcomes.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::item::{Item, Verdict};
use super::{Bank, BankConfig, Facts, check_name};
use crate::error::Result;
use crate::index::Hit;

/// Matches by similarity that are scored, per item of a request.
const CANDIDATES: usize = 16;

/// Arm of the comparison that a request belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arm {
    /// The request gets its items.
    Memory,
    /// The items are withheld.
    Control,
}

/// Record of a retrieval, to keep until the request's outcome is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// Tenant of the request.
    pub tenant: String,
    /// Id of the request.
    pub request: String,
    /// Arm of the request.
    pub arm: Arm,
    /// Items that matched, given or withheld.
    pub items: Vec<u64>,
}

/// Item that a request gets.
#[derive(Debug, Clone, PartialEq)]
pub struct Retrieved {
    /// The item.
    pub item: Item,
    /// Cosine similarity of the request and the item's query.
    pub similarity: f32,
    /// Similarity, corrected by outcomes and age.
    pub score: f32,
}

/// Result of [`Bank::retrieve`].
#[derive(Debug, Clone, PartialEq)]
pub struct Retrieval {
    /// Record for [`Bank::record_outcome`].
    pub receipt: Receipt,
    /// Items for the prompt, best first; empty in the control arm.
    pub items: Vec<Retrieved>,
}

/// Bounds of one retrieval, in place of those that the bank was opened with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetrievalLimits {
    /// Largest number of items, 1 to 16.
    pub max_items: usize,
    /// Smallest cosine similarity of the request and an item's query, 0 to 1.
    pub min_similarity: f32,
    /// Share of requests that get no memory, 0 to 1.
    pub control_share: f64,
}

impl From<&BankConfig> for RetrievalLimits {
    fn from(config: &BankConfig) -> Self {
        Self {
            max_items: config.max_items,
            min_similarity: config.min_similarity,
            control_share: config.control_share,
        }
    }
}

impl Bank {
    /// Finds the best items of the tenant for a request.
    ///
    /// The score is `sim * (1 + w (wins - losses) / (uses + c)) * 2^(-age / half_life)`, the age
    /// being the time since the item's latest success, merge or creation. Nothing is written.
    ///
    /// # Shapes
    /// `query`: `[dim]`, the embedding of the request.
    ///
    /// # Errors
    /// [`Error::Dimension`](crate::Error::Dimension),
    /// [`Error::NotFinite`](crate::Error::NotFinite),
    /// [`Error::ZeroVector`](crate::Error::ZeroVector),
    /// [`Error::Database`](crate::Error::Database).
    pub fn retrieve(&self, tenant: &str, request: &str, query: &[f32], now: u64) -> Result<Retrieval> {
        self.retrieve_within(tenant, request, query, RetrievalLimits::from(&self.config), now)
    }

    /// As [`retrieve`](Self::retrieve), within bounds of this request.
    ///
    /// # Errors
    /// [`Error::Setting`](crate::Error::Setting) for a bound out of its range.
    pub fn retrieve_within(
        &self,
        tenant: &str,
        request: &str,
        query: &[f32],
        limits: RetrievalLimits,
        now: u64,
    ) -> Result<Retrieval> {
        check_name("tenant", tenant)?;
        check_name("request", request)?;
        let RetrievalLimits { max_items, min_similarity, control_share } = limits;
        let config = BankConfig { max_items, min_similarity, control_share, ..self.config.clone() };
        config.check()?;
        let arm = arm(&config, tenant, request);
        let best = self.best(&config, tenant, query, now)?;
        let items = best.iter().map(|&(hit, _)| hit.key).collect();
        let receipt = Receipt { tenant: tenant.to_owned(), request: request.to_owned(), arm, items };
        let mut items = Vec::new();
        if arm == Arm::Memory && !best.is_empty() {
            let view = self.store.read()?;
            for (hit, score) in best {
                let item = view.item(tenant, hit.key)?;
                items.extend(item.map(|item| Retrieved { item, similarity: hit.similarity, score }));
            }
        }
        Ok(Retrieval { receipt, items })
    }

    /// Arm of a request by the bank's own share: that of its retrieval.
    pub fn arm(&self, tenant: &str, request: &str) -> Arm {
        arm(&self.config, tenant, request)
    }

    /// Best hits with their scores, best first.
    fn best(&self, config: &BankConfig, tenant: &str, query: &[f32], now: u64) -> Result<Vec<(Hit, f32)>> {
        let loaded = self.loaded(tenant)?;
        let loaded = loaded.read();
        let k = CANDIDATES * config.max_items;
        let is_usable = |key: u64| loaded.facts.get(&key).is_some_and(|facts| facts.is_usable(now));
        let mut hits = loaded.index.search(query, k)?;
        let found = hits.len();
        hits.retain(|hit| is_usable(hit.key));
        if hits.len() < config.max_items && found == k {
            hits = loaded.index.search_where(query, k, is_usable)?;
        }
        let mut best: Vec<(Hit, f32)> = hits
            .into_iter()
            .filter(|hit| hit.similarity >= config.min_similarity)
            .filter_map(|hit| Some((hit, score(config, hit.similarity, loaded.facts.get(&hit.key)?, now))))
            .collect();
        best.sort_by(|(a, x), (b, y)| y.total_cmp(x).then(a.key.cmp(&b.key)));
        best.truncate(config.max_items);
        Ok(best)
    }

    /// Records the outcome of a request, once; false if it was recorded before.
    ///
    /// The counts of the matched items and of the tenant's arms change; an item that is gone is
    /// passed over. A request without a match says nothing about memory and changes no count.
    ///
    /// # Errors
    /// [`Error::Database`](crate::Error::Database); nothing is changed then.
    pub fn record_outcome(&self, receipt: &Receipt, verdict: Verdict, now: u64) -> Result<bool> {
        let tenant = receipt.tenant.as_str();
        check_name("tenant", tenant)?;
        check_name("request", &receipt.request)?;
        let loaded = self.loaded(tenant)?;
        let mut loaded = loaded.write();
        let mut changed = Vec::new();
        let is_new = self.store.write(|tables| {
            if !tables.mark_outcome(tenant, &receipt.request, now)? {
                return Ok(false);
            }
            for &id in &receipt.items {
                let Some(mut item) = tables.item(tenant, id)? else { continue };
                match receipt.arm {
                    Arm::Memory => {
                        item.with.record(verdict);
                        if verdict == Verdict::Success {
                            item.confirmed = item.confirmed.max(now);
                        }
                    }
                    Arm::Control => item.without.record(verdict),
                }
                tables.put_item(tenant, &item)?;
                changed.push(item);
            }
            if !receipt.items.is_empty() {
                let mut arms = tables.arms(tenant)?;
                match receipt.arm {
                    Arm::Memory => arms.with.record(verdict),
                    Arm::Control => arms.without.record(verdict),
                }
                tables.put_arms(tenant, arms)?;
            }
            Ok(true)
        })?;
        changed.iter().try_for_each(|item| loaded.put(item, None))?;
        Ok(is_new)
    }
}

/// Arm of a request: the same for the same tenant and id, in every process.
fn arm(config: &BankConfig, tenant: &str, request: &str) -> Arm {
    let mut hash = Sha256::new();
    hash.update((tenant.len() as u64).to_le_bytes());
    hash.update(tenant);
    hash.update(request);
    let digest = hash.finalize();
    let word = digest.first_chunk().map_or(0, |&bytes| u64::from_le_bytes(bytes));
    let uniform = (word >> 11) as f64 / (1u64 << 53) as f64;
    if uniform < config.control_share { Arm::Control } else { Arm::Memory }
}

fn score(config: &BankConfig, similarity: f32, facts: &Facts, now: u64) -> f32 {
    let counts = facts.with;
    let balance = counts.wins as f32 - counts.losses as f32;
    let outcome = 1.0 + config.outcome_weight * balance / (counts.uses as f32 + config.outcome_prior);
    let decay = config.half_life.map_or(1.0, |half_life| {
        (-(now.saturating_sub(facts.confirmed) as f64) / half_life as f64).exp2() as f32
    });
    similarity * outcome * decay
}

#[cfg(test)]
mod tests {
    use super::super::item::Counts;
    use super::*;

    #[test]
    fn a_tenth_of_the_requests_is_the_control_arm() {
        let config = BankConfig::new(4);
        let control = |tenant: &str| {
            (0..20_000).filter(|i| arm(&config, tenant, &format!("req-{i}")) == Arm::Control).count()
        };
        // Standard deviation of 20,000 draws: 42.
        assert!((1830..2170).contains(&control("a")), "{}", control("a"));
        assert_eq!(control("a"), control("a"));
        assert_ne!(control("a"), control("b"));
    }

    #[test]
    fn the_score_follows_outcomes_and_halves_with_age() {
        let config = BankConfig { half_life: Some(100), ..BankConfig::new(4) };
        let facts = |uses, wins, losses| Facts {
            is_enabled: true,
            expires: None,
            confirmed: 1000,
            with: Counts { uses, wins, losses },
        };
        let at = |facts: &Facts, now| score(&config, 0.8, facts, now);
        assert!((at(&facts(0, 0, 0), 1000) - 0.8).abs() < 1e-6);
        // 0.8 (1 + 0.5 * 10 / 15) and 0.8 (1 - 0.5 * 10 / 15)
        assert!((at(&facts(10, 10, 0), 1000) - 1.066_667).abs() < 1e-5);
        assert!((at(&facts(10, 0, 10), 1000) - 0.533_333).abs() < 1e-5);
        assert!((at(&facts(0, 0, 0), 1100) - 0.4).abs() < 1e-6);
        assert!((at(&facts(0, 0, 0), 0) - 0.8).abs() < 1e-6);
    }
}
