//! Preallocated handles: blocks that begin, fill up or migrate allocate nothing.

use std::sync::Arc;

use crate::block::Block;
use crate::storage::Storage;
use crate::store::KvStore;

/// Maximum of vacant storages kept: one for the tail, the others for migrating blocks.
const KEPT_STORAGES: usize = 4;

/// Blocks and storages without memory.
#[derive(Default)]
pub(super) struct Handles {
    blocks: Vec<Block>,
    storages: Vec<Arc<Storage>>,
}

impl Handles {
    /// Allocates handles of `n_blocks` blocks, unless some are left.
    pub(super) fn prepare(&mut self, store: &KvStore, n_blocks: usize) {
        if self.blocks.is_empty() {
            let vacant = || Block::new(store.clone(), Arc::new(Storage::vacant(store)));
            self.blocks.extend(std::iter::repeat_with(vacant).take(n_blocks));
            self.storages.reserve(KEPT_STORAGES);
        }
    }

    /// An unshared storage with memory of a tier.
    ///
    /// # Errors
    /// As [`KvStore::fill`].
    pub(super) fn allocate(&mut self, store: &KvStore, tier: usize) -> crate::Result<Arc<Storage>> {
        let mut handle = self.storages.pop().unwrap_or_else(|| Arc::new(Storage::vacant(store)));
        let storage = Arc::get_mut(&mut handle).expect("a vacant storage has one owner");
        match store.fill(storage, tier) {
            Ok(()) => Ok(handle),
            Err(error) => {
                self.keep(handle);
                Err(error)
            }
        }
    }

    /// A block of a storage.
    pub(super) fn block(&mut self, store: &KvStore, storage: Arc<Storage>) -> Block {
        let Some(block) = self.blocks.pop() else { return Block::new(store.clone(), storage) };
        let vacant = block.exchange(storage);
        self.keep(vacant);
        block
    }

    /// Releases the memory of an unshared storage and keeps its handle.
    pub(super) fn keep(&mut self, mut storage: Arc<Storage>) {
        if self.storages.len() < KEPT_STORAGES
            && let Some(own) = Arc::get_mut(&mut storage)
        {
            own.clear();
            self.storages.push(storage);
        }
    }
}
