//! Counters of a store.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of a [`PrefixStore`](crate::prefix::PrefixStore) since it was opened, of this process
/// alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStatistics {
    /// Calls of [`find`](crate::prefix::PrefixStore::find).
    pub lookups: u64,
    /// Blocks in the chains that were found.
    pub found_blocks: u64,
    /// Blocks loaded and verified.
    pub loaded_blocks: u64,
    /// Bytes of their payloads.
    pub loaded_bytes: u64,
    /// Blocks written.
    pub written_blocks: u64,
    /// Bytes of their entries.
    pub written_bytes: u64,
    /// Blocks deleted to make room.
    pub deleted_blocks: u64,
    /// Blocks that could not be used.
    pub unusable_blocks: u64,
    /// Calls of the storage that failed, those without an answer included.
    pub storage_errors: u64,
    /// Calls of the storage without an answer in time.
    pub storage_timeouts: u64,
    /// Times that a remote storage was left alone after a failure; a retry that fails prolongs the
    /// pause.
    pub storage_pauses: u64,
    /// Lookups that found nothing because the storage was left alone.
    pub skipped_lookups: u64,
    /// True while the storage is left alone.
    pub is_paused: bool,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) lookups: AtomicU64,
    pub(super) found_blocks: AtomicU64,
    pub(super) loaded_blocks: AtomicU64,
    pub(super) loaded_bytes: AtomicU64,
    pub(super) written_blocks: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) deleted_blocks: AtomicU64,
    pub(super) unusable_blocks: AtomicU64,
    pub(super) storage_errors: AtomicU64,
    pub(super) storage_timeouts: AtomicU64,
    pub(super) storage_pauses: AtomicU64,
    pub(super) skipped_lookups: AtomicU64,
}

impl Counters {
    pub(super) fn statistics(&self, is_paused: bool) -> StoreStatistics {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        StoreStatistics {
            lookups: get(&self.lookups),
            found_blocks: get(&self.found_blocks),
            loaded_blocks: get(&self.loaded_blocks),
            loaded_bytes: get(&self.loaded_bytes),
            written_blocks: get(&self.written_blocks),
            written_bytes: get(&self.written_bytes),
            deleted_blocks: get(&self.deleted_blocks),
            unusable_blocks: get(&self.unusable_blocks),
            storage_errors: get(&self.storage_errors),
            storage_timeouts: get(&self.storage_timeouts),
            storage_pauses: get(&self.storage_pauses),
            skipped_lookups: get(&self.skipped_lookups),
            is_paused,
        }
    }
}
