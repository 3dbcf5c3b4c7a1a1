//! Prefixes of earlier requests: shared in memory while the engine lives, in a folder beyond that.
//!
//! A conversation between two of its requests is such a prefix. When memory is short, the page pool
//! chooses which are evicted (ADR-0028), to files if there is a folder; what is wanted again is
//! read back or computed, whichever is quicker.

mod cost;
mod fingerprint;
mod report;
#[cfg(test)]
mod tests;
mod writer;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ruvllm_adapters::Adapter;
use ruvllm_kernels::Kernels;
use ruvllm_kv_cache::prefix::{
    AdapterVersion, Evicted, FolderKey, Inserted, LeafEviction, LeafId, Leaves, PrefixKey, PrefixPin,
    PrefixStore, PrefixTree, Scope, TreeStatistics,
    store::{Entry, StoreStatistics},
};
use ruvllm_kv_cache::{Block, KvFormats, KvStore, Sequence};
use ruvllm_memory::{Demand, Offer, OwnerId, PagePool, PressureOwner, Release, Rung, Use};
use ruvllm_models::ModelConfig;
use ruvllm_text::TokenId;

use crate::error::{Error, Result};
use crate::quality::QualityFiles;

use cost::ReuseCost;
pub(crate) use fingerprint::{fingerprint, hex};
pub(crate) use report::Reports;
use writer::{WhenFull, WriteQueue, Writer};

/// Most blocks that are evicted between two looks at the pool.
const MOST_AT_ONCE: usize = 16;

/// Storage of prompt keys and values for reuse by requests with the same prefix.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PrefixCaching {
    /// Every prompt is computed from its beginning.
    Off,
    /// Kept while the engine lives, as long as the KV budget has room.
    #[default]
    Memory,
    /// Also written to files, which later engines of the same model and KV policy find. They hold
    /// what was in the prompts, in a form from which it can be recovered: keep the folder as
    /// private as the prompts. They are written behind the requests; a request whose blocks find no
    /// room in the queue waits at its end.
    Folder {
        /// Folder of the files; created if missing.
        path: PathBuf,
        /// Most bytes of all files; the least recently used go first.
        limit_bytes: u64,
    },
    /// Kept in memory, and written to files once the KV budget is short: what is evicted then is
    /// read back when it is wanted again, unless computing it is quicker. What was written is found
    /// by later engines, as with [`Folder`](Self::Folder). No request waits for it: what finds no
    /// room in the queue is lost.
    Spill {
        /// Folder of the files; created if missing.
        path: PathBuf,
        /// Most bytes of all files; the least recently used go first.
        limit_bytes: u64,
    },
}

/// Prefix cache: the keys and values of earlier requests, and counters of their use.
pub(crate) struct PrefixCache {
    tree: PrefixTree<Block, PoolLeaves>,
    files: Option<Files>,
    /// The key of the root tenant.
    key: PrefixKey,
    /// The length above which a sequence's capacity makes the model rotate its keys in another way,
    /// if it does.
    long_above: Option<usize>,
    cost: Arc<ReuseCost>,
    recomputed_tokens: AtomicU64,
    reports: Arc<Reports>,
}

/// The folder of a prefix cache, and who writes to it.
struct Files {
    store: Arc<PrefixStore>,
    writer: Writer,
    /// True if blocks are written as soon as they are known, false if only when evicted.
    at_once: bool,
}

