//! MicroLoRA: adapters of rank 1 to 4 whose factors change while requests run.
//!
//! A [`MicroLora`] has one current version, an [`Adapter`] like any other: a request takes it with
//! [`current`](MicroLora::current) and computes with it to its end. [`update`](MicroLora::update)
//! writes the next version into the buffer of the one before (`versions.rs`). The rules of learning
//! are the caller's.

mod edit;
mod preset;
#[cfg(test)]
mod tests;
mod versions;

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};

use ruvllm_kernels::low_rank::FactorFormat;
use ruvllm_memory::{PagePool, Request};
use sha2::{Digest as _, Sha256};

use crate::adapter::{Adapter, Memory};
use crate::digest::Digests;
use crate::error::{Error, Result};
use crate::layout::{Layout, SiteShape};
use crate::place::{BaseModel, Projection};
use crate::sync::{Arc, Mutex, lock};

use edit::Changes;
pub use edit::{Edit, SiteEdit};
pub use preset::Preset;
use versions::{Next, Versions};

/// Largest rank per target module.
pub const MAX_RANK: usize = 4;

/// Modules, rank and first values of a [`MicroLora`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MicroConfig {
    /// Rank per target module, 1 to [`MAX_RANK`].
    pub rank: usize,
    /// The target modules, in every layer; those of no layer once.
    pub targets: Vec<Projection>,
    /// Seed of the first values of `A`.
    pub seed: u64,
}

impl From<Preset> for MicroConfig {
    fn from(preset: Preset) -> Self {
        Self { rank: preset.rank, targets: preset.targets.to_vec(), seed: 0 }
    }
}

/// Adapter in f32 that is changed while requests compute with it.
pub struct MicroLora {
    versions: Versions<Adapter>,
    writer: Mutex<Writer>,
    /// Tells this adapter from all others in digests of its versions.
    id: [u8; 32],
    pool: PagePool,
    request: Request,
}

/// State of updates.
struct Writer {
    /// Number of the current version, from 0.
    version: u64,
    changes: Changes,
}

/// Factors of one version.
#[derive(Clone)]
pub struct Snapshot {
    id: [u8; 32],
    version: u64,
    factors: Box<[u8]>,
}

impl MicroLora {
    /// Makes an adapter that changes nothing yet: `A` uniform in `±1/sqrt(inputs)`, as PEFT draws
    /// it, and `B` zero. Its two buffers are pages of `pool`.
    ///
    /// # Errors
    /// [`Error::Micro`] for a rank of 0 or above [`MAX_RANK`], no target or one twice;
    /// [`Error::Memory`].
    pub fn new(
        base: &std::sync::Arc<BaseModel>,
        config: &MicroConfig,
        pool: &PagePool,
        request: &Request,
    ) -> Result<Self> {
        let layout = Layout::new(FactorFormat::F32, shapes(base, config)?)?;
        let n_sites = layout.sites().len();
        let mut memory = Memory::new(layout, pool, request)?;
        let mut state = config.seed;
        for index in 0..n_sites {
            let (values, width) = memory.a_mut(index);
            let bound = 1.0 / (width as f32).sqrt();
            values.fill_with(|| bound * uniform(&mut state));
        }
        let id = unique();
        let adapter = memory.finish_with(base, |layout| digests(base, layout, &id, 0));
        Ok(Self {
            versions: Versions::new(adapter),
            writer: Mutex::new(Writer { version: 0, changes: Changes::new(n_sites) }),
            id,
            pool: pool.clone(),
            request: request.clone(),
        })
    }

    /// The current version. It does not change: a request that began with it ends with it.
    pub fn current(&self) -> Arc<Adapter> {
        self.versions.current()
    }

    /// Number of the current version: updates and restorations since the beginning.
    pub fn version(&self) -> u64 {
        lock(&self.writer).version
    }

