//! Memory of one block in one tier.

use ruvllm_kernels::attention::{KvBlock, NuqContext};
use ruvllm_memory::SlabBlock;

use crate::error::{Error, Result};
use crate::store::{HOT, KvStore};

impl KvStore {
    /// Memory for one block of a tier in all layers.
    pub(crate) fn allocate(&self, tier: usize) -> Result<Storage> {
        let mut storage = Storage::vacant(self);
        self.fill(&mut storage, tier)?;
        Ok(storage)
    }

    /// Fills a vacant storage with memory of a tier, charged to the tenant of this store. Without
    /// memory it stays vacant.
    pub(crate) fn fill(&self, storage: &mut Storage, tier: usize) -> Result<()> {
        debug_assert!(storage.layers.is_empty(), "a storage is filled once");
        let (slab, n_layers) = (self.slab(tier), self.shape().n_layers);
        if tier == HOT && slab.stats().free_blocks < n_layers {
            self.keep_pages()?;
        }
        while storage.layers.len() < n_layers {
            match slab.allocate() {
                Ok(layer) => storage.layers.push(layer),
                Err(source) => {
                    storage.layers.clear();
                    let (block_bytes, page_bytes) = (slab.block_bytes(), self.pool().page_bytes());
                    return Err(Error::Memory { block_bytes, page_bytes, source });
                }
            }
        }
        if !storage.store.is_of_same_tenant(self) {
            storage.store = self.clone();
        }
        storage.tier = tier;
        self.tier(tier).count_block();
        Ok(())
    }
}

/// Keys and values of one block in one tier, vacant without memory. Only a sole holder writes.
pub(crate) struct Storage {
    store: KvStore,
    tier: usize,
    layers: Vec<SlabBlock>,
}

impl Storage {
    /// A storage without memory, for [`KvStore::fill`].
    pub(crate) fn vacant(store: &KvStore) -> Self {
        Self { store: store.clone(), tier: HOT, layers: Vec::with_capacity(store.shape().n_layers) }
    }

    /// Bytes of a storage outside of the pool, reference counts included.
    pub(crate) fn handle_bytes(store: &KvStore) -> usize {
        let layers = store.shape().n_layers * size_of::<SlabBlock>();
        size_of::<Self>() + 2 * size_of::<usize>() + layers
    }

    /// Gives the memory back.
    pub(crate) fn clear(&mut self) {
        if !self.layers.is_empty() {
            self.layers.clear();
            self.store.tier(self.tier).discount_block();
        }
    }

    pub(crate) fn tier(&self) -> usize {
        self.tier
    }

    /// The store that allocated it.
    pub(crate) fn store(&self) -> &KvStore {
        &self.store
    }

    /// Allocated bytes, padding included.
    pub(crate) fn bytes(&self) -> usize {
        self.store.tier(self.tier).layer_bytes() * self.layers.len()
    }

    /// Keys, then values, of one layer.
    pub(crate) fn layer(&self, layer: usize) -> &[u8] {
        &self.layers[layer].bytes()[..self.store.tier(self.tier).layer_bytes()]
    }

    /// As [`layer`](Self::layer).
    pub(crate) fn layer_mut(&mut self, layer: usize) -> &mut [u8] {
        let len = self.store.tier(self.tier).layer_bytes();
        &mut self.layers[layer].bytes_mut()[..len]
    }

    /// Every layer's bytes, to be written.
    pub(crate) fn layers_mut(&mut self) -> impl Iterator<Item = &mut [u8]> + Send {
        let len = self.store.tier(self.tier).layer_bytes();
        self.layers.iter_mut().map(move |layer| &mut layer.bytes_mut()[..len])
    }

    /// The planes of one layer that attention reads.
    pub(crate) fn view<'a>(&'a self, layer: usize, nuq: Option<NuqContext<'a>>) -> KvBlock<'a> {
        self.store.tier(self.tier).planes(self.layer(layer), nuq)
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.clear();
    }
}
