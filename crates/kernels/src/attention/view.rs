//! What a caller passes: the shape of an attention call, and keys and values as a list of blocks.

use std::ops::Range;

use super::KEY_TILE;
use super::kv::{KvFormat, KvLayout, KvRole, KvTile, NuqContext, TileRun, WIDE};

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

/// Keys and values of one sequence and layer: position `p` is row `p % block_tokens` of block `p / block_tokens`.
#[derive(Debug, Clone, Copy)]
pub struct KvView<'a> {
    /// The blocks, in the order of positions. Blocks may differ in format.
    pub blocks: &'a [KvBlock<'a>],
    /// Tokens of a block; a multiple of 32.
    pub block_tokens: usize,
    /// Tokens present. Rows from here on are never used, whatever they hold.
    pub len: usize,
    /// What planes in [`KvFormat::Nuq3`] mean; needed only where there are some.
    pub nuq: Option<NuqContext<'a>>,
}

/// Keys and values of `block_tokens` consecutive positions.
#[derive(Debug, Clone, Copy)]
pub struct KvBlock<'a> {
    /// The keys.
    pub keys: KvPlane<'a>,
    /// The values.
    pub values: KvPlane<'a>,
}

/// Keys or values of a block in one of the formats that attention reads in place: what [`Kernels::store_keys`],
/// [`Kernels::store_values`] or [`Kernels::convert_kv`] wrote.
///
/// [`Kernels::store_keys`]: crate::Kernels::store_keys
/// [`Kernels::store_values`]: crate::Kernels::store_values
/// [`Kernels::convert_kv`]: crate::Kernels::convert_kv
#[derive(Debug, Clone, Copy)]
pub struct KvPlane<'a> {
    /// How the numbers are stored.
    pub format: KvFormat,
    /// [`KvLayout::plane_bytes`] bytes, aligned to the format's numbers, best to 64.
    pub bytes: &'a [u8],
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
            kv.block_tokens > 0 && kv.block_tokens.is_multiple_of(KEY_TILE),
            "attention: blocks of {} tokens, not a multiple of {KEY_TILE}",
            kv.block_tokens
        );
        assert!(
            self.n_queries == 0 || self.query_start.saturating_add(self.n_queries) <= kv.len,
            "attention: the keys end at {}, the queries at {}",
            kv.len,
            self.query_start.saturating_add(self.n_queries)
        );
        assert!(kv.len.div_ceil(kv.block_tokens) <= kv.blocks.len(), "attention: fewer blocks than tokens");
        self.check_nuq(kv);
        for block in kv.blocks {
            self.check_plane(&block.keys, kv.block_tokens);
            self.check_plane(&block.values, kv.block_tokens);
        }
    }

    /// Panics if planes in `nuq3` mean nothing.
    #[track_caller]
    fn check_nuq(&self, kv: &KvView<'_>) {
        match kv.nuq {
            Some(nuq) => nuq.check(self.n_kv_heads, self.head_dim, kv.len),
            None => {
                let needs = |block: &KvBlock<'_>| {
                    block.keys.format.needs_calibration() || block.values.format.needs_calibration()
                };
                assert!(!kv.blocks.iter().any(needs), "attention: blocks in nuq3 without their context");
            }
        }
    }

    /// Panics if a plane cannot hold the keys or values of a block.
    #[track_caller]
    fn check_plane(&self, plane: &KvPlane<'_>, block_tokens: usize) {
        let layout = KvLayout::new(plane.format, self.n_kv_heads, block_tokens, self.head_dim);
        let fits = layout.is_ok_and(|layout| layout.plane_bytes() == plane.bytes.len());
        assert!(fits, "attention: format or length of a block's keys or values");
    }
}

impl<'a> KvView<'a> {
    /// Keys and values of one head and of the tile that starts at position `start`.
    #[inline(always)]
    pub(super) fn tile(&self, kv_head: usize, start: usize, head_dim: usize) -> (KvTile<'a>, KvTile<'a>) {
        let block = &self.blocks[start / self.block_tokens];
        let index = kv_head * (self.block_tokens / KEY_TILE) + start % self.block_tokens / KEY_TILE;
        let tile = |plane: &KvPlane<'a>, role| {
            let nuq =
                self.nuq.filter(|_| plane.format.needs_calibration()).map(|nuq| nuq.tile(kv_head, start));
            let run = TileRun::new(plane.format, role, head_dim);
            KvTile { nuq, ..run.tile(plane.format, plane.bytes, index) }
        };
        (tile(&block.keys, KvRole::Keys), tile(&block.values, KvRole::Values))
    }
}
