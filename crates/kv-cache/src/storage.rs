//! Memory of one block in one tier.

use ruvllm_kernels::attention::{KvBlock, NuqContext};
use ruvllm_memory::SlabBlock;

use crate::error::{Error, Result};
use crate::store::{HOT, KvStore};
use crate::tier::LayerLayout;

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
        let slabs = || self.slabs(tier).iter().zip(self.shape().groups());
        if tier == HOT && slabs().any(|(slab, group)| slab.stats().free_blocks < group.n_layers) {
            self.keep_pages()?;
        }
        for slab in slabs().flat_map(|(slab, group)| std::iter::repeat_n(slab, group.n_layers)) {
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

    /// Layout of a layer.
    pub(crate) fn layout(&self, layer: usize) -> &LayerLayout {
        self.store.tier(self.tier).layout(layer)
    }

    /// The store that allocated it.
    pub(crate) fn store(&self) -> &KvStore {
        &self.store
    }

    /// Allocated bytes, padding included.
    pub(crate) fn bytes(&self) -> usize {
        if self.layers.is_empty() { 0 } else { self.store.tier(self.tier).block_bytes() }
    }

    /// Keys, then values, of one layer.
    pub(crate) fn layer(&self, layer: usize) -> &[u8] {
        &self.layers[layer].bytes()[..self.layout(layer).bytes()]
    }

    /// As [`layer`](Self::layer).
    pub(crate) fn layer_mut(&mut self, layer: usize) -> &mut [u8] {
        let len = self.layout(layer).bytes();
        &mut self.layers[layer].bytes_mut()[..len]
    }

    /// Every layer's bytes, to be written.
    pub(crate) fn layers_mut(&mut self) -> impl Iterator<Item = &mut [u8]> + Send {
        let Self { store, tier, layers } = self;
        let tier = store.tier(*tier);
        layers
            .iter_mut()
            .enumerate()
            .map(move |(index, layer)| &mut layer.bytes_mut()[..tier.layout(index).bytes()])
    }

    /// The planes of one layer that attention reads.
    pub(crate) fn view<'a>(&'a self, layer: usize, nuq: Option<NuqContext<'a>>) -> KvBlock<'a> {
        self.layout(layer).planes(self.layer(layer), nuq)
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.clear();
    }
}
