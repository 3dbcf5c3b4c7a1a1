//! Views of keys and values for attention, during a step and outside of one.

use std::sync::Arc;

use ruvllm_kernels::attention::{KvBlock, KvView};

use super::Sequence;
use crate::block::Block;
use crate::learned::KeyRopes;
use crate::storage::Storage;

/// Keys and values of a sequence at the time of [`Sequence::read`], whatever becomes of shared
/// blocks.
pub struct KvReader<'a> {
    sequence: &'a Sequence,
    pinned: Vec<Arc<Storage>>,
    key_ropes: Option<KeyRopes>,
}

impl Sequence {
    /// Pins the present keys and values, to be read outside of a step.
    pub fn read(&self) -> KvReader<'_> {
        let pinned = self.blocks.iter().map(Block::storage).collect();
        KvReader { sequence: self, pinned, key_ropes: self.key_ropes() }
    }

    /// RoPE tables for all positions of blocks and tail, if a tier needs them.
    pub(super) fn key_ropes(&self) -> Option<KeyRopes> {
        let n_positions = (self.sealed() + self.tail.len()) * self.store.block_tokens();
        self.store.key_ropes(n_positions, self.capacity)
    }

    /// A view of the first `len` tokens of one layer, without those that were dropped, listed in
    /// `blocks`. `pinned` are the storages of the blocks.
    pub(super) fn view<'b, 'v>(
        &'b self,
        pinned: &'b [Arc<Storage>],
        key_ropes: Option<&'b KeyRopes>,
        len: usize,
        layer: usize,
        blocks: &'v mut Vec<KvBlock<'b>>,
    ) -> KvView<'v> {
        blocks.clear();
        blocks.reserve(self.most_blocks());
        let view = |(at, storage): (usize, &'b Arc<Storage>)| {
            let position = self.index(at) * self.store.block_tokens();
            storage.view(layer, self.store.nuq(layer, key_ropes, position))
        };
        let storages = || pinned.iter().chain(&self.tail).enumerate();
        let dropped = self.dropped_tokens();
        if let Some(first) = storages().next().filter(|_| dropped == 0) {
            blocks.extend(std::iter::repeat_n(view(first), self.released));
        }
        blocks.extend(storages().map(view));
        KvView::new(blocks, len - dropped)
    }
}

impl KvReader<'_> {
    /// Keys and values of one layer. `blocks` holds their list. Positions in released blocks read
    /// another block.
    ///
    /// # Panics
    /// If the layer does not exist.
    pub fn view<'b, 'v>(&'b self, layer: usize, blocks: &'v mut Vec<KvBlock<'b>>) -> KvView<'v> {
        self.sequence.view(&self.pinned, self.key_ropes.as_ref(), self.sequence.len, layer, blocks)
    }
}