    /// Publishes the next version, which `edit` makes from the current one; returns its result.
    /// Updates take turns; nobody who reads waits for one.
    ///
    /// Only sites that `edit` asks for are copied from version to version. A panic in `edit`
    /// publishes nothing.
    ///
    /// # Errors
    /// [`Error::NotFinite`] for values that are not numbers, and [`Error::Memory`] where readers
    /// hold the buffer of the former version and there is none for another; the current version
    /// stays.
    pub fn update<R>(&self, edit: impl FnOnce(&mut Edit<'_>) -> R) -> Result<R> {
        let mut writer = lock(&self.writer);
        let Writer { version, changes } = &mut *writer;
        let next_version = *version + 1;
        let result = self.versions.update(
            |current| current.buffer(&self.pool, &self.request),
            |current, next| {
                let next = match next {
                    Next::Former(next) => next,
                    Next::New(next) => {
                        changes.all_stale();
                        next
                    }
                };
                let layout = std::sync::Arc::clone(current.layout());
                let digests = digests(current.base(), &layout, &self.id, next_version);
                let factors = next.begin_version(next_version, digests);
                let mut edit_of = Edit::new(&layout, current.factors(), factors, changes);
                let result = edit(&mut edit_of);
                edit_of.finish()?;
                Ok(result)
            },
        );
        match result {
            Ok(result) => {
                changes.publish();
                *version = next_version;
                Ok(result)
            }
            Err(error) => {
                // The buffer was given up: the next one is new.
                changes.all_stale();
                Err(error)
            }
        }
    }

    /// Copies the factors of the current version.
    pub fn snapshot(&self) -> Snapshot {
        let writer = lock(&self.writer);
        let factors = self.versions.current().factors().into();
        Snapshot { id: self.id, version: writer.version, factors }
    }

    /// Publishes the factors of a snapshot as the next version.
    ///
    /// # Errors
    /// [`Error::Micro`] for a snapshot of another adapter, and those of [`update`](Self::update).
    pub fn restore(&self, snapshot: &Snapshot) -> Result<()> {
        if snapshot.id != self.id {
            return Err(Error::Micro { what: "the snapshot is of another adapter".to_owned() });
        }
        self.update(|edit| edit.replace(&snapshot.factors))
    }
}

impl Snapshot {
    /// Number of the version that it holds.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Bytes of its factors.
    pub fn bytes(&self) -> usize {
        self.factors.len()
    }
}

impl fmt::Debug for MicroLora {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MicroLora").field("version", &self.version()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("version", &self.version)
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

/// Sites of all layers, each module with components of its own.
fn shapes(base: &BaseModel, config: &MicroConfig) -> Result<Vec<SiteShape>> {
    let wrong = |what: &str| Err(Error::Micro { what: what.to_owned() });
    if !(1..=MAX_RANK).contains(&config.rank) {
        return wrong("its rank is not 1 to 4");
    }
    let mut targets = config.targets.clone();
    targets.sort_unstable();
    if targets.is_empty() {
        return wrong("it has no target modules");
    }
    if targets.windows(2).any(|pair| pair[0] == pair[1]) {
        return wrong("it has a target module twice");
    }
    Ok(SiteShape::of_modules(base, &targets, config.rank))
}

/// Digests of a version, by number instead of content: hashing factors would take longer than an
/// update.
fn digests(base: &BaseModel, layout: &Layout, id: &[u8; 32], version: u64) -> Digests {
    let digest = |what: &str| -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(what);
        hash.update(id);
        hash.update(version.to_le_bytes());
        hash.finalize().into()
    };
    let changes_kv = layout.sites().iter().any(|at| base.changes_kv(at.layer, at.site));
    Digests { factors: digest("micro;"), kv: changes_kv.then(|| digest("micro kv;")) }
}

/// Value that no other adapter has, in this process or another: prefixes on disk are named by it.
fn unique() -> [u8; 32] {
    let mut hash = Sha256::new();
    // Each state is seeded by the system.
    for part in 0..4u64 {
        hash.update(RandomState::new().hash_one(part).to_le_bytes());
    }
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    hash.update(time.as_nanos().to_le_bytes());
    hash.update(std::process::id().to_le_bytes());
    hash.finalize().into()
}

/// Next value in -1 to 1 (SplitMix64: Steele, Lea and Flood, OOPSLA 2014).
fn uniform(state: &mut u64) -> f32 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}
