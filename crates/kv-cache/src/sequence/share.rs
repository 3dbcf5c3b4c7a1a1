//! Shared blocks: forks, prefixes of other sequences, and copy-on-write.

use std::sync::Arc;

use ruvllm_kernels::Kernels;
use ruvllm_kernels::attention::KvScratch;

use super::Sequence;
use super::handles::Handles;
use super::migrate::MigrationScratch;
use crate::block::Block;
use crate::convert::{LayerContext, convert};
use crate::error::{Error, Result};
use crate::storage::Storage;
use crate::store::HOT;

impl Sequence {
    /// A second sequence with the same tokens. It shares every block; the first of the two that is
    /// extended copies the partial one. Memory beyond the tokens is released.
    ///
    /// Time is linear in the number of blocks.
    pub fn fork(&mut self) -> Self {
        self.share_partial();
        Self {
            store: self.store.clone(),
            len: self.len,
            capacity: self.capacity,
            hot_tokens: self.hot_tokens,
            sinks: self.sinks,
            released: self.released,
            blocks: self.blocks.clone(),
            tail: Vec::new(),
            mass: self.mass.clone(),
            queries: self.queries.clone(),
            state: self.state.fork(),
            pinned: Vec::new(),
            handles: Handles::default(),
            migration_scratch: MigrationScratch::default(),
        }
    }

    /// All blocks from [`released`](Self::released) on, for other sequences. The last one need not
    /// be full: the sequence copies it before it writes more to it.
    pub fn share(&mut self) -> &[Block] {
        self.share_partial();
        &self.blocks
    }

    /// Appends whole blocks of other sequences.
    ///
    /// # Errors
    /// [`Error::NotAtBlock`] behind a partial block, [`Error::ForeignBlock`] if one is of another
    /// store, [`Error::Full`] beyond the capacity, [`Error::StateOfAll`] if layers keep a state
    /// that blocks do not have: see [`begin_with`](Self::begin_with). Nothing has changed then.
    pub fn append_shared(&mut self, blocks: &[Block]) -> Result<()> {
        self.check_at_block()?;
        self.check_blocks(blocks)?;
        self.push_blocks(blocks);
        Ok(())
    }

    /// Checks that whole blocks fit and are of this store.
    pub(super) fn check_blocks(&self, blocks: &[Block]) -> Result<()> {
        self.check_room(blocks.len() * self.store.block_tokens())?;
        if blocks.iter().any(|block| !block.store().is_same(&self.store)) {
            return Err(Error::ForeignBlock);
        }
        Ok(())
    }

    /// Appends whole blocks, which were checked, behind others.
    pub(super) fn push_blocks(&mut self, blocks: &[Block]) {
        self.tail.clear();
        self.blocks.extend_from_slice(blocks);
        self.len += blocks.len() * self.store.block_tokens();
    }

    /// Appends a copy of the first `tokens` tokens of a block.
    ///
    /// # Errors
    /// As [`append_shared`](Self::append_shared); [`Error::Memory`] and [`Error::BudgetReached`]
    /// without room.
    ///
    /// # Panics
    /// If the block does not have so many tokens.
    pub fn append_copy(&mut self, kernels: &Kernels, block: &Block, tokens: usize) -> Result<()> {
        assert!(tokens <= self.store.block_tokens(), "{tokens} tokens of one block");
        self.check_at_block()?;
        self.check_room(tokens)?;
        if !block.store().is_same(&self.store) {
            return Err(Error::ForeignBlock);
        }
        if tokens == 0 {
            return Ok(());
        }
        let copy = self.copy(kernels, block)?;
        self.tail.clear();
        self.tail.push(copy);
        self.append(tokens);
        Ok(())
    }

    fn check_at_block(&self) -> Result<()> {
        let block_tokens = self.store.block_tokens();
        self.check_stateless(self.len)?;
        if !self.len.is_multiple_of(block_tokens) {
            return Err(Error::NotAtBlock { len: self.len, block_tokens });
        }
        Ok(())
    }

    /// Makes a block of a partial storage of the tail, so that it can be shared, and releases the
    /// rest of the tail.
    fn share_partial(&mut self) {
        let partial = self.len.div_ceil(self.store.block_tokens()) - self.sealed();
        self.tail.truncate(partial);
        self.seal(partial);
    }

    /// Moves a partial block into the tail, where it can be written: the block itself if it is
    /// unshared, else a copy. Returns the block that was copied.
    pub(super) fn own_partial(&mut self, kernels: &Kernels) -> Result<Option<Block>> {
        if self.sealed() * self.store.block_tokens() <= self.len {
            return Ok(None);
        }
        let Some(block) = self.blocks.pop() else { return Ok(None) };
        let (owned, copied) = match block.into_storage(HOT, &self.store) {
            Ok(storage) => (storage, None),
            Err(block) => match self.copy(kernels, &block) {
                Ok(copy) => (copy, Some(block)),
                Err(error) => {
                    self.blocks.push(block);
                    return Err(error);
                }
            },
        };
        self.tail.insert(0, owned);
        Ok(copied)
    }

    /// A hot copy of a block that follows those of the table.
    fn copy(&self, kernels: &Kernels, block: &Block) -> Result<Arc<Storage>> {
        let mut copy = self.store.allocate(HOT)?;
        let from = block.storage();
        let position = self.sealed() * self.store.block_tokens();
        let key_ropes = self.store.key_ropes(position + self.store.block_tokens(), self.capacity);
        let mut scratch = KvScratch::new();
        for layer in 0..self.store.shape().n_layers {
            let source = (from.layout(layer), from.layer(layer));
            let target = (self.store.tier(HOT).layout(layer), copy.layer_mut(layer));
            let nuq = self.store.nuq(layer, key_ropes.as_ref(), position);
            convert(kernels, source, target, LayerContext { nuq, corrections: None }, &mut scratch);
        }
        Ok(Arc::new(copy))
    }
}
