//! Shape and mask of an attention call.

use std::ops::Range;

use super::kv::{KvRole, KvView, WIDE};

/// Dimensions and options of one attention call.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads; divides `n_heads`. Fewer than `n_heads` is grouped-query attention, 1 is
    /// multi-query attention.
    pub n_kv_heads: usize,
    /// Values per head.
    pub head_dim: usize,
    /// Position of the first query of the call; a [full mask](Mask::Full) ignores it.
    pub query_start: usize,
    /// Number of queries, at consecutive positions.
    pub n_queries: usize,
    /// Scale of the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Keys visible to a query.
    pub mask: Mask,
    /// Soft cap of the scores, `cap * tanh(score / cap)`; `None` for none.
    pub soft_cap: Option<f32>,
    /// `ALiBi`: largest slope exponent (8 in the paper), see [`alibi_slope`](super::alibi_slope).
    /// `None` for none.
    pub alibi: Option<f32>,
}

/// One call of a batch: consecutive queries of one sequence.
#[derive(Debug, Clone)]
pub struct AttentionCall<'a> {
    /// Dimensions and options; calls of a batch may differ in all of them.
    pub shape: AttentionShape,
    /// Keys and values of the sequence.
    pub kv: KvView<'a>,
    /// Attention sinks: a score per query head, `[n_heads]`, that takes part in the softmax and has
    /// no value; finite. `None` for none. Neither scale, soft cap nor mask apply to it. Source:
    /// gpt-oss, arXiv 2508.10925.
    pub sinks: Option<&'a [f32]>,
}

impl AttentionCall<'_> {
    /// Panics on inconsistent arguments.
    #[track_caller]
    pub(super) fn check(&self) {
        self.shape.check(&self.kv);
        if let Some(sinks) = self.sinks {
            let n_heads = self.shape.n_heads;
            assert!(sinks.len() == n_heads, "attention: {} sinks for {n_heads} query heads", sinks.len());
        }
    }
}

/// Keys visible to a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// Keys at the query's own and earlier positions, optionally within a sliding window.
    Causal {
        /// Sliding-window size in tokens, the query's own included; `None` for all.
        window: Option<usize>,
    },
    /// All keys of the view: bidirectional attention.
    Full,
}

impl Mask {
    /// Causal mask without a sliding window.
    pub const CAUSAL: Self = Self::Causal { window: None };
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

    /// Key positions, of `len`, visible to query `query` of the call.
    #[inline(always)]
    pub(super) fn keys_of_query(&self, query: usize, len: usize) -> Range<usize> {
        match self.mask {
            Mask::Causal { window } => {
                let end = self.query_start + query + 1;
                end.saturating_sub(window.unwrap_or(end))..end
            }
            Mask::Full => 0..len,
        }
    }

    /// Key positions, of `len`, visible to at least one of `queries` (not empty).
    pub(super) fn keys_of(&self, queries: Range<usize>, len: usize) -> Range<usize> {
        self.keys_of_query(queries.start, len).start..self.keys_of_query(queries.end - 1, len).end
    }

    /// Values of the queries, and of the output; `None` if their number overflows.
    pub(super) fn n_values(&self) -> Option<usize> {
        self.n_queries.checked_mul(self.n_heads)?.checked_mul(self.head_dim)
    }

    /// Panics on inconsistent arguments.
    #[track_caller]
    pub(super) fn check(&self, kv: &KvView<'_>) {
        assert!(
            self.n_kv_heads > 0 && self.n_heads.is_multiple_of(self.n_kv_heads),
            "attention: {} key/value heads do not divide {} query heads",
            self.n_kv_heads,
            self.n_heads
        );
        assert!(self.soft_cap.is_none_or(|cap| cap > 0.0), "attention: the soft cap must be positive");
        match self.mask {
            Mask::Causal { .. } => {
                let end = self.query_start.saturating_add(self.n_queries);
                assert!(
                    self.n_queries == 0 || end <= kv.len,
                    "attention: the keys end at {}, the queries at {end}",
                    kv.len
                );
            }
            Mask::Full => assert!(self.alibi.is_none(), "attention: linear biases need a causal mask"),
        }
        assert!(kv.len.div_ceil(kv.block_tokens) <= kv.blocks.len(), "attention: fewer blocks than tokens");
        for block in kv.blocks {
            for (plane, role) in [(&block.keys, KvRole::Keys), (&block.values, KvRole::Values)] {
                let layout = plane.layout();
                let fits = layout.n_kv_heads() == self.n_kv_heads
                    && layout.head_dim() == self.head_dim
                    && layout.block_tokens() == kv.block_tokens;
                let is_of_role = plane.role() == role || block.values_are_keys();
                assert!(fits && is_of_role, "attention: {role:?} of {layout:?} for {self:?}");
                plane.check_context();
            }
        }
    }
}
