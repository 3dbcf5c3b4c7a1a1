//! Store of policies that are found again by embedding.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::bits;
use super::vector::{dot, normalized};
use crate::error::{Error, Result};

/// Version of [`SavedPolicies`].
const VERSION: u32 = 1;
/// Cosine similarity from which an insertion replaces the stored policy.
const SAME: f32 = 0.999;

/// Policies of tenants by embedding: the nearest by cosine similarity within a tenant, never across
/// tenants. Each tenant has at most `capacity` policies; the least recently found goes first.
#[derive(Debug, Clone)]
pub struct PolicyStore<P> {
    dim: usize,
    capacity: usize,
    max_tenants: usize,
    clock: u64,
    tenants: BTreeMap<String, Vec<Entry<P>>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Entry<P> {
    #[serde(with = "bits")]
    embedding: Vec<f32>,
    policy: P,
    used: u64,
}

/// A policy that was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found<'s, P> {
    /// The policy.
    pub policy: &'s P,
    /// Cosine similarity of its embedding to that asked for.
    pub similarity: f32,
}

impl<P> PolicyStore<P> {
    /// Makes an empty store for embeddings of `dim` values, with at most `capacity` policies per
    /// tenant and `max_tenants` tenants.
    ///
    /// # Errors
    /// [`Error::Setting`] for a 0.
    pub fn new(dim: usize, capacity: usize, max_tenants: usize) -> Result<Self> {
        for (name, value) in [("dim", dim), ("capacity", capacity), ("max_tenants", max_tenants)] {
            if value == 0 {
                return Err(Error::Setting { name, value: "0".into(), range: "above 0" });
            }
        }
        Ok(Self { dim, capacity, max_tenants, clock: 0, tenants: BTreeMap::new() })
    }

    /// Number of policies of a tenant.
    pub fn len(&self, tenant: &str) -> usize {
        self.tenants.get(tenant).map_or(0, Vec::len)
    }

    /// True if no tenant has a policy.
    pub fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    fn unit(&self, embedding: &[f32]) -> Result<Vec<f32>> {
        if embedding.len() != self.dim {
            let (expected, got) = (self.dim, embedding.len());
            return Err(Error::Dimension { what: "embedding of a policy", expected, got });
        }
        if !embedding.iter().all(|v| v.is_finite()) {
            return Err(Error::NotFinite { what: "embedding of a policy" });
        }
        Ok(normalized(embedding))
    }

    /// Stores a policy; it replaces one with the same direction.
    ///
    /// # Errors
    /// [`Error::Dimension`], [`Error::NotFinite`].
    pub fn insert(&mut self, tenant: &str, embedding: &[f32], policy: P) -> Result<()> {
        let embedding = self.unit(embedding)?;
        self.clock += 1;
        let used = self.clock;
        if !self.tenants.contains_key(tenant) && self.tenants.len() >= self.max_tenants {
            let latest = |entries: &[Entry<P>]| entries.iter().map(|entry| entry.used).max();
            let idle = self.tenants.iter().min_by_key(|(_, entries)| latest(entries));
            if let Some(idle) = idle.map(|(name, _)| name.clone()) {
                self.tenants.remove(&idle);
            }
        }
        let entries = self.tenants.entry(tenant.to_owned()).or_default();
        let same = entries.iter().position(|entry| dot(&entry.embedding, &embedding) >= SAME);
        let oldest = (0..entries.len()).min_by_key(|&i| entries[i].used);
        let replaced = same.or(oldest.filter(|_| entries.len() >= self.capacity));
        let entry = Entry { embedding, policy, used };
        match replaced {
            Some(place) => entries[place] = entry,
            None => entries.push(entry),
        }
        Ok(())
    }

    /// Nearest policy of a tenant with at least `min_similarity`.
    ///
    /// # Errors
    /// [`Error::Dimension`], [`Error::NotFinite`].
    pub fn nearest(
        &mut self,
        tenant: &str,
        embedding: &[f32],
        min_similarity: f32,
    ) -> Result<Option<Found<'_, P>>> {
        let query = self.unit(embedding)?;
        self.clock += 1;
        let entries = self.tenants.get_mut(tenant).map_or(&mut [][..], |entries| entries);
        let nearest = entries.iter_mut().map(|entry| (dot(&entry.embedding, &query), entry));
        let nearest = nearest.max_by(|a, b| a.0.total_cmp(&b.0));
        Ok(nearest.filter(|(similarity, _)| *similarity >= min_similarity).map(|(similarity, entry)| {
            entry.used = self.clock;
            Found { policy: &entry.policy, similarity }
        }))
    }

    /// Removes all policies of a tenant; their number.
    pub fn forget(&mut self, tenant: &str) -> usize {
        self.tenants.remove(tenant).map_or(0, |entries| entries.len())
    }
}

