//! Preallocated handles and tables: most blocks that begin, fill up or migrate allocate nothing.
//!
//! They are outside of the page pool's budget, so they grow with the sequence, not with its
//! capacity.

use std::sync::Arc;

use crate::block::Block;
use crate::storage::Storage;
use crate::store::KvStore;

use super::Sequence;

/// Blocks for which tables and handles are allocated at a time.
const GROWN_BLOCKS: usize = 64;

/// Maximum of vacant storages kept: one for the tail, the others for migrating blocks.
const KEPT_STORAGES: usize = 4;

/// Blocks and storages without memory.
#[derive(Default)]
pub(super) struct Handles {
    blocks: Vec<Block>,
    storages: Vec<Arc<Storage>>,
}

impl Handles {
    /// Allocates handles up to `n_blocks`, unless at least `least` are left.
    fn prepare(&mut self, store: &KvStore, least: usize, n_blocks: usize) {
        let present = self.blocks.len();
        if present < least {
            let vacant = || Block::new(store.clone(), Arc::new(Storage::vacant(store)));
            self.blocks.extend(std::iter::repeat_with(vacant).take(n_blocks.saturating_sub(present)));
        }
        self.storages.reserve(KEPT_STORAGES.saturating_sub(self.storages.len()));
    }

    /// Allocated bytes, those of the pool excluded.
    fn bytes(&self, store: &KvStore) -> usize {
        let of_block = Block::HANDLE_BYTES + Storage::handle_bytes(store) + size_of::<Block>();
        let of_storage = Storage::handle_bytes(store) + size_of::<Arc<Storage>>();
        self.blocks.len() * of_block + self.storages.len() * of_storage
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

impl Sequence {
    /// Allocates tables and handles for a step that fills `needed` blocks from the first of the
    /// sequence on, and for some blocks more.
    pub(super) fn prepare_tables(&mut self, needed: usize) {
        let most = self.most_blocks().saturating_sub(self.sealed());
        let least = needed.saturating_sub(self.sealed()).min(most);
        let n_blocks = least.max(GROWN_BLOCKS).min(most);
        if self.blocks.capacity() - self.blocks.len() < least {
            self.blocks.reserve(n_blocks);
        }
        // Empty between steps; a step pins every block.
        self.pinned.reserve(self.blocks.capacity().saturating_sub(self.pinned.len()));
        self.handles.prepare(&self.store, least, n_blocks);
    }

    /// Allocated bytes of the block table and of handles, present and preallocated ones. They are
    /// outside of the page pool's budget and grow with the number of blocks. Shared blocks count in
    /// each of their sequences.
    pub fn table_bytes(&self) -> usize {
        let tables = self.blocks.capacity() * size_of::<Block>()
            + (self.pinned.capacity() + self.tail.capacity()) * size_of::<Arc<Storage>>()
            + self.mass.capacity() * size_of::<f32>();
        let of_storage = Storage::handle_bytes(&self.store);
        let present = self.blocks.len() * (Block::HANDLE_BYTES + of_storage) + self.tail.len() * of_storage;
        tables + present + self.handles.bytes(&self.store)
    }
}
