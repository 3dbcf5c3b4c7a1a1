//! Shared blocks: immutable keys and values, which may be replaced by the same in fewer bits.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::error::{Error, Result};
use crate::policy::KvFormats;
use crate::storage::Storage;
use crate::store::KvStore;

/// The keys and values of `block_tokens` consecutive tokens in all layers. Clones are the same
/// block; its memory is released with the last one.
///
/// # Replacement
/// Readers take the present storage once ([`Block::pin`]) and keep it while they read. A migration
/// writes another storage beside it and publishes it with one store under the lock; the old one
/// lives until its last reader drops it. A reader therefore never sees two precisions of one
/// block, and does not wait for a copy.
#[derive(Clone)]
pub struct Block(pub(crate) Arc<BlockState>);

pub(crate) struct BlockState {
    store: KvStore,
    storage: RwLock<Arc<Storage>>,
}

/// Keys and values of a block at the time of its pin.
pub struct PinnedBlock {
    store: KvStore,
    storage: Arc<Storage>,
}

impl KvStore {
    /// A whole block from the bytes of [`PinnedBlock::layers`]: `fill` writes each layer's
    /// into the buffer it gets.
    ///
    /// # Errors
    /// [`Error::AbsentTier`] if no tier has these formats; [`Error::Memory`] and
    /// [`Error::BudgetReached`] without room; the error of `fill`.
    pub fn restore_block<E: From<Error>>(
        &self,
        formats: KvFormats,
        mut fill: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<Block, E> {
        let found = self.tiers().position(|tier| tier.formats == formats);
        let tier = found.ok_or_else(|| Error::AbsentTier {
            formats: formats.to_string(),
            policy: self.policy().to_string(),
        })?;
        let mut storage = self.allocate(tier)?;
        for layer in 0..self.shape().n_layers {
            fill(layer, storage.layer_mut(layer))?;
        }
        Ok(Block::new(self.clone(), Arc::new(storage)))
    }
}

impl Block {
    /// Bytes of a block without its storage, reference counts included.
    pub(crate) const HANDLE_BYTES: usize = size_of::<BlockState>() + 2 * size_of::<usize>();

    pub(crate) fn new(store: KvStore, storage: Arc<Storage>) -> Self {
        Self(Arc::new(BlockState { store, storage: RwLock::new(storage) }))
    }

    /// The present keys and values, which do not change while the pin lives.
    pub fn pin(&self) -> PinnedBlock {
        PinnedBlock { store: self.0.store.clone(), storage: self.storage() }
    }

    /// The present formats.
    pub fn formats(&self) -> KvFormats {
        self.0.store.tier(self.tier()).formats
    }

    /// Allocated bytes, scales and padding included.
    pub fn bytes(&self) -> usize {
        self.0.storage.read().bytes()
    }

    /// The store that made it, with the tenant charged for it.
    pub fn store(&self) -> &KvStore {
        &self.0.store
    }

    pub(crate) fn storage(&self) -> Arc<Storage> {
        self.0.storage.read().clone()
    }

    pub(crate) fn tier(&self) -> usize {
        self.0.storage.read().tier()
    }

    /// The storage, if the block has no other holder or reader, is in `tier` and charged to the
    /// tenant of `owner`; the block otherwise.
    pub(crate) fn into_storage(self, tier: usize, owner: &KvStore) -> Result<Arc<Storage>, Self> {
        let BlockState { store, storage } = Arc::try_unwrap(self.0).map_err(Self)?;
        let mut storage = storage.into_inner();
        let is_free = Arc::get_mut(&mut storage)
            .is_some_and(|storage| storage.tier() == tier && storage.store().is_of_same_tenant(owner));
        if is_free { Ok(storage) } else { Err(Self::new(store, storage)) }
    }

    /// Replaces `old` by `new`; `false` if another storage took its place meanwhile.
    pub(crate) fn publish(&self, old: &Arc<Storage>, new: Arc<Storage>) -> bool {
        let mut storage = self.0.storage.write();
        let current = Arc::ptr_eq(&storage, old);
        if current {
            *storage = new;
        }
        current
    }

    /// Replaces the present storage by `new` and returns it.
    pub(crate) fn exchange(&self, new: Arc<Storage>) -> Arc<Storage> {
        std::mem::replace(&mut *self.0.storage.write(), new)
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Block").field("formats", &self.formats()).finish_non_exhaustive()
    }
}

impl PinnedBlock {
    /// Formats of the keys and values.
    pub fn formats(&self) -> KvFormats {
        self.store.tier(self.storage.tier()).formats
    }

    /// The bytes of each layer, keys then values, for [`KvStore::restore_block`].
    pub fn layers(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.store.shape().n_layers).map(|layer| self.storage.layer(layer))
    }
}
