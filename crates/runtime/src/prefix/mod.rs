//! Prefix cache: keys and values of earlier prompts, in memory and optionally in a folder or in a
//! storage shared with other engines.
//!
//! Under memory pressure the page pool selects prefixes to evict (ADR-0028), which are spilled to
//! files if there is a folder. Stored prefixes are read back or recomputed, whichever is faster.

mod archive;
mod borders;
mod caching;
mod cost;
mod events;
mod eviction;
mod fingerprint;
mod report;
mod states;
#[cfg(test)]
mod tests;
mod transfer;
mod writer;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ruvllm_kernels::Kernels;
use ruvllm_kv_cache::prefix::{
    AdapterVersion, FolderKey, Inserted, PrefixKey, PrefixNode, PrefixPin, PrefixStore, PrefixTree, Scope,
    TreeStatistics,
    store::{ChainReader, Entry, StoreStatistics},
};
use ruvllm_kv_cache::{Block, KvFormats, KvPolicy, KvStore, Sequence, StateSnapshot};
use ruvllm_models::{ModelConfig, RowKernels};
use ruvllm_text::TokenId;
use sha2::{Digest as _, Sha256};

use crate::error::{Error, Result};
use crate::quality::QualityFiles;

pub(crate) use borders::borders;
pub use caching::{PrefixCaching, PrefixStorage};
use cost::ReuseCost;
pub use events::{BlockHash, PrefixEvent, PrefixEvents};
use eviction::PoolLeaves;
pub(crate) use fingerprint::{fingerprint, hex};
pub(crate) use report::Reports;
use transfer::Transfers;
pub use transfer::{
    EntryFault, ImportPlan, ImportedPrefix, PrefixExport, PrefixImport, PrefixOffer, TransferError,
    TransferStatistics,
};
use writer::{WhenFull, WriteQueue, Writer};

/// Prefix cache: prefix tree, files and counters.
pub(crate) struct PrefixCache {
    tree: PrefixTree<Block, PoolLeaves, StateSnapshot>,
    files: Option<Files>,
    /// Prefix key of the root tenant, for native kernels.
    key: PrefixKey,
    /// Replacements of native kernels, which prefixes depend on.
    row_kernels: Option<Arc<dyn RowKernels>>,
    /// Policy of the engine's store, whose format `key` has.
    policy: KvPolicy,
    facts: ModelFacts,
    cost: Arc<ReuseCost>,
    recomputed_tokens: AtomicU64,
    reports: Arc<Reports>,
    transfers: Transfers,
}

/// Properties of a model that its prefixes depend on.
#[derive(Debug, Clone, Copy, Default)]
struct ModelFacts {
    /// Sequence capacity above which the model uses its second RoPE frequencies (`LongRoPE`);
    /// `None` if it has one set.
    long_above: Option<usize>,
    /// Values of the state of layers that keep one.
    state_values: usize,
}

/// Folder of a prefix cache, and its writer.
struct Files {
    store: Arc<PrefixStore>,
    writer: Writer,
    /// True if blocks are written at the end of each request, false if on eviction.
    at_once: bool,
}

/// Counters of the prefix cache since the engine was loaded.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PrefixStatistics {
    /// Counters of prefixes in memory.
    pub memory: TreeStatistics,
    /// Bytes of snapshots of states, for models with layers that keep one; part of the KV budget.
    pub snapshot_bytes: usize,
    /// Counters of prefixes in the folder or storage, if there is one.
    pub folder: Option<StoreStatistics>,
    /// Blocks spilled to the folder under memory pressure.
    pub spilled_blocks: u64,
    /// Blocks queued for writing.
    pub queued_blocks: u64,
    /// Blocks in the write queue.
    pub waiting_blocks: usize,
    /// Bytes of blocks in the write queue, in memory outside of the KV budget.
    pub waiting_bytes: usize,
    /// Blocks dropped because the queue was full or their parent block could not be written.
    pub dropped_blocks: u64,
    /// Tokens found in the folder but recomputed, because reading was estimated to be slower.
    pub recomputed_tokens: u64,
    /// Failed reads and writes of stored prefixes.
    pub failures: u64,
    /// Counters of transfers to and from other engines.
    pub transfers: TransferStatistics,
}

