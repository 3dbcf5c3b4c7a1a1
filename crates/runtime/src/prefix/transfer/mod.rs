//! Prefixes that engines hand to each other (ADR-0107): blocks of one leave as entries in the form
//! of the prefix folder's files, one after the other in a stream of bytes, and enter another after
//! each was verified.

mod error;
mod export;
mod import;
mod plan;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use ruvllm_kv_cache::prefix::store::EntryFormat;
use ruvllm_kv_cache::prefix::{FolderKey, PrefixKey, Scope};

use super::PrefixCache;
pub use error::{EntryFault, TransferError};
pub use export::PrefixExport;
pub use import::{ImportedPrefix, PrefixImport};
pub use plan::ImportPlan;

/// Description of blocks that an engine sends, ahead of them. It saves a transfer that could not be
/// used; each entry is verified all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixOffer {
    /// Fingerprint of the model, and of the kernels that replace native ones.
    pub model: [u8; 32],
    /// KV policy, with the fingerprint of its calibration if there is one.
    pub kv_format: String,
    /// Tokens of a block.
    pub block_tokens: usize,
    /// True if entries carry a tag of a prefix key.
    pub is_tagged: bool,
    /// Index of the first block that is sent.
    pub first_block: usize,
    /// Number of blocks that are sent.
    pub blocks: usize,
    /// Bytes of their entries.
    pub bytes: u64,
}

/// Counters of transfers of prefixes since the engine was loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferStatistics {
    /// Blocks sent.
    pub exported_blocks: u64,
    /// Bytes of their entries.
    pub exported_bytes: u64,
    /// Blocks received and verified.
    pub imported_blocks: u64,
    /// Bytes of their entries.
    pub imported_bytes: u64,
    /// Imports whose blocks all arrived.
    pub imports: u64,
    /// Imports that ended with a refused offer or entry, or without room.
    pub refused_imports: u64,
    /// Imports that ended before all blocks had arrived.
    pub incomplete_imports: u64,
    /// Plans of imports that were estimated to be slower than computing the tokens.
    pub slower_imports: u64,
    /// Tokens of those plans.
    pub slower_tokens: u64,
    /// Time of complete imports, from their begin on.
    pub import_time: Duration,
}

/// Settings and counters of transfers.
#[derive(Debug)]
pub(super) struct Transfers {
    /// True if the key of the cache has the fingerprint of the model.
    is_on: bool,
    /// Form of entries, with the deployment's prefix key if there is one.
    format: EntryFormat,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    exported_blocks: AtomicU64,
    exported_bytes: AtomicU64,
    imported_blocks: AtomicU64,
    imported_bytes: AtomicU64,
    imports: AtomicU64,
    refused_imports: AtomicU64,
    incomplete_imports: AtomicU64,
    slower_imports: AtomicU64,
    slower_tokens: AtomicU64,
    import_nanos: AtomicU64,
}

impl Transfers {
    pub(super) fn new(is_on: bool, block_tokens: usize, key: Option<FolderKey>) -> Self {
        Self { is_on, format: EntryFormat::new(block_tokens, key), counters: Counters::default() }
    }

    pub(super) fn statistics(&self) -> TransferStatistics {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let counters = &self.counters;
        TransferStatistics {
            exported_blocks: get(&counters.exported_blocks),
            exported_bytes: get(&counters.exported_bytes),
            imported_blocks: get(&counters.imported_blocks),
            imported_bytes: get(&counters.imported_bytes),
            imports: get(&counters.imports),
            refused_imports: get(&counters.refused_imports),
            incomplete_imports: get(&counters.incomplete_imports),
            slower_imports: get(&counters.slower_imports),
            slower_tokens: get(&counters.slower_tokens),
            import_time: Duration::from_nanos(get(&counters.import_nanos)),
        }
    }
}

impl PrefixCache {
    /// Refuses transfers unless they are on.
    fn check_transfers(&self) -> Result<(), TransferError> {
        if self.transfers.is_on { Ok(()) } else { Err(TransferError::Off) }
    }
}

/// Key of entries that are sent. It has no tenant: sender and receiver may know the caller by
/// different names. Entries of a folder have other names, so that none of a transfer can be put
/// there.
fn sent_key(key: &PrefixKey) -> PrefixKey {
    let kv_format = format!("{}, sent", key.kv_format).into();
    PrefixKey { scope: Scope::Shared, kv_format, ..key.clone() }
}
