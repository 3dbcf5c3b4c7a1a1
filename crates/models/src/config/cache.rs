//! Layers of a cache: those of the model that write keys and values.

use ruvllm_kv_cache::{KvPolicy, KvShape, KvStore, OtherHeads, Sequence};
use ruvllm_memory::PagePool;

use super::ModelConfig;
use crate::error::{Error, Result};
use crate::family::{DecoderSpec, LayerParts};

/// The layers of a cache. Those with the heads of windowed layers, where these differ, come last.
#[derive(Debug, Clone)]
pub(crate) struct CacheLayers {
    /// Layer of the cache that each layer of the model reads; of no meaning for one without
    /// attention.
    index: Vec<usize>,
    /// Layer of the model that writes each layer of the cache.
    writers: Vec<usize>,
    /// Layers of the cache with the usual heads.
    n_usual: usize,
}

impl CacheLayers {
    pub(super) fn new(decoder: &DecoderSpec, n_layers: usize) -> Self {
        let source = |layer: usize| decoder.layers.kv_source(layer);
        let is_local = |layer: usize| decoder.layers.local_heads_of(layer).is_some();
        let writes = |layer: &usize| decoder.has_attention(*layer) && source(*layer) == *layer;
        let (mut writers, local): (Vec<usize>, Vec<usize>) =
            (0..n_layers).filter(writes).partition(|&layer| !is_local(layer));
        let n_usual = writers.len();
        writers.extend(local);
        let mut of_writer = vec![0; n_layers];
        for (index, &layer) in writers.iter().enumerate() {
            of_writer[layer] = index;
        }
        let index = (0..n_layers).map(|layer| of_writer[source(layer)]).collect();
        Self { index, writers, n_usual }
    }

    /// Layer of the model that writes each layer of the cache.
    pub(crate) fn writers(&self) -> &[usize] {
        &self.writers
    }
}

impl ModelConfig {
    /// The size of a token's keys and values: those of the layers that write some.
    pub fn kv_shape(&self) -> KvShape {
        let n_layers = self.cache.writers.len();
        let n_others = n_layers - self.cache.n_usual;
        let others = self.decoder.layers.local_heads.as_ref().map(|local| OtherHeads {
            n_layers: n_others,
            n_kv_heads: local.n_kv_heads,
            head_dim: local.head_dim,
        });
        let values_are_keys = self.decoder.latent.is_some();
        let others = others.filter(|others| others.n_layers > 0);
        KvShape { values_are_keys, others, ..KvShape::new(n_layers, self.n_kv_heads, self.head_dim) }
    }

    /// A store for keys and values in pages of `pool`.
    pub(crate) fn kv_store(&self, policy: &KvPolicy, pool: &PagePool) -> Result<KvStore> {
        Ok(KvStore::new(self.kv_shape(), &self.complete(policy), pool)?)
    }

    /// The policy with every choice that it leaves to the model filled in.
    pub(crate) fn complete(&self, policy: &KvPolicy) -> KvPolicy {
        policy.for_model(self.n_heads > self.n_kv_heads)
    }

    /// An empty sequence of at most `capacity` tokens.
    pub(crate) fn new_sequence(&self, store: &KvStore, capacity: usize) -> Result<Sequence> {
        let context_length = self.context_length;
        if capacity == 0 || capacity > context_length {
            return Err(Error::CacheCapacity { capacity, context_length });
        }
        Ok(store.sequence(capacity).with_state(self.state_values()))
    }

    /// Index of the keys and values in a cache that a layer reads.
    pub fn cache_layer(&self, layer: usize) -> usize {
        self.cache.index[layer]
    }

    /// The last layer that writes keys and values or keeps a state. Behind it only tokens with
    /// logits matter.
    pub(crate) fn last_writer(&self) -> usize {
        let layers = &self.decoder.layers;
        let writes = |&layer: &usize| {
            layers.kv_source(layer) == layer && layers.parts_of(layer) != LayerParts::Network
        };
        (0..self.n_layers).rev().find(writes).unwrap_or(0)
    }
}
