//! Nearest neighbours of unit vectors by cosine similarity, with online insertion and deletion.
//!
//! Up to [`IndexConfig::flat_up_to`] vectors a search is an exact scan; above, it walks an HNSW
//! graph (ADR-0078). The graph can be kept in a file; vectors are not in it, they come from their
//! store.
//!
//! # Files
//! `vectors.rs`: rows by slot; `graph.rs`: insertion and search; `file.rs`: the graph in a file.

mod file;
mod graph;
#[cfg(test)]
mod tests;
mod vectors;

use std::collections::HashMap;

use ruvllm_kernels::Kernels;

use self::graph::{Graph, Near};
use self::vectors::{Query, Vectors};
use crate::error::{Error, Result};
use crate::random::mix;

pub use self::file::Recovery;

/// Share of deleted slots above which they are removed, as a divisor: one in five.
const DEAD_DIVISOR: usize = 5;

/// Deleted slots that are never worth a removal.
const MIN_DEAD: usize = 64;

/// Format of the vectors that a search compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// 32-bit floats, 4 bytes per value.
    F32,
    /// 8-bit integers with one scale per vector for the search, 16-bit floats for the final order:
    /// 3 bytes per value.
    Int8,
}

/// Parameters of an index; the defaults are those of ADR-0078.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexConfig {
    /// Format of the vectors.
    pub precision: Precision,
    /// Links per vector on the upper layers, 2 to 64; twice as many on the lowest.
    pub m: usize,
    /// Candidates of an insertion (`efConstruction`), `m` to 4096.
    pub ef_insert: usize,
    /// Candidates of a search (`efSearch`), 1 to 4096; at least the number of results are kept.
    pub ef_search: usize,
    /// Largest number of vectors that a search scans instead of using the graph.
    pub flat_up_to: usize,
}

impl Default for IndexConfig {
    fn default() -> Self {
        Self { precision: Precision::Int8, m: 16, ef_insert: 128, ef_search: 64, flat_up_to: 2048 }
    }
}

impl IndexConfig {
    fn check(&self) -> Result<()> {
        setting("m", self.m, 2..=64, "2 to 64")?;
        setting("ef_insert", self.ef_insert, self.m..=4096, "m to 4096")?;
        setting("ef_search", self.ef_search, 1..=4096, "1 to 4096")
    }
}

fn setting(
    name: &'static str,
    value: usize,
    allowed: std::ops::RangeInclusive<usize>,
    range: &'static str,
) -> Result<()> {
    if allowed.contains(&value) {
        return Ok(());
    }
    Err(Error::Setting { name, value: value.to_string(), range })
}

/// Result of a search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hit {
    /// Key of the vector.
    pub key: u64,
    /// Cosine similarity, -1 to 1.
    pub similarity: f32,
}

/// Index of unit vectors by key.
///
/// Equal sequences of operations give equal results. Searches of several threads run in parallel.
pub struct VectorIndex {
    config: IndexConfig,
    vectors: Vectors,
    graph: Graph,
    /// Keys by slot.
    keys: Vec<u64>,
    /// Digests of the vectors as they were inserted, by slot.
    digests: Vec<u64>,
    slots: HashMap<u64, u32>,
}

impl VectorIndex {
    /// An empty index for vectors of `dim` values.
    ///
    /// # Errors
    /// [`Error::Setting`] for a value out of range; [`Error::Kernels`] on a CPU without the
    /// instruction set that `RUVLLM_ISA` names.
    pub fn new(dim: usize, config: IndexConfig) -> Result<Self> {
        config.check()?;
        setting("dim", dim, 1..=65_536, "1 to 65536")?;
        let kernels = Kernels::detect().map_err(Error::Kernels)?;
        Ok(Self {
            vectors: Vectors::new(kernels, dim, config.precision),
            graph: Graph::new(config.m, config.ef_insert),
            config,
            keys: Vec::new(),
            digests: Vec::new(),
            slots: HashMap::new(),
        })
    }

    /// Values per vector.
    pub fn dim(&self) -> usize {
        self.vectors.dim()
    }

    /// Number of vectors.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// True if there is no vector.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// True if the key has a vector.
    pub fn contains(&self, key: u64) -> bool {
        self.slots.contains_key(&key)
    }

    /// Bytes of vectors, links and keys, by the capacities of their buffers.
    pub fn memory_bytes(&self) -> usize {
        let maps = self.slots.capacity() * size_of::<(u64, u32)>();
        self.vectors.bytes() + self.graph.bytes() + 16 * self.keys.capacity() + maps
    }

    /// Inserts a vector, `[dim]`, or replaces the one of its key; its length does not matter.
    ///
    /// # Errors
    /// [`Error::Dimension`], [`Error::NotFinite`], [`Error::ZeroVector`]; the index is unchanged.
    pub fn insert(&mut self, key: u64, vector: &[f32]) -> Result<()> {
        let query = self.query("vector", vector)?;
        self.remove(key);
        self.push(key, &query, digest(vector));
        let slot = self.keys.len() - 1;
        debug_assert_eq!(self.graph.len(), slot);
        self.graph.insert(&self.vectors, &query, key);
        Ok(())
    }

