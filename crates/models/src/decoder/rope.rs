//! The rotary embeddings of a model. Most have one for all layers and sequences; some layers may
//! turn at another pace or not at all, and `LongRoPE` turns sequences that may become long in
//! another way from their first token on.

use std::sync::{Arc, PoisonError, RwLock};

use ruvllm_kernels::rope::{RopeFrequencies, RopeTable};
use ruvllm_kv_cache::{KvRope, KvRopes};

use crate::config::{LocalRope, ModelConfig};
use crate::error::Result;

/// Positions that the rotary tables cover at first; they double when a sequence goes beyond. Also
/// how far ahead caches are told what queries will look for: half and twice as far serve as well
/// (ADR-0015).
pub(super) const FIRST_POSITIONS: usize = 1024;

/// The rotary embeddings of a model.
pub(super) struct Ropes {
    usual: Rope,
    /// For sequences whose capacity is above this length.
    long: Option<(usize, Rope)>,
    /// For some layers, `[n_layers]`.
    local: Option<(Rope, Arc<[bool]>)>,
}

/// One rotary embedding.
struct Rope {
    frequencies: RopeFrequencies,
    /// Grows with the longest sequence; a pass holds on to the table it began with.
    table: RwLock<Arc<RopeTable>>,
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
            let frequencies = local.frequencies(context_length, &usual.frequencies)?;
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
        let rope = |rope: &Rope| KvRope { frequencies: rope.frequencies.clone(), layout };
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

impl Rope {
    fn new(frequencies: RopeFrequencies) -> Self {
        let table = RopeTable::from_frequencies(&frequencies, 0..FIRST_POSITIONS);
        Self { frequencies, table: RwLock::new(Arc::new(table)) }
    }

    /// A table for at least `n_positions`.
    fn table(&self, n_positions: usize) -> Arc<RopeTable> {
        // A poisoned lock still holds a whole table: it is only ever replaced.
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner).clone();
        if table.positions().end >= n_positions {
            return table;
        }
        let mut current = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if current.positions().end < n_positions {
            let positions = 0..n_positions.next_power_of_two();
            *current = Arc::new(RopeTable::from_frequencies(&self.frequencies, positions));
        }
        current.clone()
    }
}
