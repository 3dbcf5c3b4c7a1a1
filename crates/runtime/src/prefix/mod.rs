//! Prefixes of earlier requests: shared in memory while the engine lives, in a folder beyond that.

mod fingerprint;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gguf_rs_lite::Gguf;
use parking_lot::Mutex;
use ruvllm_kernels::Kernels;
use ruvllm_kv_cache::prefix::{
    Inserted, PrefixError, PrefixKey, PrefixPin, PrefixStore, PrefixTree, Scope, TreeStatistics, Warning,
    store::{Entry, StoreStatistics},
};
use ruvllm_kv_cache::{Block, KvFormats, KvStore, Sequence};
use ruvllm_models::{ModelConfig, TokenId};

use crate::error::{Error, Result};

pub(crate) use fingerprint::fingerprint;

/// Use of the pool at which prefixes begin to be given up.
const HIGH: f64 = 0.80;

/// Use of the pool at which no more are.
const LOW: f64 = 0.70;

/// Blocks that are given up between two looks at the pool.
const GIVEN_UP_AT_ONCE: usize = 16;

/// Whether the keys and values of prompts are kept for later requests that begin alike.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PrefixCaching {
    /// Every prompt is computed from its beginning.
    Off,
    /// Kept while the engine lives, as long as the KV budget has room.
    #[default]
    Memory,
    /// Also written to files, which later engines of the same model and KV policy find. They hold what was in the
    /// prompts, in a form from which it can be recovered: keep the folder as private as the prompts.
    Folder {
        /// Where the files go; made when it is missing.
        path: PathBuf,
        /// Most bytes of all files; the least recently used go first.
        limit_bytes: u64,
    },
}

/// What is known of earlier requests, and how it was used.
pub(crate) struct PrefixCache {
    tree: PrefixTree<Block>,
    store: Option<PrefixStore>,
    key: PrefixKey,
    /// The key for sequences whose capacity is above this length, if the model rotates their keys in another way.
    long: Option<(usize, PrefixKey)>,
    failures: AtomicU64,
    warnings: Mutex<Vec<String>>,
}

/// What the prefix cache has done since the engine was loaded.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PrefixStatistics {
    /// The prefixes in memory.
    pub memory: TreeStatistics,
    /// The prefixes in the folder, if there is one.
    pub folder: Option<StoreStatistics>,
    /// Blocks that could not be written to the folder or read from it.
    pub failures: u64,
}

/// The part of a prompt that need not be computed.
#[derive(Debug, Default)]
pub(crate) struct Reused {
    /// Tokens that the sequence begins with.
    pub(crate) tokens: usize,
    /// Keeps the prefix from being evicted while it is in use.
    _pin: Option<PrefixPin>,
}

impl PrefixCache {
    /// The cache that `caching` asks for; none for [`PrefixCaching::Off`].
    pub(crate) fn open(
        caching: &PrefixCaching,
        gguf: &Gguf,
        config: &ModelConfig,
        kv: &KvStore,
    ) -> Result<Option<Self>> {
        let (store, model) = match caching {
            PrefixCaching::Off => return Ok(None),
            // Nothing outlives the engine, which has one model.
            PrefixCaching::Memory => (None, [0; 32]),
            PrefixCaching::Folder { path, limit_bytes } => {
                let store = PrefixStore::open(path, kv.block_tokens(), *limit_bytes);
                (Some(store.map_err(Error::PrefixStore)?), fingerprint(gguf))
            }
        };
        let key = PrefixKey {
            model,
            adapter: None,
            kv_format: kv_format(kv).into(),
            // Part of the model's metadata, and so of its fingerprint.
            rope_scaling: "as the model".into(),
            // All requests of an engine are one tenant's; nobody else's prefixes are its business.
            scope: Scope::Tenant("".into()),
        };
        let long = config.long_rope_above().map(|length| {
            (length, PrefixKey { rope_scaling: "as the model for long sequences".into(), ..key.clone() })
        });
        let tree = PrefixTree::new(kv.block_tokens());
        Ok(Some(Self { tree, store, key, long, failures: AtomicU64::new(0), warnings: Mutex::default() }))
    }

