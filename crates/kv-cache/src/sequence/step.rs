//! One step: room for new tokens, their keys and values layer by layer, views for attention, and
//! the commit.

use std::sync::Arc;

use ruvllm_kernels::attention::{KvBlock, KvView};
use ruvllm_kernels::{Kernels, ThreadPool};

use super::Sequence;
use crate::block::Block;
use crate::error::{Error, Result};
use crate::learned::KeyRopes;
use crate::storage::Storage;
use crate::store::HOT;

/// A step of a sequence: memory for `n_tokens` new tokens, and pins of the blocks that attention
/// reads.
///
/// [`Sequence::step`] begins it; nothing after that can fail. Each layer is written
/// ([`write`](Self::write)), then viewed ([`view`](Self::view)); [`commit`](Self::commit) appends
/// the tokens. A step that is dropped leaves the tokens, the blocks and the memory of its sequence
/// as they were; only queries that [`observe_queries`](Self::observe_queries) recorded stay.
pub struct KvStep<'a> {
    pub(super) sequence: &'a mut Sequence,
    n_tokens: usize,
    /// The partial block whose copy is the first storage of the tail, until the step is committed.
    copied: Option<Block>,
    key_ropes: Option<KeyRopes>,
}

impl Sequence {
    /// Begins a step of `n_tokens` tokens: allocates their memory and pins the present blocks. A
    /// partial block that is shared, or not hot, is copied.
    ///
    /// Tables and handles are allocated for 64 blocks at a time, or as many as the step needs;
    /// steps between those allocate nothing.
    ///
    /// # Errors
    /// [`Error::Full`] beyond the capacity; [`Error::Memory`], [`Error::BudgetReached`] and
    /// [`Error::QuotaReached`] without room; [`Error::StateMemory`]. The sequence is as it was
    /// then.
    pub fn step(&mut self, kernels: &Kernels, n_tokens: usize) -> Result<KvStep<'_>> {
        self.check_room(n_tokens)?;
        // Dropped on an error, which undoes what was done.
        let mut step = KvStep { sequence: self, n_tokens, copied: None, key_ropes: None };
        step.allocate(kernels)?;
        let Sequence { blocks, pinned, .. } = &mut *step.sequence;
        pinned.clear();
        pinned.extend(blocks.iter().map(Block::storage));
        step.key_ropes = step.sequence.key_ropes();
        Ok(step)
    }

    /// Checks that `tokens` more fit the capacity, without allocating.
    ///
    /// # Errors
    /// [`Error::Full`] if they do not.
    pub fn check_room(&self, tokens: usize) -> Result<()> {
        if tokens > self.capacity - self.len {
            return Err(Error::Full { len: self.len, tokens, capacity: self.capacity });
        }
        Ok(())
    }

    /// Counts `tokens` that the tail holds beyond the present ones; storages that are full become
    /// blocks.
    pub(super) fn append(&mut self, tokens: usize) {
        self.len += tokens;
        self.seal((self.len / self.store.block_tokens()).saturating_sub(self.sealed()));
    }

    /// Makes blocks of the first `n` storages of the tail.
    pub(super) fn seal(&mut self, n: usize) {
        let Self { store, blocks, tail, handles, .. } = self;
        blocks.extend(tail.drain(..n).map(|storage| handles.block(store, storage)));
    }
}