/// Prefix hit of a sequence.
#[derive(Debug, Default)]
pub(crate) struct Reused {
    /// Prompt tokens served from the cache.
    pub(crate) tokens: usize,
    /// Tokens whose blocks are cached, of models with layers that keep a state: more than `tokens`
    /// where prompts part and no state is stored.
    pub(crate) known_tokens: usize,
    /// Pins the prefix: no eviction while it is in use.
    _pin: Option<PrefixPin>,
}

impl Reused {
    /// A hit whose blocks are held otherwise.
    pub(crate) fn unpinned(tokens: usize) -> Self {
        Self { tokens, ..Self::default() }
    }
}

impl PrefixCache {
    /// Opens the prefix cache; `None` for [`PrefixCaching::Off`]. `folder_key`: key of a folder
    /// that other users write to, and of transfers, if those are on; `model` computes the model's
    /// fingerprint; `row_kernels` are those of the engine.
    pub(crate) fn open(
        caching: &PrefixCaching,
        folder_key: Option<&FolderKey>,
        has_transfers: bool,
        model: impl FnOnce() -> [u8; 32],
        config: &ModelConfig,
        kv: &KvStore,
        row_kernels: Option<Arc<dyn RowKernels>>,
    ) -> Result<Option<Arc<Self>>> {
        let reports = Arc::new(Reports::default());
        if *caching == PrefixCaching::Off {
            return Ok(None);
        }
        let (files, model) = match caching.open(kv.block_tokens(), folder_key)? {
            Some(store) => (Some(Files::new(store, caching.stores_all(), &reports, kv)?), model()),
            // Of the loaded weights: the file may be another one by the time of a transfer.
            None if has_transfers => (None, model()),
            // The cache ends with the engine, which has one model.
            None => (None, [0; 32]),
        };
        let transfers = Transfers::new(has_transfers, kv.block_tokens(), folder_key.cloned());
        let facts = ModelFacts { long_above: config.long_rope_above(), state_values: config.state_values() };
        Ok(Some(Self::new(kv, files, reports, model, facts, row_kernels, transfers)))
    }