    /// What the keys and values of a sequence depend on beside its tokens.
    fn key(&self, sequence: &Sequence) -> &PrefixKey {
        match &self.long {
            Some((length, key)) if sequence.capacity() > *length => key,
            _ => &self.key,
        }
    }

    /// Begins an empty sequence with as much of `tokens` as is known. At least the last token is left to compute.
    ///
    /// # Errors
    /// If the sequence is not empty or has no room for the tokens.
    pub(crate) fn begin(
        &self,
        kernels: &Kernels,
        sequence: &mut Sequence,
        tokens: &[TokenId],
    ) -> Result<Reused, ruvllm_kv_cache::Error> {
        let key = self.key(sequence);
        let mut found = self.tree.lookup(key, tokens);
        let mut pin = found.pin.take();
        if let Some(inserted) = self.read_back(key, sequence.store(), tokens, &found.blocks) {
            // The blocks of the tree are the ones to share: they are there for the next request as well.
            found = self.tree.lookup(key, tokens);
            pin = inserted.pin;
        }
        sequence.append_shared(&found.blocks)?;
        let mut n_tokens = found.tokens;
        if let Some(partial) = found.partial {
            // Without room for the copy its tokens are computed, which reports the lack of room if it lasts.
            if sequence.append_copy(kernels, &partial.block, partial.tokens).is_ok() {
                n_tokens += partial.tokens;
            }
        }
        Ok(Reused { tokens: n_tokens, _pin: pin })
    }

    /// Makes the blocks of a sequence of `tokens` known to later requests. Files get the whole ones: a rest of a block would
    /// cost as much to read as to compute.
    pub(crate) fn keep(&self, sequence: &mut Sequence, tokens: &[TokenId]) {
        let block_tokens = self.tree.block_tokens();
        // A sequence that slid its window has lost its beginning, and with it what a prefix is good for.
        if sequence.released() > 0 {
            return;
        }
        let key = self.key(sequence);
        let blocks = sequence.share();
        self.tree.insert(key, tokens, blocks);
        let Some(store) = &self.store else { return };
        let whole = tokens.len() / block_tokens;
        for (at, block) in blocks[..whole].iter().enumerate() {
            let block = block.pin();
            let payload: Vec<&[u8]> = block.layers().collect();
            if let Err(error) = store.put(key, &tokens[..(at + 1) * block_tokens], &payload) {
                // The rest would not be found without this block.
                self.report(&error);
                return;
            }
        }
    }

    /// Loads what the folder knows beyond `known` blocks and puts it into the tree.
    fn read_back(
        &self,
        key: &PrefixKey,
        kv: &KvStore,
        tokens: &[TokenId],
        known: &[Block],
    ) -> Option<Inserted<Block>> {
        let store = self.store.as_ref()?;
        let found = store.find(key, tokens, known.len());
        found.warnings.iter().for_each(|warning| self.warn(warning));
        let mut blocks = known.to_vec();
        let mut payload = Vec::new();
        for entry in &found.chain {
            match load(kv, store, entry, &mut payload) {
                Ok(block) => blocks.push(block),
                Err(LoadError::Store(error)) => {
                    self.report(&error);
                    break;
                }
                // No room, or blocks of another build: the rest is computed instead, or fails there with the reason.
                Err(LoadError::Cache | LoadError::Size) => break,
            }
        }
        (blocks.len() > known.len()).then(|| {
            let n_tokens = blocks.len() * self.tree.block_tokens();
            self.tree.insert(key, &tokens[..n_tokens], &blocks)
        })
    }

    /// Gives up prefixes when 80 % of the pool is in use, until 70 % is or only those in use are left: what may be wanted
    /// again gives way before running sequences lose precision.
    pub(crate) fn relieve(&self, kv: &KvStore) {
        let used = || {
            let pool = kv.pool().stats();
            pool.used_pages as f64 / pool.capacity_pages as f64
        };
        if used() >= HIGH {
            // Blocks are smaller than pages: some go before a page is free.
            while used() > LOW && self.give_up() {}
        }
    }

