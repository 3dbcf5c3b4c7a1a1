//! The rotary embeddings of a model. Most have one for all layers and sequences; some layers may
//! turn at another pace or not at all, and `LongRoPE` turns sequences that may become long in
//! another way from their first token on.

use std::sync::Arc;

use ruvllm_kernels::rope::RopeTable;
use ruvllm_kv_cache::{KvRope, KvRopes};

use crate::config::{LocalRope, ModelConfig};
use crate::error::Result;
use crate::rope::Rope;

/// The rotary embeddings of a model.
pub(super) struct Ropes {
    usual: Rope,
    /// For sequences whose capacity is above this length.
    long: Option<(usize, Rope)>,
    /// For some layers, `[n_layers]`.
    local: Option<(Rope, Arc<[bool]>)>,
}

/// The tables of one pass.
pub(super) struct RopeTables {
    usual: Arc<RopeTable>,
    long: Option<(usize, Arc<RopeTable>)>,
    local: Option<(Arc<RopeTable>, Arc<[bool]>)>,
}

impl Ropes {
    /// Computes the frequencies of a model.
    ///
    /// # Errors
    /// [`Error::Kernels`](crate::Error::Kernels) for parameters without meaning.
    pub(super) fn new(config: &ModelConfig) -> Result<Self> {
        let context_length = config.context_length;
        let rope = |length| config.rope.frequencies(length).map(Rope::new);
        let usual = rope(config.long_rope_above().unwrap_or(context_length))?;
        let local = |local: &LocalRope| -> Result<(Rope, Arc<[bool]>)> {
            let frequencies = local.frequencies(context_length, usual.frequencies())?;
            Ok((Rope::new(frequencies), local.layers.as_slice().into()))
        };
        Ok(Self {
            local: config.local_rope.as_ref().map(local).transpose()?,
            usual,
            long: match config.long_rope_above() {
                Some(length) => Some((length, rope(context_length)?)),
                None => None,
            },
        })
    }

    /// The same for whoever stores keys: [`RopeTables::of`] chooses as a cache does.
    pub(super) fn of_keys(&self, config: &ModelConfig) -> KvRopes {
        let layout = config.decoder.rope_layout;
        let rope = |rope: &Rope| KvRope { frequencies: rope.frequencies().clone(), layout };
        KvRopes {
            usual: rope(&self.usual),
            local: self.local.as_ref().map(|(local, layers)| {
                let of_cache = config.cache.writers().iter().map(|&layer| layers[layer]);
                (rope(local), of_cache.collect())
            }),
            long: self.long.as_ref().map(|(length, long)| (*length, rope(long))),
        }
    }

    /// Tables for at least `n_positions`.
    pub(super) fn tables(&self, n_positions: usize) -> RopeTables {
        let short = self.long.as_ref().map_or(n_positions, |(length, _)| n_positions.min(*length));
        RopeTables {
            usual: self.usual.table(short),
            long: self.long.as_ref().map(|(length, rope)| (*length, rope.table(n_positions))),
            local: self.local.as_ref().map(|(rope, layers)| (rope.table(n_positions), Arc::clone(layers))),
        }
    }
}

impl RopeTables {
    /// The table for a layer and a sequence of at most `capacity` tokens.
    pub(super) fn of(&self, layer: usize, capacity: usize) -> &RopeTable {
        match (&self.local, &self.long) {
            (Some((local, layers)), _) if layers[layer] => local,
            (_, Some((length, long))) if capacity > *length => long,
            _ => &self.usual,
        }
    }
}
