//! The graph of an index in a file: links by slot, with a checksum and digests of the vectors.
//!
//! Layout, little-endian: magic, `m` (u32), `dim` (u32), slots (u32), entry (u32); per slot: key
//! (u64), digest of the vector (u64), level (u8), and per layer the number of links (u8) and the
//! links (u32); SHA-256 of all before.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;

use sha2::{Digest as _, Sha256};

use super::graph::{Graph, MAX_LEVEL};
use super::{IndexConfig, VectorIndex, digest};
use crate::error::Result;
use crate::files;

const MAGIC: &[u8; 8] = b"RUVIDX01";
const DIGEST: usize = 32;
/// Bytes of a slot with one layer and no links.
const MIN_SLOT: usize = 18;

/// Work that opening an index took.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Vectors whose links were in the file.
    pub kept: usize,
    /// Vectors inserted anew: absent from the file, or changed since.
    pub inserted: usize,
    /// Vectors in the file that the store has no longer, or has changed.
    pub removed: usize,
    /// Reason for which the file was not used; `None` if it was, or if there was none.
    pub refused: Option<String>,
}

impl VectorIndex {
    /// Opens an index from the graph in a file and the vectors of a store, which decide.
    ///
    /// A file that is absent, torn, damaged, or of other parameters is not used: all vectors are
    /// inserted, in the order given.
    ///
    /// # Errors
    /// As [`new`](Self::new) and [`insert`](Self::insert).
    pub fn open(
        path: &Path,
        dim: usize,
        config: IndexConfig,
        vectors: Vec<(u64, Vec<f32>)>,
    ) -> Result<(Self, Recovery)> {
        let mut index = Self::new(dim, config)?;
        let mut recovery = Recovery::default();
        let mut by_key: HashMap<u64, &[f32]> = vectors.iter().map(|(key, v)| (*key, v.as_slice())).collect();
        match fs::read(path) {
            Ok(bytes) => match parse(&bytes, dim, &index.config) {
                Ok(saved) => index.adopt(saved, &mut by_key, &mut recovery)?,
                Err(reason) => recovery.refused = Some(reason.to_owned()),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => recovery.refused = Some(error.to_string()),
        }
        for (key, vector) in &vectors {
            if by_key.contains_key(key) {
                index.insert(*key, vector)?;
                recovery.inserted += 1;
            }
        }
        Ok((index, recovery))
    }

    /// Takes the links of the file for the vectors that it was made of, which leave `by_key`.
    fn adopt(
        &mut self,
        saved: Saved,
        by_key: &mut HashMap<u64, &[f32]>,
        recovery: &mut Recovery,
    ) -> Result<()> {
        self.graph = saved.graph;
        let placeholder = {
            let mut axis = vec![0.0; self.dim()];
            axis[0] = 1.0;
            axis
        };
        let mut gone = Vec::new();
        for (key, saved_digest) in saved.slots {
            let vector = match by_key.get(&key) {
                Some(vector) if digest(vector) == saved_digest => {
                    recovery.kept += 1;
                    by_key.remove(&key).unwrap_or_default()
                }
                _ => {
                    gone.push(key);
                    &placeholder
                }
            };
            let query = self.query("stored vector", vector)?;
            self.push(key, &query, saved_digest);
        }
        recovery.removed = gone.len();
        for key in gone {
            if let Some(slot) = self.slots.remove(&key) {
                self.graph.is_dead[slot as usize] = true;
                self.graph.dead += 1;
            }
        }
        self.compact();
        Ok(())
    }

    /// Writes the graph to a file, which replaces a former one as a whole.
    ///
    /// Removed vectors are no longer in it: if there are any, the graph is built again first.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File); a former file stays as it was.
    pub fn save(&mut self, path: &Path) -> Result<()> {
        self.compact();
        files::replace(path, &self.to_bytes())
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.keys.len() * (MIN_SLOT + 8 * self.config.m));
        let put = |out: &mut Vec<u8>, value: u32| out.extend_from_slice(&value.to_le_bytes());
        out.extend_from_slice(MAGIC);
        let head = [self.config.m, self.dim(), self.keys.len()];
        head.iter().for_each(|&value| put(&mut out, value as u32));
        put(&mut out, self.graph.entry.unwrap_or(u32::MAX));
        for (slot, (key, digest)) in self.keys.iter().zip(&self.digests).enumerate() {
            out.extend_from_slice(&key.to_le_bytes());
            out.extend_from_slice(&digest.to_le_bytes());
            let level = self.graph.upper[slot].len();
            out.push(level as u8);
            for layer in 0..=level {
                let links = self.graph.links(layer, slot as u32);
                out.push(links.len() as u8);
                links.iter().for_each(|&link| put(&mut out, link));
            }
        }
        let sum = Sha256::digest(&out);
        out.extend_from_slice(&sum);
        out
    }
}