    /// Gives up a few of the blocks that were not used for the longest time; `false` if there are none.
    pub(crate) fn give_up(&self) -> bool {
        !self.tree.evict(GIVEN_UP_AT_ONCE).is_empty()
    }

    pub(crate) fn statistics(&self) -> PrefixStatistics {
        PrefixStatistics {
            memory: self.tree.statistics(),
            folder: self.store.as_ref().map(PrefixStore::statistics),
            failures: self.failures.load(Relaxed),
        }
    }

    /// What went wrong with the folder since the last call; every request was served all the same.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.warnings.lock())
    }

    fn report(&self, error: &PrefixError) {
        self.note(with_causes(error));
    }

    fn warn(&self, warning: &Warning) {
        self.note(warning.to_string());
    }

    fn note(&self, text: String) {
        self.failures.fetch_add(1, Relaxed);
        self.warnings.lock().push(text);
    }
}

/// How blocks are stored, and under which calibration if they mean nothing without.
fn kv_format(kv: &KvStore) -> String {
    let mut text = kv.policy().to_string();
    if let Some(calibration) = kv.calibration() {
        text.push_str(" calibrated ");
        text.extend(calibration.fingerprint().iter().map(|byte| format!("{byte:02x}")));
    }
    text
}

/// Why a stored block could not be used.
enum LoadError {
    Store(PrefixError),
    Cache,
    Size,
}

impl From<ruvllm_kv_cache::Error> for LoadError {
    fn from(_: ruvllm_kv_cache::Error) -> Self {
        Self::Cache
    }
}

/// Reads a block from the folder; `payload` is reused memory.
fn load(kv: &KvStore, store: &PrefixStore, entry: &Entry, payload: &mut Vec<u8>) -> Result<Block, LoadError> {
    let n_bytes = usize::try_from(entry.payload_bytes()).unwrap_or(usize::MAX);
    // A colder tier is always smaller, so the size tells the tier.
    let is_of = |formats: &KvFormats| {
        formats.block_bytes(kv.shape(), kv.block_tokens()).is_ok_and(|bytes| bytes == n_bytes)
    };
    let formats = kv.policy().tiers().find(is_of).ok_or(LoadError::Size)?;
    payload.resize(n_bytes, 0);
    store.load(entry, &mut [payload]).map_err(LoadError::Store)?;
    let layer_bytes = n_bytes / kv.shape().n_layers;
    kv.restore_block(formats, |layer, to| {
        to.copy_from_slice(&payload[layer * layer_bytes..][..layer_bytes]);
        Ok(())
    })
}

/// An error and what caused it, in one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ruvllm_kernels::{NuqCodebooks, RopeFrequencies, RopeLayout};
    use ruvllm_kv_cache::{KvCalibration, KvRope, KvShape};
    use ruvllm_memory::{PagePool, PoolConfig};

    use super::*;

    #[test]
    fn blocks_under_another_calibration_are_other_blocks() {
        let pool = PagePool::new(PoolConfig::new(32 << 20)).expect("a pool");
        let shape = KvShape { n_layers: 1, n_kv_heads: 1, head_dim: 32 };
        let policy = "tiered:warm=nuq3".parse().expect("a policy");
        let format = |high: f32| {
            let levels = [-0.9, -0.6, -0.3, -0.1, 0.1, 0.3, 0.6, 0.9];
            let layer = NuqCodebooks::new(levels, levels, vec![[0.0, high]; 32]).expect("codebooks");
            let calibration = KvCalibration::new([0; 32], shape, vec![layer]).expect("a calibration");
            let frequencies = RopeFrequencies { inverse: vec![0.5; 16], magnitude: 1.0 };
            let rope = KvRope { frequencies, layout: RopeLayout::Halves };
            let kv = KvStore::with_calibration(shape, &policy, &pool, Arc::new(calibration), rope);
            kv_format(&kv.expect("a store"))
        };
        assert!(format(1.0).starts_with("tiered:warm=nuq3"));
        assert_eq!(format(1.0), format(1.0));
        assert_ne!(format(1.0), format(2.0));
        let plain = KvStore::new(shape, &"tiered".parse().expect("a policy"), &pool).expect("a store");
        assert_eq!(kv_format(&plain), "tiered");
    }
}