/// Counters of the prefix cache since the engine was loaded.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PrefixStatistics {
    /// The prefixes in memory.
    pub memory: TreeStatistics,
    /// The prefixes in the folder, if there is one.
    pub folder: Option<StoreStatistics>,
    /// Blocks that were written to the folder because memory was short.
    pub spilled_blocks: u64,
    /// Blocks that were handed over to be written.
    pub queued_blocks: u64,
    /// Of those, blocks that wait.
    pub waiting_blocks: usize,
    /// Bytes of the blocks that wait, which are in memory beside the KV budget.
    pub waiting_bytes: usize,
    /// Blocks that were not written because too many waited, or because the one before them could
    /// not be written.
    pub dropped_blocks: u64,
    /// Tokens that the folder had, and that were computed because that seemed quicker than reading
    /// them.
    pub recomputed_tokens: u64,
    /// Blocks and other files that could not be written to the folder or read from it.
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
    /// The cache that `caching` asks for; none for [`PrefixCaching::Off`]. `folder_key` is that of
    /// a folder that others write to; `model` answers the model's fingerprint.
    pub(crate) fn open(
        caching: &PrefixCaching,
        folder_key: Option<&FolderKey>,
        model: impl FnOnce() -> [u8; 32],
        config: &ModelConfig,
        kv: &KvStore,
    ) -> Result<Option<Arc<Self>>> {
        let reports = Arc::new(Reports::default());
        let (files, model) = match caching {
            PrefixCaching::Off => return Ok(None),
            // Nothing outlives the engine, which has one model.
            PrefixCaching::Memory => (None, [0; 32]),
            PrefixCaching::Folder { path, limit_bytes } | PrefixCaching::Spill { path, limit_bytes } => {
                let (block_tokens, limit_bytes) = (kv.block_tokens(), *limit_bytes);
                let store = match folder_key {
                    Some(key) => PrefixStore::open_shared(path, block_tokens, limit_bytes, key),
                    None => PrefixStore::open(path, block_tokens, limit_bytes),
                };
                let store = store.map_err(Error::PrefixStore)?;
                let at_once = matches!(caching, PrefixCaching::Folder { .. });
                (Some(Files::new(store, at_once, &reports, kv)?), model())
            }
        };
        Ok(Some(Self::new(kv, files, reports, model, config.long_rope_above())))
    }

    fn new(
        kv: &KvStore,
        files: Option<Files>,
        reports: Arc<Reports>,
        model: [u8; 32],
        long_above: Option<usize>,
    ) -> Arc<Self> {
        let key = PrefixKey {
            model,
            adapter: None,
            kv_format: kv_format(kv).into(),
            // Part of the model's metadata, and so of its fingerprint.
            rope_scaling: "as the model".into(),
            scope: Scope::Tenant("".into()),
        };
        Arc::new_cyclic(|cache: &Weak<Self>| {
            let cost = Arc::new(ReuseCost::default());
            let leaves = PoolLeaves {
                pool: kv.pool().clone(),
                owner: kv.pool().register(Weak::<Self>::clone(cache)),
                block_tokens: kv.block_tokens(),
                has_files: files.is_some(),
                cost: Arc::clone(&cost),
            };
            let tree = PrefixTree::with_leaves(kv.block_tokens(), leaves);
            Self { tree, files, key, long_above, cost, recomputed_tokens: AtomicU64::new(0), reports }
        })
    }

    /// Key of a sequence's prefixes: everything beside its tokens that its keys and values depend
    /// on, the adapter and the tenant included. Tenants never share prefixes.
    fn key_of(&self, sequence: &Sequence, adapter: Option<&Adapter>) -> PrefixKey {
        let mut key = self.key.clone();
        key.adapter = adapter.map(|adapter| AdapterVersion { id: hex(adapter.digest()).into(), version: 0 });
        key.scope = Scope::Tenant(sequence.store().tenant().path().into());
        if self.long_above.is_some_and(|length| sequence.capacity() > length) {
            key.rope_scaling = "as the model for long sequences".into();
        }
        key
    }

    /// Begins an empty sequence with as much of `tokens` as is known of its tenant, or shared by
    /// all. At least the last token is left to compute.
    ///
    /// # Errors
    /// If the sequence is not empty or has no room for the tokens.
    pub(crate) fn begin(
        &self,
        kernels: &Kernels,
        sequence: &mut Sequence,
        adapter: Option<&Adapter>,
        tokens: &[TokenId],
    ) -> Result<Reused, ruvllm_kv_cache::Error> {
        let key = self.key_of(sequence, adapter);
        let mut found = self.tree.lookup(&key, tokens);
        let mut pin = found.pin.take();
        if let Some(inserted) = self.read_back(sequence.store(), &key, tokens, &found.blocks) {
            // The blocks of the tree are the ones to share: they are there for the next request as
            // well.
            found = self.tree.lookup(&key, tokens);
            pin = inserted.pin;
        }
        sequence.append_shared(&found.blocks)?;
        let mut n_tokens = found.tokens;
        if let Some(partial) = found.partial {
            // Without room for the copy its tokens are computed, which reports the lack of room if
            // it lasts.
            if sequence.append_copy(kernels, &partial.block, partial.tokens).is_ok() {
                n_tokens += partial.tokens;
            }
        }
        Ok(Reused { tokens: n_tokens, _pin: pin })
    }

    /// Makes the blocks of a sequence of `tokens` known to later requests of its tenant, and the
    /// whole ones of the first `shared_tokens` to all. Files get whole blocks: the rest of one
    /// would cost as much to read as to compute.
    pub(crate) fn keep(
        &self,
        sequence: &mut Sequence,
        adapter: Option<&Adapter>,
        tokens: &[TokenId],
        shared_tokens: usize,
    ) {
        let block_tokens = self.tree.block_tokens();
        // A sequence that slid its window has lost its beginning, and with it what a prefix is good
        // for.
        if sequence.released() > 0 {
            return;
        }
        let own = self.key_of(sequence, adapter);
        let shared = PrefixKey { scope: Scope::Shared, ..own.clone() };
        let shared_tokens = shared_tokens.min(tokens.len()) / block_tokens * block_tokens;
        let blocks = sequence.share();
        for (key, tokens) in [(shared, &tokens[..shared_tokens]), (own, tokens)] {
            let blocks = &blocks[..tokens.len().div_ceil(block_tokens)];
            self.tree.insert(&key, tokens, blocks);
            if let Some(files) = self.files.as_ref().filter(|files| files.at_once) {
                files.write(&key, tokens, blocks, self.tree.block_tokens());
            }
        }
    }

    /// Takes note of how long a part of a prompt took to compute.
    pub(crate) fn observe_prefill(&self, tokens: usize, time: Duration) {
        // A few tokens take as long as a block of them, which is what is read instead.
        if tokens >= self.tree.block_tokens() {
            self.cost.observe_prefill(tokens, time);
        }
    }

    /// Loads what the folder knows beyond `known` blocks and puts it into the tree, unless it is
    /// quicker to compute it.
    fn read_back(
        &self,
        kv: &KvStore,
        key: &PrefixKey,
        tokens: &[TokenId],
        known: &[Block],
    ) -> Option<Inserted<Block>> {
        let store = &self.files.as_ref()?.store;
        let block_tokens = self.tree.block_tokens();
        let found = store.find(key, tokens, known.len());
        found.warnings.iter().for_each(|warning| self.reports.add_error(warning));
        let (n_tokens, bytes) = (found.chain.len() * block_tokens, bytes_of(&found.chain));
        if !self.cost.reading_is_quicker(bytes, n_tokens) {
            self.cost.forgive_reading();
            self.recomputed_tokens.fetch_add(n_tokens as u64, Relaxed);
            return None;
        }
        let started = Instant::now();
        let mut blocks = known.to_vec();
        let mut payload = Vec::new();
        for entry in &found.chain {
            match load(kv, store, entry, &mut payload) {
                Ok(block) => blocks.push(block),
                Err(LoadError::Store(error)) => {
                    self.reports.add_error(&error);
                    break;
                }
                // No room, or blocks of another build: the rest is computed instead, or fails there
                // with the reason.
                Err(LoadError::Cache | LoadError::Size) => break,
            }
        }
        let n_read = blocks.len() - known.len();
        if n_read == 0 {
            return None;
        }
        self.cost.observe_read(bytes_of(&found.chain[..n_read]), started.elapsed());
        Some(self.tree.insert(key, &tokens[..blocks.len() * block_tokens], &blocks))
    }

    /// Blocks to evict now. At a watermark none may be lost because too many wait to be written.
    fn most_blocks(&self, is_urgent: bool) -> usize {
        match &self.files {
            Some(files) if !files.at_once && !is_urgent => files.writer.queue().room().min(MOST_AT_ONCE),
            _ => MOST_AT_ONCE,
        }
    }

    /// True if prefixes are stored in a folder.
    pub(crate) fn has_files(&self) -> bool {
        self.files.is_some()
    }

    /// Hands evicted blocks over to be written, where that is not done at once and will pay.
    fn spill(&self, Evicted { key, tokens, blocks }: &Evicted<Block>) {
        let bytes: usize = blocks.iter().map(Block::bytes).sum();
        let block_tokens = self.tree.block_tokens();
        if let Some(files) = self.files.as_ref().filter(|files| !files.at_once)
            && self.cost.reading_is_quicker(bytes as u64, blocks.len() * block_tokens)
        {
            files.write(key, tokens, blocks, block_tokens);
        }
    }

    /// Files for the state of quality targets, beside the stored prefixes; `None` without a folder.
    pub(crate) fn quality_files(&self) -> Option<QualityFiles> {
        let store = &self.files.as_ref()?.store;
        let (folder, folder_key) = (store.path().to_owned(), store.key().cloned());
        Some(QualityFiles { folder, folder_key, key: self.key.clone(), reports: Arc::clone(&self.reports) })
    }

    /// Waits until everything is written that was handed over.
    pub(crate) fn flush(&self) {
        if let Some(files) = &self.files {
            files.writer.queue().flush();
        }
    }

    pub(crate) fn statistics(&self) -> PrefixStatistics {
        let mut statistics = PrefixStatistics {
            memory: self.tree.statistics(),
            recomputed_tokens: self.recomputed_tokens.load(Relaxed),
            failures: self.reports.failures(),
            ..PrefixStatistics::default()
        };
        if let Some(Files { store, writer, at_once }) = &self.files {
            let (folder, queue) = (store.statistics(), writer.queue().statistics());
            statistics.spilled_blocks = if *at_once { 0 } else { folder.written_blocks };
            statistics.folder = Some(folder);
            statistics.queued_blocks = queue.queued_blocks;
            statistics.waiting_blocks = queue.waiting_blocks;
            statistics.waiting_bytes = queue.waiting_bytes;
            statistics.dropped_blocks = queue.dropped_blocks;
        }
        statistics
    }

    /// Warnings of the folder since the last call; every request was served all the same.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        self.reports.take()
    }
}

