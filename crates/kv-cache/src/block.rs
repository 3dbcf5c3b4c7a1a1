//! Blocks that are shared: their numbers do not change, but may be replaced by the same ones in
//! fewer bits.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::error::{Error, Result};
use crate::policy::KvFormats;
use crate::storage::Storage;
use crate::store::KvStore;

/// The keys and values of `block_tokens` consecutive tokens in all layers. Clones are the same
/// block; its memory goes back when the last one is dropped.
///
/// # Replacement
/// Readers take the present storage once ([`Block::pin`]) and keep it while they read. A migration
/// writes another storage beside it and publishes it with one store under the lock; the old one
/// lives until its last reader lets go. A reader therefore never sees two precisions of one block,
/// and nobody waits for a copy.
#[derive(Clone)]
pub struct Block(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    store: KvStore,
    storage: RwLock<Arc<Storage>>,
}

/// The numbers of a block as they were when it was pinned.
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
    pub(crate) fn new(store: KvStore, storage: Arc<Storage>) -> Self {
        Self(Arc::new(Shared { store, storage: RwLock::new(storage) }))
    }

    /// The present numbers, which stay as they are while the pin lives.
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

    /// The store that made it, with the tenant that it counts for.
    pub fn store(&self) -> &KvStore {
        &self.0.store
    }

    pub(crate) fn storage(&self) -> Arc<Storage> {
        self.0.storage.read().clone()
    }

    pub(crate) fn tier(&self) -> usize {
        self.0.storage.read().tier()
    }

    /// The storage itself, if nobody else holds the block or reads it, it is in `tier` and counts
    /// for the tenant of `owner`; the block otherwise.
    pub(crate) fn into_storage(self, tier: usize, owner: &KvStore) -> Result<Arc<Storage>, Self> {
        let Shared { store, storage } = Arc::try_unwrap(self.0).map_err(Self)?;
        let mut storage = storage.into_inner();
        let is_free = Arc::get_mut(&mut storage)
            .is_some_and(|storage| storage.tier() == tier && storage.store().is_of_same_tenant(owner));
        if is_free { Ok(storage) } else { Err(Self::new(store, storage)) }
    }

    /// Puts `new` in the place of `old`; `false` if another storage took it meanwhile.
    pub(crate) fn publish(&self, old: &Arc<Storage>, new: Arc<Storage>) -> bool {
        let mut storage = self.0.storage.write();
        let current = Arc::ptr_eq(&storage, old);
        if current {
            *storage = new;
        }
        current
    }

    /// Puts `new` in the place of whatever is there, which it returns.
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
    /// How the numbers are stored.
    pub fn formats(&self) -> KvFormats {
        self.store.tier(self.storage.tier()).formats
    }

    /// The bytes of each layer, keys then values: what [`KvStore::restore_block`] takes.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.store.shape().n_layers).map(|layer| self.storage.layer(layer))
    }
}