/// Content of a file.
struct Saved {
    graph: Graph,
    /// Keys and digests of vectors, by slot.
    slots: Vec<(u64, u64)>,
}

/// Parses a file and checks every number in it; the checksum tells damage, not intent.
fn parse(bytes: &[u8], dim: usize, config: &IndexConfig) -> Result<Saved, &'static str> {
    let (body, sum) = bytes.split_at_checked(bytes.len().saturating_sub(DIGEST)).ok_or("it is too short")?;
    if sum != Sha256::digest(body).as_slice() {
        return Err("its checksum does not match");
    }
    let mut rest = Rest(body);
    if rest.take()? != *MAGIC {
        return Err("it is no index of this version");
    }
    let [m, file_dim, slots, entry] = [rest.u32()?, rest.u32()?, rest.u32()?, rest.u32()?];
    if m as usize != config.m || file_dim as usize != dim {
        return Err("it has another dimension or number of links");
    }
    let n = slots as usize;
    if n > rest.0.len() / MIN_SLOT {
        return Err("it has more vectors than bytes for them");
    }
    let mut graph = Graph::new(config.m, config.ef_insert);
    graph.lowest = vec![0; n * (1 + 2 * config.m)];
    graph.is_dead = vec![false; n];
    graph.entry = (n > 0).then_some(entry);
    let mut found = Vec::with_capacity(n);
    for slot in 0..n {
        found.push((rest.u64()?, rest.u64()?));
        let level = rest.u8()? as usize;
        if level > MAX_LEVEL {
            return Err("it has a level out of range");
        }
        graph.upper.push(vec![Vec::new(); level]);
        for layer in 0..=level {
            let count = rest.u8()? as usize;
            if count > graph.capacity(layer) {
                return Err("it has more links than its parameters allow");
            }
            let links = (0..count).map(|_| rest.u32()).collect::<Result<Vec<_>, _>>()?;
            graph.set_links(layer, slot as u32, &links);
        }
    }
    check_links(&graph, &found)?;
    if rest.0.is_empty() { Ok(Saved { graph, slots: found }) } else { Err("it has bytes behind its end") }
}

fn check_links(graph: &Graph, slots: &[(u64, u64)]) -> Result<(), &'static str> {
    let levels = &graph.upper;
    let highest = levels.iter().map(Vec::len).max();
    if graph.entry.is_some_and(|entry| levels.get(entry as usize).map(Vec::len) != highest) {
        return Err("its entry is not of the highest level");
    }
    let mut keys: Vec<u64> = slots.iter().map(|&(key, _)| key).collect();
    keys.sort_unstable();
    if keys.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err("it has a key twice");
    }
    let is_valid = |layer: usize, link: u32| levels.get(link as usize).is_some_and(|l| l.len() >= layer);
    let all_valid = (0..slots.len()).all(|slot| {
        (0..=levels[slot].len())
            .all(|layer| graph.links(layer, slot as u32).iter().all(|&link| is_valid(layer, link)))
    });
    if all_valid { Ok(()) } else { Err("it has a link to a vector that is not there") }
}

/// Bytes that are not read yet.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or("it ends too early")?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn u8(&mut self) -> Result<u8, &'static str> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, &'static str> {
        self.take().map(u64::from_le_bytes)
    }
}