/// The leaves of the tree, as the page pool has them on offer.
struct PoolLeaves {
    pool: PagePool,
    owner: OwnerId,
    block_tokens: usize,
    has_files: bool,
    cost: Arc<ReuseCost>,
}

impl Leaves<Block> for PoolLeaves {
    fn now(&self) -> Use {
        self.pool.now(Rung::Prefix)
    }

    /// Blocks of one leaf may be those of several tenants; the last one, which goes first, decides.
    fn offer(&self, leaf: LeafId, blocks: &[Block], used: Use) {
        let Some(last) = blocks.last() else { return };
        let cost = self.cost.of_mib(last.bytes(), self.block_tokens, self.has_files);
        let offer = Offer { tenant: last.store().tenant(), rung: Rung::Prefix, cost, used };
        // A block is of this pool, and so is its tenant.
        let _ = self.pool.offer(self.owner, leaf.into(), offer);
    }
}

impl PressureOwner for PrefixCache {
    fn release(&self, unit: u64, demand: Demand) -> Release {
        let most = self.most_blocks(demand.is_urgent);
        if most == 0 {
            return Release::Refused;
        }
        let Ok(leaf) = LeafId::try_from(unit) else { return Release::Gone };
        let count = |blocks: &[Block]| {
            let mut bytes = 0;
            let is_wanted = |block: &&Block| {
                let is_wanted = bytes < demand.bytes;
                bytes += block.bytes();
                is_wanted
            };
            blocks.iter().rev().take(most).take_while(is_wanted).count()
        };
        match self.tree.evict_leaf(leaf, demand.last_use, count) {
            LeafEviction::Evicted { evicted, has_rest } => {
                self.spill(&evicted);
                Release::Released { has_rest }
            }
            LeafEviction::Used(used) => Release::Used(used),
            LeafEviction::Pinned => Release::Pinned,
            LeafEviction::Gone => Release::Gone,
        }
    }
}

