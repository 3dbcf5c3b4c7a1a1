//! What a caller passes: the shape of an attention call, and keys and values as a list of blocks.

use std::ops::Range;

use super::KEY_TILE;
use super::kv::{KvPlane, KvRole, KvTile, WIDE};

/// Sizes and rules of one attention call.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads; divides `n_heads`. Fewer than `n_heads` is grouped-query, 1 is multi-query attention.
    pub n_kv_heads: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// Position of the first query of the call.
    pub query_start: usize,
    /// Number of queries, at consecutive positions.
    pub n_queries: usize,
    /// Factor of the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Number of positions that a query sees, its own included; `None` for all.
    pub window: Option<usize>,
    /// Bound of the scores, approached as `cap * tanh(score / cap)`; `None` for none.
    pub soft_cap: Option<f32>,
    /// Largest slope exponent of `ALiBi` (8 in the paper), by which a score falls with the distance: see
    /// [`alibi_slope`](super::alibi_slope). `None` for none.
    pub alibi: Option<f32>,
}

/// Keys and values of one sequence and layer, in blocks of one size and any formats.
#[derive(Debug, Clone, Copy)]
pub struct KvView<'a> {
    pub(super) blocks: &'a [KvBlock<'a>],
    pub(super) len: usize,
    block_tokens: usize,
}

/// Keys and values of consecutive positions.
#[derive(Debug, Clone, Copy)]
pub struct KvBlock<'a> {
    /// The keys.
    pub keys: KvPlane<'a>,
    /// The values.
    pub values: KvPlane<'a>,
}

impl AttentionShape {
    /// Query heads per key/value head.
    pub(super) fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// `head_dim` rounded up to whole wide vectors.
    pub(super) fn padded_dim(&self) -> usize {
        self.head_dim.next_multiple_of(WIDE)
    }

    /// Positions of the keys that query `query` of the call sees.
    pub(super) fn keys_of_query(&self, query: usize) -> Range<usize> {
        let end = self.query_start + query + 1;
        end.saturating_sub(self.window.unwrap_or(end))..end
    }

    /// Positions of the keys that at least one of `queries` sees (not empty).
    pub(super) fn keys_of(&self, queries: Range<usize>) -> Range<usize> {
        self.keys_of_query(queries.start).start..self.keys_of_query(queries.end - 1).end
    }

    /// Panics if a call's arguments contradict each other.
    #[track_caller]
    pub(super) fn check(&self, q: &[f32], kv: &KvView<'_>, out: &[f32]) {
        assert!(
            self.n_kv_heads > 0 && self.n_heads.is_multiple_of(self.n_kv_heads),
            "attention: {} key/value heads do not divide {} query heads",
            self.n_kv_heads,
            self.n_heads
        );
        let values = self.n_queries * self.n_heads * self.head_dim;
        assert!(q.len() == values && out.len() == values, "attention: length of queries or output");
        assert!(self.soft_cap.is_none_or(|cap| cap > 0.0), "attention: the soft cap must be positive");
        assert!(
            self.n_queries == 0 || self.query_start.saturating_add(self.n_queries) <= kv.len,
            "attention: the keys end at {}, the queries at {}",
            kv.len,
            self.query_start.saturating_add(self.n_queries)
        );
        assert!(kv.len.div_ceil(kv.block_tokens) <= kv.blocks.len(), "attention: fewer blocks than tokens");
        for block in kv.blocks {
            for (plane, role) in [(&block.keys, KvRole::Keys), (&block.values, KvRole::Values)] {
                let layout = plane.layout();
                let fits = layout.n_kv_heads() == self.n_kv_heads
                    && layout.head_dim() == self.head_dim
                    && layout.block_tokens() == kv.block_tokens;
                assert!(fits && plane.role() == role, "attention: {role:?} of {layout:?} for {self:?}");
                plane.check_context();
            }
        }
    }
}

impl<'a> KvView<'a> {
    /// The first `len` positions of `blocks`, which are in the order of positions: with blocks of `n` tokens, position `p`
    /// is row `p % n` of block `p / n`. Rows from `len` on are never used, whatever they hold.
    pub fn new(blocks: &'a [KvBlock<'a>], len: usize) -> Self {
        let block_tokens = blocks.first().map_or(KEY_TILE, |block| block.keys.layout().block_tokens());
        Self { blocks, len, block_tokens }
    }

    /// Keys and values of one head and of the tile that starts at position `start`.
    #[inline(always)]
    pub(super) fn tile(&self, kv_head: usize, start: usize) -> (KvTile<'a>, KvTile<'a>) {
        let block = &self.blocks[start / self.block_tokens];
        let offset = start % self.block_tokens;
        (block.keys.tile(kv_head, offset), block.values.tile(kv_head, offset))
    }
}