    fn push(&mut self, key: u64, query: &Query, digest: u64) {
        self.slots.insert(key, self.keys.len() as u32);
        self.vectors.push(query);
        self.keys.push(key);
        self.digests.push(digest);
    }

    /// Removes a vector; false if the key has none.
    ///
    /// Its slot leads searches on until one slot in five is deleted; then the graph is built again
    /// without them. So a removal costs four insertions on average, all at once.
    pub fn remove(&mut self, key: u64) -> bool {
        let Some(slot) = self.slots.remove(&key) else { return false };
        self.graph.is_dead[slot as usize] = true;
        self.graph.dead += 1;
        if self.graph.dead > MIN_DEAD && self.graph.dead * DEAD_DIVISOR > self.graph.len() {
            self.compact();
        }
        true
    }

    /// Frees the memory of deleted vectors and links the others anew.
    fn compact(&mut self) {
        if self.graph.dead == 0 {
            return;
        }
        let is_dead = std::mem::take(&mut self.graph.is_dead);
        let kept: Vec<u32> = (0..is_dead.len() as u32).filter(|&slot| !is_dead[slot as usize]).collect();
        self.vectors.retain(&kept);
        self.keys = kept.iter().map(|&slot| self.keys[slot as usize]).collect();
        self.digests = kept.iter().map(|&slot| self.digests[slot as usize]).collect();
        self.slots = (0..).zip(&self.keys).map(|(slot, &key)| (key, slot)).collect();
        // Links that replace those to deleted slots are short: the graph would fall apart.
        self.graph = Graph::new(self.config.m, self.config.ef_insert);
        for (slot, &key) in (0..).zip(&self.keys) {
            self.graph.insert(&self.vectors, &self.vectors.stored(slot), key);
        }
    }

    /// The `k` most similar vectors, most similar first, ties in order of their slots.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn search(&self, query: &[f32], k: usize) -> Result<Vec<Hit>> {
        self.search_where(query, k, |_| true)
    }

    /// The `k` most similar vectors whose keys pass `filter`.
    ///
    /// The fewer keys pass, the more of the graph is searched, up to all of it.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn search_where(&self, query: &[f32], k: usize, filter: impl Fn(u64) -> bool) -> Result<Vec<Hit>> {
        if self.len() <= self.config.flat_up_to {
            return self.search_exact(query, k, filter);
        }
        let query = self.query("query", query)?;
        let ef = self.config.ef_search.max(k);
        let found = self.graph.search(&self.vectors, &query, ef, |slot| filter(self.keys[slot as usize]));
        Ok(self.order(&query, k, found.into_iter().map(Near::slot)))
    }

    /// The `k` most similar vectors by a scan of all whose keys pass `filter`.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn search_exact(&self, query: &[f32], k: usize, filter: impl Fn(u64) -> bool) -> Result<Vec<Hit>> {
        let query = self.query("query", query)?;
        let alive = (0..self.keys.len() as u32).filter(|&slot| !self.graph.is_dead[slot as usize]);
        Ok(self.order(&query, k, alive.filter(|&slot| filter(self.keys[slot as usize]))))
    }

    fn order(&self, query: &Query, k: usize, slots: impl Iterator<Item = u32>) -> Vec<Hit> {
        let mut near: Vec<(f32, u32)> =
            slots.map(|slot| (self.vectors.similarity(query, slot), slot)).collect();
        let by_similarity = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        if near.len() > k && k > 0 {
            near.select_nth_unstable_by(k - 1, by_similarity);
        }
        near.truncate(k);
        near.sort_unstable_by(by_similarity);
        near.into_iter().map(|(similarity, slot)| Hit { key: self.keys[slot as usize], similarity }).collect()
    }

    fn query(&self, name: &'static str, vector: &[f32]) -> Result<Query> {
        if vector.len() != self.dim() {
            return Err(Error::Dimension { what: name, expected: self.dim(), got: vector.len() });
        }
        Ok(self.vectors.query(unit(name, vector)?))
    }
}

/// The vector divided by its length.
///
/// # Errors
/// [`Error::NotFinite`] and [`Error::ZeroVector`].
pub(crate) fn unit(name: &'static str, vector: &[f32]) -> Result<Vec<f32>> {
    let squares: f64 = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    if !squares.is_finite() {
        return Err(Error::NotFinite { what: name });
    }
    if squares == 0.0 {
        return Err(Error::ZeroVector { what: name });
    }
    let scale = 1.0 / squares.sqrt();
    Ok(vector.iter().map(|&x| (f64::from(x) * scale) as f32).collect())
}

/// Digest of a vector's bits; tells a changed vector from the one that was linked.
fn digest(vector: &[f32]) -> u64 {
    vector.iter().fold(vector.len() as u64, |state, x| mix(state ^ u64::from(x.to_bits())))
}