impl Files {
    fn new(store: PrefixStore, at_once: bool, reports: &Arc<Reports>, kv: &KvStore) -> Result<Self> {
        let store = Arc::new(store);
        let when_full = if at_once { WhenFull::Wait } else { WhenFull::DropFirst };
        let queue = WriteQueue::new(Arc::clone(&store), Arc::clone(reports), when_full, kv);
        let writer = Writer::start(queue).map_err(Error::PrefixWriter)?;
        Ok(Self { store, writer, at_once })
    }

    /// Hands the last blocks of a prefix over to be written, those that are full and not stored.
    fn write(&self, key: &PrefixKey, tokens: &[TokenId], blocks: &[Block], block_tokens: usize) {
        let first = tokens.len().div_ceil(block_tokens) - blocks.len();
        let mut missing = self.store.missing(key, tokens, first);
        if !self.at_once {
            // Eviction goes from the end on: a queue that is full loses ends before what they
            // continue.
            missing.reverse();
        }
        for place in missing {
            let block = blocks[place.index() - first].pin();
            let layers: Vec<&[u8]> = block.layers().collect();
            self.writer.queue().push(place, layers.concat());
        }
    }
}

/// Storage format of blocks as text: the policy, and the fingerprint of its calibration if any.
fn kv_format(kv: &KvStore) -> String {
    let mut text = kv.policy().to_string();
    if let Some(calibration) = kv.calibration() {
        text.push_str(" calibrated ");
        text.push_str(&hex(&calibration.fingerprint()));
    }
    text
}

/// Bytes of the payloads of stored blocks.
fn bytes_of(chain: &[Entry]) -> u64 {
    // Sparse files may state any length.
    chain.iter().map(Entry::payload_bytes).fold(0, u64::saturating_add)
}

/// Reason that a stored block could not be used.
enum LoadError {
    Store(ruvllm_kv_cache::Error),
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