impl KvStep<'_> {
    /// The sequence, without the tokens of the step.
    pub fn sequence(&self) -> &Sequence {
        self.sequence
    }

    /// New tokens.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Storages for the tokens behind the tail, and a partial block that can be written.
    fn allocate(&mut self, kernels: &Kernels) -> Result<()> {
        let sequence = &mut *self.sequence;
        sequence.state.prepare()?;
        let needed = (sequence.len + self.n_tokens).div_ceil(sequence.store.block_tokens());
        if sequence.sealed() + sequence.tail.len() < needed {
            sequence.prepare_tables(needed);
        }
        while sequence.sealed() + sequence.tail.len() < needed {
            let storage = sequence.handles.allocate(&sequence.store, HOT)?;
            sequence.tail.push(storage);
        }
        self.copied = sequence.own_partial(kernels)?;
        Ok(())
    }

    /// Stores the keys and values of the step's tokens in one layer.
    ///
    /// # Shapes
    /// `keys`, `values`: `[n_tokens, n_kv_heads, head_dim]`, with RoPE at their positions, and
    /// Walsh-Hadamard-transformed if the store is [`rotated`](crate::KvStore::rotated). Where
    /// [values are keys](crate::KvShape::values_are_keys), `values` are of no effect.
    ///
    /// # Panics
    /// If keys or values are not those of `n_tokens` tokens, or the layer does not exist.
    pub fn write(&mut self, kernels: &Kernels, layer: usize, keys: &[f32], values: &[f32]) {
        let sequence = &mut *self.sequence;
        let row = sequence.store.shape().of_layer(layer).width();
        let block_tokens = sequence.store.block_tokens();
        let n_values = self.n_tokens * row;
        assert!(
            keys.len() == n_values && values.len() == n_values,
            "keys and values of {} tokens",
            self.n_tokens
        );
        let sealed = sequence.sealed();
        let mut done = 0;
        while done < self.n_tokens {
            let position = sequence.len + done;
            let first = position % block_tokens;
            let end = (done + block_tokens - first).min(self.n_tokens);
            let storage = &mut sequence.tail[position / block_tokens - sealed];
            let storage = Arc::get_mut(storage).expect("nobody else has a storage of the tail");
            let rows = done * row..end * row;
            store_rows(kernels, storage, layer, first, &keys[rows.clone()], &values[rows]);
            done = end;
        }
    }

    /// Keys and values of one layer, the step's tokens included, which [`write`](Self::write) has
    /// stored before. `blocks` holds their list. Positions in released blocks read another block:
    /// attention must not read there.
    pub fn view<'b, 'v>(&'b self, layer: usize, blocks: &'v mut Vec<KvBlock<'b>>) -> KvView<'v> {
        let Sequence { len, pinned, .. } = &*self.sequence;
        self.sequence.view(pinned, self.key_ropes.as_ref(), len + self.n_tokens, layer, blocks)
    }

    /// Records queries of the step in one layer; `SQuat` weighs errors of keys by them. Without
    /// effect unless the sequence [`wants`](Sequence::wants_queries) them; the first 2048 tokens
    /// count.
    ///
    /// Keys are read by later queries. Queries should therefore have RoPE at later positions than
    /// their own, spread over as many as a key stays in use: those at their own positions predict
    /// later ones worse than none (ADR-0015).
    ///
    /// # Shapes
    /// `queries`: `[tokens, n_heads, head_dim]`
    ///
    /// # Panics
    /// If the heads are no multiple of the key/value heads, the queries no whole tokens, or the
    /// layer does not exist.
    pub fn observe_queries(
        &mut self,
        kernels: &Kernels,
        threads: &ThreadPool,
        layer: usize,
        n_heads: usize,
        queries: &[f32],
    ) {
        self.sequence.observe_queries(kernels, threads, layer, n_heads, queries);
    }

    /// Appends the tokens, which were written in every layer, to the sequence.
    pub fn commit(mut self) {
        self.copied = None;
        let Sequence { store, len, state, .. } = &mut *self.sequence;
        let tokens = *len + self.n_tokens;
        state.advance([*len, tokens], tokens.is_multiple_of(store.block_tokens()));
        self.sequence.append(self.n_tokens);
    }
}

impl Drop for KvStep<'_> {
    /// Releases pins, and memory beyond the tokens of the sequence: none after a commit.
    fn drop(&mut self) {
        let Sequence { store, len, released, blocks, tail, pinned, handles, .. } = &mut *self.sequence;
        pinned.clear();
        if let Some(block) = self.copied.take() {
            // The block, not its copy in the tail, holds the last tokens.
            blocks.push(block);
        }
        let used = len.div_ceil(store.block_tokens()).saturating_sub(*released + blocks.len());
        tail.drain(used.min(tail.len())..).for_each(|storage| handles.keep(storage));
    }
}

impl std::fmt::Debug for KvStep<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { sequence, n_tokens, .. } = self;
        f.debug_struct("KvStep")
            .field("sequence", sequence)
            .field("n_tokens", n_tokens)
            .finish_non_exhaustive()
    }
}

/// Stores rows of keys and values in one layer of a hot storage.
fn store_rows(
    kernels: &Kernels,
    storage: &mut Storage,
    layer: usize,
    first: usize,
    keys: &[f32],
    values: &[f32],
) {
    let layout = *storage.layout(layer);
    let (key_plane, value_plane) = layout.planes_mut(storage.layer_mut(layer));
    kernels.store_kv(key_plane, first, keys);
    if let Some(value_plane) = value_plane {
        kernels.store_kv(value_plane, first, values);
    }
}