    fn new(
        kv: &KvStore,
        files: Option<Files>,
        reports: Arc<Reports>,
        model: [u8; 32],
        facts: ModelFacts,
        row_kernels: Option<Arc<dyn RowKernels>>,
        transfers: Transfers,
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
            let policy = *kv.policy();
            let recomputed_tokens = AtomicU64::new(0);
            Self { tree, files, key, row_kernels, policy, facts, cost, recomputed_tokens, reports, transfers }
        })
    }

    /// Key of a sequence's prefixes. It covers everything besides the tokens that keys and values
    /// depend on, the tenant and the adapters' [`kv_digest`](ruvllm_adapters::kv_digest) included.
    /// Tenants never share prefixes under this key.
    pub(crate) fn key_of(&self, sequence: &Sequence, adapters: Option<[u8; 32]>) -> PrefixKey {
        self.key_for(sequence.store(), sequence.store().tenant().path(), sequence.capacity(), adapters)
    }

    /// Key of a tenant's prefixes without adapters, in the engine's own KV policy.
    fn own_key(&self, tenant: &str) -> PrefixKey {
        let model = self.computed_by(self.key.model);
        PrefixKey { model, scope: Scope::Tenant(tenant.into()), ..self.key.clone() }
    }

    /// Key of the prefixes of a sequence with these properties.
    pub(crate) fn key_for(
        &self,
        store: &KvStore,
        tenant: &str,
        capacity: usize,
        adapters: Option<[u8; 32]>,
    ) -> PrefixKey {
        let mut key = self.own_key(tenant);
        // Stores of several policies share the tree; the engine's own format is in the key already.
        if store.policy() != &self.policy {
            key.kv_format = kv_format(store).into();
        }
        key.adapter = adapters.map(|digest| AdapterVersion { id: hex(&digest).into(), version: 0 });
        if self.facts.long_above.is_some_and(|length| capacity > length) {
            key.rope_scaling = "as the model for long sequences".into();
        }
        key
    }

    /// Fingerprint of a model and of the kernels that compute it now: that of the model alone if
    /// all are native.
    fn computed_by(&self, model: [u8; 32]) -> [u8; 32] {
        match &self.row_kernels {
            None => model,
            Some(kernels) => Sha256::new_with_prefix(model).chain_update(kernels.digest()).finalize().into(),
        }
    }

    /// Appends up to `most` tokens that followed `tokens` in a cached prefix to `next`.
    pub(crate) fn continuation(
        &self,
        key: &PrefixKey,
        tokens: &[TokenId],
        most: usize,
        next: &mut Vec<TokenId>,
    ) {
        self.tree.continuation(key, tokens, most, next);
    }

    /// Appends the longest cached prefix of `tokens`, of the tenant or shared by all, to an empty
    /// sequence. At least the last token is left to compute. Nothing if that is fewer than `least`
    /// tokens; stored blocks are then not read back.
    ///
    /// # Errors
    /// If the sequence is not empty or has no room for the tokens.
    pub(crate) fn begin(
        &self,
        kernels: &Kernels,
        sequence: &mut Sequence,
        adapters: Option<[u8; 32]>,
        tokens: &[TokenId],
        least: usize,
    ) -> Result<Reused, ruvllm_kv_cache::Error> {
        if sequence.state_values() > 0 {
            return self.begin_with_state(sequence, adapters, tokens, least);
        }
        let key = self.key_of(sequence, adapters);
        let mut found = self.tree.lookup(&key, tokens);
        let mut pin = found.pin.take();
        if let Some(inserted) = self.read_back(sequence.store(), &key, tokens, &found.blocks, least) {
            // Shares the blocks in the tree, as the next request will.
            found = self.tree.lookup(&key, tokens);
            pin = inserted.pin;
        }
        let partial_tokens = found.partial.as_ref().map_or(0, |partial| partial.tokens);
        if found.tokens + partial_tokens < least {
            return Ok(Reused::default());
        }
        sequence.append_shared(&found.blocks)?;
        let mut n_tokens = found.tokens;
        if let Some(partial) = found.partial {
            // Without room for the copy its tokens are recomputed; that step reports a lasting
            // shortage.
            if sequence.append_copy(kernels, &partial.block, partial.tokens).is_ok() {
                n_tokens += partial.tokens;
            }
        }
        Ok(Reused { tokens: n_tokens, _pin: pin, ..Reused::default() })
    }

    /// Inserts the blocks of a sequence into the prefix tree of its tenant. The full blocks of the
    /// first `shared_tokens` are inserted for all tenants too. Files get full blocks only: reading
    /// a part of a block would cost as much as computing it. False if the sequence has no beginning
    /// any more.
    pub(crate) fn keep(
        &self,
        sequence: &mut Sequence,
        adapters: Option<[u8; 32]>,
        tokens: &[TokenId],
        shared_tokens: usize,
    ) -> bool {
        let files = self.files.as_ref().filter(|files| files.at_once);
        self.insert(sequence, adapters, tokens, shared_tokens, files);
        sequence.released() == 0
    }

    /// As [`keep`](Self::keep), in memory alone: the sequence runs on and is kept at its end.
    pub(crate) fn keep_in_memory(
        &self,
        sequence: &mut Sequence,
        adapters: Option<[u8; 32]>,
        tokens: &[TokenId],
        shared_tokens: usize,
    ) {
        self.insert(sequence, adapters, tokens, shared_tokens, None);
    }

    fn insert(
        &self,
        sequence: &mut Sequence,
        adapters: Option<[u8; 32]>,
        tokens: &[TokenId],
        shared_tokens: usize,
        files: Option<&Files>,
    ) {
        let block_tokens = self.tree.block_tokens();
        // A sliding window has released the first blocks: nothing to begin a prefix with.
        if sequence.released() > 0 {
            return;
        }
        let own = self.key_of(sequence, adapters);
        let shared = PrefixKey { scope: Scope::Shared, ..own.clone() };
        let shared_tokens = shared_tokens.min(tokens.len()) / block_tokens * block_tokens;
        let blocks = sequence.share();
        for (key, tokens) in [(shared, &tokens[..shared_tokens]), (own, tokens)] {
            let blocks = &blocks[..tokens.len().div_ceil(block_tokens)];
            self.tree.insert(&key, tokens, blocks);
            if let Some(files) = files {
                files.write(&key, tokens, blocks, block_tokens);
            }
        }
    }

    /// Records the duration of a prefill, for the cost model.
    pub(crate) fn observe_prefill(&self, tokens: usize, time: Duration) {
        // A few tokens take as long as a block: their rate would understate the prefill.
        if tokens >= self.tree.block_tokens() {
            self.cost.observe_prefill(tokens, time);
        }
    }

    fn count_recomputed(&self, tokens: usize) {
        self.recomputed_tokens.fetch_add(tokens as u64, Relaxed);
    }

    /// Loads the stored blocks after `known` into the tree, unless recomputing is faster or all of
    /// them are fewer than `least` tokens.
    fn read_back(
        &self,
        kv: &KvStore,
        key: &PrefixKey,
        tokens: &[TokenId],
        known: &[Block],
        least: usize,
    ) -> Option<Inserted<Block>> {
        let store = &self.files.as_ref()?.store;
        let block_tokens = self.tree.block_tokens();
        let found = store.find(key, tokens, known.len());
        found.warnings.iter().for_each(|warning| self.reports.add_error(warning));
        let (n_tokens, bytes) = (found.chain.len() * block_tokens, bytes_of(&found.chain));
        if known.len() * block_tokens + n_tokens < least {
            return None;
        }
        if !self.cost.reading_is_quicker(bytes, n_tokens) {
            self.cost.forgive_reading();
            self.count_recomputed(n_tokens);
            return None;
        }
        let started = Instant::now();
        let mut blocks = known.to_vec();
        let (mut reader, mut payload) = (store.reader(&found.chain), Vec::new());
        for entry in &found.chain {
            match load(kv, &mut reader, entry, &mut payload) {
                Ok(block) => blocks.push(block),
                Err(LoadError::Store(error)) => {
                    self.reports.add_error(&error);
                    break;
                }
                // No room, or blocks of another build: the rest is recomputed, or fails there with
                // the reason.
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

    /// True if prefixes are stored in a folder.
    pub(crate) fn has_files(&self) -> bool {
        self.files.is_some()
    }

    /// Files for the state of quality targets, beside the stored prefixes; `None` without a folder.
    pub(crate) fn quality_files(&self) -> Option<QualityFiles> {
        let store = &self.files.as_ref()?.store;
        let (folder, folder_key) = (store.folder()?.to_owned(), store.key().cloned());
        Some(QualityFiles { folder, folder_key, key: self.key.clone(), reports: Arc::clone(&self.reports) })
    }

    /// Waits until the write queue is empty.
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
            transfers: self.transfers.statistics(),
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

    /// The nodes of the tree that were used last.
    pub(crate) fn nodes(&self, most: usize) -> Vec<PrefixNode> {
        self.tree.latest_nodes(most)
    }

    /// Takes the warnings about the folder since the last call; no request failed because of them.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        self.reports.take()
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

    /// Queues the last blocks of a prefix for writing, if they are full and not stored yet.
    fn write(&self, key: &PrefixKey, tokens: &[TokenId], blocks: &[Block], block_tokens: usize) {
        let first = tokens.len().div_ceil(block_tokens) - blocks.len();
        let mut missing = self.store.missing(key, tokens, first);
        if !self.at_once {
            // Children before parents: a full queue drops the first, so ends of prefixes are lost
            // first.
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

/// Payload bytes of stored blocks.
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

/// Reads the reader's next block, of `entry`; `payload` is a reused buffer.
fn load(
    kv: &KvStore,
    reader: &mut ChainReader<'_>,
    entry: &Entry,
    payload: &mut Vec<u8>,
) -> Result<Block, LoadError> {
    let n_bytes = usize::try_from(entry.payload_bytes()).unwrap_or(usize::MAX);
    // A colder tier is always smaller, so the size identifies the tier.
    let is_of = |formats: &KvFormats| {
        formats.block_bytes(kv.shape(), kv.block_tokens()).is_ok_and(|bytes| bytes == n_bytes)
    };
    let formats = kv.policy().tiers().find(is_of).ok_or(LoadError::Size)?;
    payload.resize(n_bytes, 0);
    reader.read(&mut [payload]).map_err(LoadError::Store)?;
    let mut rest = payload.as_slice();
    kv.restore_block(formats, |_, to| {
        let (layer, behind) = rest.split_at(to.len());
        to.copy_from_slice(layer);
        rest = behind;
        Ok(())
    })
}
