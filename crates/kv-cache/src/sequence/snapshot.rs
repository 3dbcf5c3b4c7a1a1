//! Snapshots: states that outlive their sequence, in memory of the page pool.

use std::sync::Arc;

use ruvllm_memory::SlabBlock;

use super::Sequence;
use crate::block::Block;
use crate::error::{Error, Result};
use crate::store::KvStore;

/// Copy of the state of a sequence, which other sequences begin with. Clones are the same copy; its
/// memory is part of the page pool's budget and released with the last one.
#[derive(Clone)]
pub struct StateSnapshot(Arc<Copy>);

struct Copy {
    store: KvStore,
    /// Tokens that left the state.
    tokens: usize,
    values: usize,
    /// The values in the machine's byte order, as those of blocks.
    memory: SlabBlock,
}

impl StateSnapshot {
    fn new(store: &KvStore, tokens: usize, n_values: usize, values: &[f32]) -> Result<Self> {
        let mut memory = store.allocate_state(n_values.saturating_mul(size_of::<f32>()))?;
        let (bytes, zeros) = memory.bytes_mut().split_at_mut(size_of_val(values));
        bytes.copy_from_slice(bytemuck::cast_slice(values));
        zeros.fill(0);
        Ok(Self::of(store, tokens, n_values, memory))
    }

    fn of(store: &KvStore, tokens: usize, values: usize, memory: SlabBlock) -> Self {
        store.count_snapshot(memory.bytes().len());
        Self(Arc::new(Copy { store: store.clone(), tokens, values, memory }))
    }

    /// Tokens of the sequence that the state stands for.
    pub fn tokens(&self) -> usize {
        self.0.tokens
    }

    /// Bytes of the copy in the page pool.
    pub fn bytes(&self) -> usize {
        self.as_bytes().len()
    }

    /// The values in the machine's byte order, for [`KvStore::restore_snapshot`].
    pub fn as_bytes(&self) -> &[u8] {
        self.0.memory.bytes()
    }

    fn copy_to(&self, values: &mut [f32]) {
        bytemuck::cast_slice_mut(values).copy_from_slice(self.as_bytes());
    }
}

impl KvStore {
    /// A snapshot of `values` values behind `tokens` tokens from the bytes of
    /// [`StateSnapshot::as_bytes`]: `fill` writes them into the buffer it gets.
    ///
    /// # Errors
    /// [`Error::SnapshotMemory`], [`Error::BudgetReached`] and [`Error::QuotaReached`] without
    /// room; [`Error::Stateless`] for no values; the error of `fill`.
    pub fn restore_snapshot<E: From<Error>>(
        &self,
        tokens: usize,
        values: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<StateSnapshot, E> {
        if values == 0 {
            return Err(Error::Stateless.into());
        }
        let mut memory = self.allocate_state(values.saturating_mul(size_of::<f32>()))?;
        fill(memory.bytes_mut())?;
        Ok(StateSnapshot::of(self, tokens, values, memory))
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.store.discount_snapshot(self.memory.bytes().len());
    }
}

impl std::fmt::Debug for StateSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StateSnapshot")
            .field("tokens", &self.0.tokens)
            .field("values", &self.0.values)
            .finish_non_exhaustive()
    }
}

impl Sequence {
    /// Snapshot of the present state.
    ///
    /// # Errors
    /// [`Error::SnapshotMemory`], [`Error::BudgetReached`] and [`Error::QuotaReached`] without
    /// room; [`Error::Stateless`] if no layer keeps a state.
    pub fn snapshot(&self) -> Result<StateSnapshot> {
        self.snapshot_of(self.len, self.state.present())
    }

    /// Snapshot of the state at the [`border`](Self::border); `None` without one.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot).
    pub fn border_snapshot(&self) -> Result<Option<StateSnapshot>> {
        let values = self.state.border_values();
        values.map(|values| self.snapshot_of(self.border(), values)).transpose()
    }

    fn snapshot_of(&self, tokens: usize, values: &[f32]) -> Result<StateSnapshot> {
        if self.state.values == 0 {
            return Err(Error::Stateless);
        }
        StateSnapshot::new(&self.store, tokens, self.state.values, values)
    }

    /// Begins an empty sequence with whole blocks of other sequences and the state behind them.
    ///
    /// # Errors
    /// [`Error::OtherState`] for a snapshot of another number of tokens or values,
    /// [`Error::ForeignBlock`] if a block is of another store, [`Error::Full`] beyond the capacity,
    /// [`Error::StateOfAll`] if the sequence has tokens, [`Error::StateMemory`]. Nothing has
    /// changed then.
    pub fn begin_with(&mut self, blocks: &[Block], snapshot: &StateSnapshot) -> Result<()> {
        let tokens = blocks.len() * self.store.block_tokens();
        if !self.is_empty() {
            return Err(Error::StateOfAll { len: tokens, tokens: self.len, border: self.border() });
        }
        self.check_snapshot(snapshot, tokens)?;
        self.check_blocks(blocks)?;
        self.state.replace(tokens, true, |values| snapshot.copy_to(values))?;
        self.push_blocks(blocks);
        Ok(())
    }

    /// Removes the tokens behind those of a snapshot, which was taken of this sequence or one that
    /// begins with the same tokens.
    ///
    /// # Errors
    /// [`Error::OtherState`] for a snapshot of more tokens or of other values, [`Error::Released`]
    /// if tokens before its end were released, [`Error::StateMemory`]. Nothing has changed then.
    pub fn return_to(&mut self, snapshot: &StateSnapshot) -> Result<()> {
        let len = snapshot.tokens();
        self.check_snapshot(snapshot, len.min(self.len))?;
        self.check_released(len)?;
        let is_border = len > 0 && len.is_multiple_of(self.store.block_tokens());
        self.state.replace(len, is_border, |values| snapshot.copy_to(values))?;
        self.cut(len);
        Ok(())
    }

    fn check_snapshot(&self, snapshot: &StateSnapshot, tokens: usize) -> Result<()> {
        let Copy { tokens: found_tokens, values: found_values, .. } = *snapshot.0;
        let values = self.state.values;
        if (found_tokens, found_values) != (tokens, values) {
            return Err(Error::OtherState { found_tokens, found_values, tokens, values });
        }
        Ok(())
    }
}
