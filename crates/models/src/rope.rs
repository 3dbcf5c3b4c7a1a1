//! Rotary embedding whose table of cosines and sines grows with the longest sequence.

use std::sync::{Arc, PoisonError, RwLock};

use ruvllm_kernels::rope::{RopeFrequencies, RopeTable};

/// Positions that the rotary tables cover at first; they double when a sequence goes beyond. Also
/// how far ahead caches are told what queries will look for: half and twice as far serve as well
/// (ADR-0015).
pub(crate) const FIRST_POSITIONS: usize = 1024;

/// One rotary embedding.
pub(crate) struct Rope {
    frequencies: RopeFrequencies,
    /// Grows with the longest sequence; a pass holds on to the table it began with.
    table: RwLock<Arc<RopeTable>>,
}

impl Rope {
    pub(crate) fn new(frequencies: RopeFrequencies) -> Self {
        let table = RopeTable::from_frequencies(&frequencies, 0..FIRST_POSITIONS);
        Self { frequencies, table: RwLock::new(Arc::new(table)) }
    }

    pub(crate) fn frequencies(&self) -> &RopeFrequencies {
        &self.frequencies
    }

    /// A table for at least `n_positions`.
    pub(crate) fn table(&self, n_positions: usize) -> Arc<RopeTable> {
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
