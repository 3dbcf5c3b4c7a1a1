//! Attention over KV blocks: one algorithm for prefill, decode and encoders.
//!
//! # The canonical order
//! The result of a query depends only on its position, its row and the keys and values its [`Mask`]
//! admits:
//! - keys and values are dequantized to f32; a score is a dot product in the order of
//!   [`Kernels::dot`];
//! - keys are processed in ascending order in *tiles* of 32 (at multiples of 32 in the sequence),
//!   each one step of the online softmax; values are added key by key;
//! - contexts are divided into *splits* of 512 keys (at multiples of 512). Each split starts with
//!   an empty state; split results are merged in ascending order;
//! - a head's [sink](AttentionCall::sinks) is merged last, as a split of one key without a value.
//!
//! Prefill in any chunks, decode, any thread count and any instruction set are therefore
//! bit-identical.
//!
//! # Work division
//! A *query tile* is a few consecutive queries of all heads that share one key/value head: about
//! `ROWS` rows. A task is one query tile with all its splits, or with one split if the tile is long
//! beside the others (decode of few sequences); such splits are merged afterwards. Each task reads
//! a KV tile once for all its rows. The tasks of all sequences of a batch are one list, the longest
//! first (ADR-0049).
//!
//! | file | contents |
//! |---|---|
//! | `shape.rs` | shape and mask of a call |
//! | `batch.rs` | calls of several sequences: checks, dispatch, output |
//! | `work.rs` | division of a batch into tasks |
//! | `alibi.rs` | `ALiBi` slopes |
//! | `kv/` | KV formats: layout, writing, in-place reads |
//! | `scratch.rs` | working memory reused between calls |
//! | `state.rs` | state of the online softmax |
//! | `task.rs` | one task: loops over splits and tiles, merging |
//! | `products.rs` | the two register-tiled products, `QKᵀ` and `PV` |
//! | `softmax.rs` | scale, soft cap, bias, mask and online softmax |
//!
//! # Reading quantized keys and values
//! Reads are in place. With few rows (decode) each quant is dequantized in a register and used by
//! the multiply-adds of all rows; with many rows (prefill) a tile is widened once, to an f32 buffer
//! of 32 positions that stays in the L1 cache. Tiles of `nuq3` are always widened: their outliers
//! are stored separately, and their keys need RoPE.
//!
//! # Source
//! Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867; Dao,
//! "FlashAttention-2", arXiv 2307.08691; blocks as in "`PagedAttention`", arXiv 2309.06180.
//!
//! # Example
//! One attention head: project, apply RoPE, attend.
//! ```
//! use ruvllm_kernels::attention::{
//!     AttentionScratch, AttentionShape, KvBlock, KvBuffer, KvFormat, KvLayout, KvPlane, KvPlaneMut, KvRole,
//!     KvView, Mask,
//! };
//! use ruvllm_kernels::rope::{RopeConfig, RopeLayout, RopeTable};
//! use ruvllm_kernels::{Kernels, ThreadPool};
//!
//! let kernels = Kernels::detect()?; // the best of this CPU, or what RUVLLM_ISA names
//! let pool = ThreadPool::new(2)?;
//! let (tokens, head_dim) = (3, 16);
//!
//! // Rows [tokens, heads, head_dim], here with one head; RoPE at positions 0..3.
//! let mut q: Vec<f32> = (0..tokens * head_dim).map(|i| (i as f32 * 0.7).sin()).collect();
//! let table = RopeTable::new(&RopeConfig::new(10_000.0, head_dim), 64)?;
//! kernels.rope(&table, RopeLayout::Halves, 0..tokens, &mut q, 1, head_dim);
//!
//! // Keys and values are stored in blocks of planes, here 32 positions in half precision.
//! let layout = KvLayout::new(KvFormat::F16, 1, 32, head_dim)?;
//! let mut memory = KvBuffer::zeroed(2 * layout.plane_bytes()).expect("some memory");
//! let (keys, values) = memory.as_bytes_mut().split_at_mut(layout.plane_bytes());
//! kernels.store_kv(KvPlaneMut::new(layout, KvRole::Keys, keys), 0, &q);
//! kernels.store_kv(KvPlaneMut::new(layout, KvRole::Values, values), 0, &q);
//! let keys = KvPlane::new(layout, KvRole::Keys, keys);
//! let values = KvPlane::new(layout, KvRole::Values, values);
//! let blocks = [KvBlock { keys, values }];
//! let kv = KvView::new(&blocks, tokens);
//!
//! let shape = AttentionShape {
//!     n_heads: 1,
//!     n_kv_heads: 1,
//!     head_dim,
//!     query_start: 0,
//!     n_queries: tokens,
//!     scale: 0.25,
//!     mask: Mask::CAUSAL,
//!     soft_cap: None,
//!     alibi: None,
//! };
//! let mut out = vec![0.0; tokens * head_dim];
//! kernels.attention(&pool, &shape, &q, &kv, &mut out, &mut AttentionScratch::new());
//! assert!((out[3] - q[3]).abs() < 1e-3, "the first token sees only itself");
//! # Ok::<(), ruvllm_kernels::Error>(())
//! ```

