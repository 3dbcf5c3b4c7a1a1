//! Views: keys and values of a sequence, as a list of blocks.

use super::{KEY_TILE, KvPlane, KvRole, KvTile};

/// Keys and values of one sequence and layer, in blocks of equal size and any formats.
#[derive(Debug, Clone, Copy)]
pub struct KvView<'a> {
    pub(in crate::attention) blocks: &'a [KvBlock<'a>],
    pub(in crate::attention) len: usize,
    pub(in crate::attention) block_tokens: usize,
}

/// Keys and values of a block's positions.
#[derive(Debug, Clone, Copy)]
pub struct KvBlock<'a> {
    /// Keys of the block.
    pub keys: KvPlane<'a>,
    /// Values of the block; its keys again where [values are keys](Self::of_keys).
    pub values: KvPlane<'a>,
}

impl<'a> KvBlock<'a> {
    /// A block in which each value is the key of its position, as in latent attention, where both
    /// are one latent. Source: DeepSeek-V2, arXiv 2405.04434.
    pub fn of_keys(keys: KvPlane<'a>) -> Self {
        Self { keys, values: keys }
    }

    /// True if each value is the key of its position.
    pub fn values_are_keys(&self) -> bool {
        self.values.role() == KvRole::Keys
    }
}

impl<'a> KvView<'a> {
    /// Creates a view of the first `len` positions of `blocks`, in position order: with blocks of
    /// `n` tokens, position `p` is row `p % n` of block `p / n`. Rows from `len` on are never read.
    pub fn new(blocks: &'a [KvBlock<'a>], len: usize) -> Self {
        let block_tokens = blocks.first().map_or(KEY_TILE, |block| block.keys.layout().block_tokens());
        Self { blocks, len, block_tokens }
    }

    /// Returns a view of the same blocks with another number of positions.
    #[must_use]
    pub fn with_len(self, len: usize) -> Self {
        Self { len, ..self }
    }

    /// Blocks in position order.
    pub fn blocks(&self) -> &'a [KvBlock<'a>] {
        self.blocks
    }

    /// Keys and values of one head, in the tile starting at position `start`; without the latter
    /// where values are keys.
    #[inline(always)]
    pub(in crate::attention) fn tile(
        &self,
        kv_head: usize,
        start: usize,
    ) -> (KvTile<'a>, Option<KvTile<'a>>) {
        let block = &self.blocks[start / self.block_tokens];
        let offset = start % self.block_tokens;
        let values = (!block.values_are_keys()).then(|| block.values.tile(kv_head, offset));
        (block.keys.tile(kv_head, offset), values)
    }
}