impl<P: Clone> PolicyStore<P> {
    /// State of the store, for any format of serde.
    pub fn save(&self) -> SavedPolicies<P> {
        let (dim, clock, tenants) = (self.dim, self.clock, self.tenants.clone());
        SavedPolicies { version: VERSION, dim, clock, tenants }
    }

    /// Replaces the content of an empty or other store of the same dimension and limits.
    ///
    /// # Errors
    /// [`Error::Version`], [`Error::Dimension`] for embeddings of another length,
    /// [`Error::Damaged`]. The store stays as it was.
    pub fn restore(&mut self, saved: SavedPolicies<P>) -> Result<()> {
        let what = "saved policies";
        if saved.version != VERSION {
            return Err(Error::Version { what, found: saved.version, supported: VERSION });
        }
        if saved.dim != self.dim {
            return Err(Error::Dimension { what, expected: self.dim, got: saved.dim });
        }
        let is_entry = |entry: &Entry<P>| {
            let values = &entry.embedding;
            values.len() == self.dim && values.iter().all(|v| v.is_finite()) && entry.used <= saved.clock
        };
        let is_valid = saved.tenants.len() <= self.max_tenants
            && saved.tenants.values().all(|entries| entries.len() <= self.capacity)
            && saved.tenants.values().flatten().all(is_entry);
        if !is_valid {
            return Err(Error::Damaged { what });
        }
        (self.clock, self.tenants) = (saved.clock, saved.tenants);
        Ok(())
    }
}

/// State of a [`PolicyStore`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedPolicies<P> {
    version: u32,
    dim: usize,
    clock: u64,
    tenants: BTreeMap<String, Vec<Entry<P>>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_policy_of_the_own_tenant_is_found() {
        let mut store = PolicyStore::new(2, 8, 4).unwrap();
        store.insert("a", &[1.0, 0.0], "q8").unwrap();
        store.insert("a", &[0.0, 1.0], "f16").unwrap();
        store.insert("b", &[1.0, 1.0], "q4").unwrap();
        let found = store.nearest("a", &[2.0, 1.0], 0.5).unwrap().unwrap();
        assert_eq!(*found.policy, "q8");
        assert!((found.similarity - 2.0 / 5.0_f32.sqrt()).abs() < 1e-6);
        assert_eq!(store.nearest("a", &[-1.0, -1.0], 0.5).unwrap(), None);
        assert_eq!(store.nearest("c", &[1.0, 0.0], -1.0).unwrap(), None);
        store.insert("a", &[5.0, 0.0], "q6").unwrap();
        assert_eq!(
            (store.len("a"), *store.nearest("a", &[1.0, 0.0], 0.9).unwrap().unwrap().policy),
            (2, "q6")
        );
        assert_eq!((store.forget("a"), store.len("a"), store.len("b")), (2, 0, 1));
        assert!(
            store.insert("a", &[1.0], "x").is_err() && store.nearest("a", &[f32::NAN, 0.0], 0.0).is_err()
        );
    }

    #[test]
    fn least_recently_found_policies_and_tenants_go_first() {
        let mut store = PolicyStore::new(2, 2, 2).unwrap();
        store.insert("a", &[1.0, 0.0], 1).unwrap();
        store.insert("a", &[0.0, 1.0], 2).unwrap();
        store.nearest("a", &[1.0, 0.0], 0.9).unwrap();
        store.insert("a", &[-1.0, 0.0], 3).unwrap();
        assert_eq!(store.nearest("a", &[0.0, 1.0], 0.9).unwrap(), None);
        assert_eq!(store.len("a"), 2);
        store.insert("b", &[1.0, 0.0], 4).unwrap();
        store.nearest("a", &[1.0, 0.0], 0.9).unwrap();
        store.insert("c", &[1.0, 0.0], 5).unwrap();
        assert_eq!((store.len("a"), store.len("b"), store.len("c")), (2, 0, 1));
    }

    #[test]
    fn saved_stores_are_restored_and_checked() {
        let mut store = PolicyStore::new(2, 2, 2).unwrap();
        store.insert("a", &[0.1, 0.7], "policy".to_owned()).unwrap();
        let text = serde_json::to_string(&store.save()).unwrap();
        let saved: SavedPolicies<String> = serde_json::from_str(&text).unwrap();
        let mut other = PolicyStore::new(2, 2, 2).unwrap();
        other.restore(saved.clone()).unwrap();
        assert_eq!(other.save(), store.save());
        assert!(PolicyStore::<String>::new(3, 2, 2).unwrap().restore(saved.clone()).is_err());
        let mut damaged = saved;
        damaged.tenants.get_mut("a").unwrap()[0].embedding[0] = f32::NAN;
        assert!(matches!(other.restore(damaged), Err(Error::Damaged { .. })));
        assert_eq!(other.save(), store.save());
    }
}