mod alibi;
mod batch;
mod kv;
mod products;
mod scratch;
mod shape;
mod softmax;
mod state;
mod task;
mod work;

pub use alibi::alibi_slope;
use batch::Batch;
pub use kv::{
    KeyRope, KiviBits, KiviGroup, KvBlock, KvBuffer, KvFormat, KvLayout, KvPlane, KvPlaneMut, KvRole,
    KvScratch, KvView, NUQ_LEVELS, NuqCodebooks, NuqContext, NuqTraining, SquatCorrection,
};
pub(crate) use kv::{convert, read, store};
pub use scratch::AttentionScratch;
pub(crate) use scratch::Worker;
pub use shape::{AttentionCall, AttentionShape, Mask};
pub(crate) use state::State;
pub(crate) use task::{Task, attend, merge};

use crate::pool::DisjointMut;
use crate::{Kernels, ThreadPool};

/// Keys per step of the online softmax.
pub(crate) const KEY_TILE: usize = 32;

/// Keys per split: attended independently, then merged.
pub(crate) const SPLIT_KEYS: usize = 512;

impl Kernels {
    /// Computes attention: `out = Σ_j softmax_j(scale * q · k_j) v_j` per query and head.
    ///
    /// Query `i` of the call is at position `query_start + i`. Query head `h` reads key/value head
    /// `h / (n_heads / n_kv_heads)`. A soft cap replaces a score `s` by `cap * tanh(s / cap)`;
    /// `ALiBi` then adds `slope * (key position - query position)`.
    ///
    /// `scratch` may be new or from any earlier call; it grows to the largest call.
    ///
    /// # Shapes
    /// `q`, `out`: `[n_queries, n_heads, head_dim]`; keys and values: see [`KvView`]. Any head size
    /// of the KV formats works; multiples of 16 are fastest (other values are copied to padded
    /// rows).
    ///
    /// # Numerics
    /// f32 (quantized keys and values are dequantized), in the canonical order of the module
    /// documentation; relative error about 1e-5 against exact arithmetic for well-scaled inputs. A
    /// query without keys gets zeros. NaN in a query, key or value reaches exactly the queries that
    /// attend to it. Scores of `-inf` have no weight; `+inf` gives NaN.
    ///
    /// # Panics
    /// If a slice has the wrong length, `n_kv_heads` does not divide `n_heads`, a plane has another
    /// shape or lacks its [context](KvPlane::with_nuq), a causal view holds fewer tokens
    /// than the last query's position needs, `ALiBi` is combined with a full mask, or `soft_cap` is
    /// not positive.
    #[allow(clippy::too_many_arguments)] // each is one object with a shape of its own
    #[track_caller]
    pub fn attention(
        &self,
        pool: &ThreadPool,
        shape: &AttentionShape,
        q: &[f32],
        kv: &KvView<'_>,
        out: &mut [f32],
        scratch: &mut AttentionScratch,
    ) {
        let call = AttentionCall { shape: shape.clone(), kv: *kv, sinks: None };
        self.attention_batch(pool, &[call], q, out, scratch);
    }

    /// Computes [`attention`](Self::attention) of several sequences at once.
    ///
    /// The tasks of all calls are distributed over the threads together, the longest first, so that
    /// sequences of unequal lengths keep all threads busy. The result of a call is that of the call
    /// alone, bit for bit.
    ///
    /// # Shapes
    /// `q`, `out`: the rows of all calls one after the other, each `[n_queries, n_heads,
    /// head_dim]`.
    ///
    /// # Panics
    /// See [`attention`](Self::attention); also if there are not as many
    /// [sinks](AttentionCall::sinks) as query heads.
    #[track_caller]
    pub fn attention_batch(
        &self,
        pool: &ThreadPool,
        calls: &[AttentionCall<'_>],
        q: &[f32],
        out: &mut [f32],
        scratch: &mut AttentionScratch,
    ) {
        let mut n_values = Some(0_usize);
        for call in calls {
            call.check();
            n_values = n_values.and_then(|n| n.checked_add(call.shape.n_values()?));
        }
        assert!(
            n_values == Some(q.len()) && n_values == Some(out.len()),
            "attention: length of queries or output"
        );
        scratch.prepare(calls, pool.threads());
        Batch::new(*self, calls, q, &DisjointMut::new(out)).run(pool, scratch);
    }
}
