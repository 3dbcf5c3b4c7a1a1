//! Views: the keys and values of a sequence, as a list of blocks.

use super::{KEY_TILE, KvPlane, KvTile};

/// Keys and values of one sequence and layer, in blocks of one size and any formats.
#[derive(Debug, Clone, Copy)]
pub struct KvView<'a> {
    pub(in crate::attention) blocks: &'a [KvBlock<'a>],
    pub(in crate::attention) len: usize,
    pub(in crate::attention) block_tokens: usize,
}

/// Keys and values of consecutive positions.
#[derive(Debug, Clone, Copy)]
pub struct KvBlock<'a> {
    /// The keys.
    pub keys: KvPlane<'a>,
    /// The values.
    pub values: KvPlane<'a>,
}

impl<'a> KvView<'a> {
    /// The first `len` positions of `blocks`, which are in the order of positions: with blocks of
    /// `n` tokens, position `p` is row `p % n` of block `p / n`. Rows from `len` on are never used,
    /// whatever they hold.
    pub fn new(blocks: &'a [KvBlock<'a>], len: usize) -> Self {
        let block_tokens = blocks.first().map_or(KEY_TILE, |block| block.keys.layout().block_tokens());
        Self { blocks, len, block_tokens }
    }

    /// The same blocks with another number of positions.
    #[must_use]
    pub fn with_len(self, len: usize) -> Self {
        Self { len, ..self }
    }

    /// The blocks, in the order of positions.
    pub fn blocks(&self) -> &'a [KvBlock<'a>] {
        self.blocks
    }

    /// Keys and values of one head and of the tile that starts at position `start`.
    #[inline(always)]
    pub(in crate::attention) fn tile(&self, kv_head: usize, start: usize) -> (KvTile<'a>, KvTile<'a>) {
        let block = &self.blocks[start / self.block_tokens];
        let offset = start % self.block_tokens;
        (block.keys.tile(kv_head, offset), block.values.tile(kv_head, offset))
    }
}
