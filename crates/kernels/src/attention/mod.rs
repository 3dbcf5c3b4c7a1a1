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
//!   an empty state; split results are merged in ascending order.
//!
//! Prefill in any chunks, decode, any thread count and any instruction set are therefore
//! bit-identical.
//!
//! # Work division
//! A *query tile* is a few consecutive queries of all heads that share one key/value head: about
//! `ROWS` rows. A task is one query tile with all its splits if there are enough tiles for the
//! threads (prefill), else one query tile with one split (decode), merged afterwards. Each task
//! reads a KV tile once for all its rows.
//!
//! | file | contents |
//! |---|---|
//! | `shape.rs` | shape and mask of a call |
//! | `alibi.rs` | `ALiBi` slopes |
//! | `kv/` | KV formats: layout, writing, in-place reads |
//! | `scratch.rs` | working memory reused between calls |
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
mod kv;
mod products;
mod scratch;
mod shape;
mod softmax;
mod task;

use std::ops::Range;

pub use alibi::alibi_slope;
pub use kv::{
    KeyRope, KiviBits, KiviGroup, KvBlock, KvBuffer, KvFormat, KvLayout, KvPlane, KvPlaneMut, KvRole,
    KvScratch, KvView, NUQ_LEVELS, NuqCodebooks, NuqContext, NuqTraining, SquatCorrection,
};
pub(crate) use kv::{convert, read, store};
pub use scratch::AttentionScratch;
pub(crate) use scratch::{State, Worker};
pub use shape::{AttentionShape, Mask};
pub(crate) use task::{Task, attend, merge};

use crate::pool::DisjointMut;
use crate::{Kernels, ThreadPool};

/// Keys per step of the online softmax.
pub(crate) const KEY_TILE: usize = 32;

/// Keys per split: attended independently, then merged.
pub(crate) const SPLIT_KEYS: usize = 512;

/// Rows (queries times heads of a group) of a query tile, unless one query alone has more.
///
/// With 128 dimensions the rows' queries, two accumulators and scores, and a KV tile in f32 take
/// 240 KiB, which fits the L2 cache; widening and prefetching a tile then cost a few percent of the
/// rows' computation.
const ROWS: usize = 128;

/// Limit of cache lines for partial results; beyond it splits are not distributed over threads.
const MAX_PARTIALS: usize = 1 << 20;

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
    /// shape or lacks its [context](KvPlane::with_nuq), a causal view holds fewer tokens than the
    /// last query's position needs, `ALiBi` is combined with a full mask, or `soft_cap` is not
    /// positive.
    #[allow(clippy::too_many_arguments)] // each is one object with a shape of its own
    pub fn attention(
        &self,
        pool: &ThreadPool,
        shape: &AttentionShape,
        q: &[f32],
        kv: &KvView<'_>,
        out: &mut [f32],
        scratch: &mut AttentionScratch,
    ) {
        shape.check(q, kv, out);
        if out.is_empty() {
            return;
        }
        let tiling = Tiling::new(shape, kv.len, pool.threads());
        scratch.reserve(pool.threads(), tiling.rows, shape.padded_dim(), tiling.partials_len(shape));
        let call = Call { kernels: *self, shape, q, kv, tiling: &tiling, out: &DisjointMut::new(out) };
        if tiling.spread_splits {
            call.run_splits(pool, scratch);
        } else {
            call.run_tiles(pool, scratch);
        }
    }
}

/// Division of a call into tasks.
struct Tiling {
    /// Queries per query tile (the last tile may have fewer).
    queries: usize,
    /// Rows per query tile: `queries * (n_heads / n_kv_heads)`.
    rows: usize,
    /// Number of query tiles, over all key/value heads.
    tiles: usize,
    /// Splits with keys for at least one query.
    splits: Range<usize>,
    /// True if each split is a separate task.
    spread_splits: bool,
}

impl Tiling {
    fn new(shape: &AttentionShape, len: usize, threads: usize) -> Self {
        let group = shape.group();
        let queries = (ROWS / group).clamp(1, shape.n_queries);
        let rows = queries * group;
        let tiles = shape.n_kv_heads * shape.n_queries.div_ceil(queries);
        let keys = shape.keys_of(0..shape.n_queries, len);
        let splits = keys.start / SPLIT_KEYS..keys.end.div_ceil(SPLIT_KEYS);
        let partials =
            tiles.saturating_mul(splits.len()).saturating_mul(State::len(rows, shape.padded_dim()));
        let spread_splits =
            threads > 1 && splits.len() > 1 && tiles < 4 * threads && partials <= MAX_PARTIALS;
        Self { queries, rows, tiles, splits, spread_splits }
    }

    /// Cache lines for the results of splits that are separate tasks.
    fn partials_len(&self, shape: &AttentionShape) -> usize {
        if self.spread_splits {
            self.tiles * self.splits.len() * State::len(self.rows, shape.padded_dim())
        } else {
            0
        }
    }
}

/// Data shared by the tasks of one call.
struct Call<'a> {
    kernels: Kernels,
    shape: &'a AttentionShape,
    q: &'a [f32],
    kv: &'a KvView<'a>,
    tiling: &'a Tiling,
    out: &'a DisjointMut<'a, f32>,
}

impl Call<'_> {
    /// Task of query tile `tile` for `splits`. Tiles with many keys come first, so that the last
    /// tasks are short.
    fn task(&self, tile: usize, splits: Range<usize>) -> Task<'_> {
        let heads = self.shape.n_kv_heads;
        let from_last = tile / heads;
        let first = (self.tiling.tiles / heads - 1 - from_last) * self.tiling.queries;
        let queries = first..(first + self.tiling.queries).min(self.shape.n_queries);
        Task { shape: self.shape, q: self.q, kv: self.kv, kv_head: tile % heads, queries, splits }
    }

    fn attend(&self, task: &Task<'_>, worker: &mut Worker) {
        // SAFETY: `self.kernels` exists only where the slot's instruction set is present.
        unsafe { (self.kernels.slots.attend)(task, worker) }
    }

    /// One task per query tile.
    fn run_tiles(&self, pool: &ThreadPool, scratch: &AttentionScratch) {
        pool.for_each_chunk_on(self.tiling.tiles, 1, &|index, tiles| {
            let mut worker = scratch.worker(index);
            for tile in tiles {
                let task = self.task(tile, self.tiling.splits.clone());
                self.attend(&task, &mut worker);
                self.finish(&task, &worker.total);
            }
        });
    }

    /// One task per query tile and split; the splits of each tile are then merged in order.
    fn run_splits(&self, pool: &ThreadPool, scratch: &mut AttentionScratch) {
        let len = State::len(self.tiling.rows, self.shape.padded_dim());
        let n_splits = self.tiling.splits.len();
        let (workers, partials) = scratch.parts();
        let partials = DisjointMut::new(&mut partials[..self.tiling.tiles * n_splits * len]);
        pool.for_each_chunk_on(self.tiling.tiles * n_splits, 1, &|index, items| {
            let mut worker = workers.get(index);
            for item in items {
                let split = self.tiling.splits.start + item % n_splits;
                self.attend(&self.task(item / n_splits, split..split + 1), &mut worker);
                // SAFETY: `for_each_chunk_on` gives each item to one call, and items do not share a
                // range.
                let partial = unsafe { partials.part(item * len..(item + 1) * len) };
                partial[..worker.total.lines().len()].copy_from_slice(worker.total.lines());
            }
        });
        pool.for_each_chunk_on(self.tiling.tiles, 1, &|index, tiles| {
            let mut worker = workers.get(index);
            let Worker { total, split: partial, .. } = &mut *worker;
            for tile in tiles {
                let task = self.task(tile, self.tiling.splits.clone());
                total.reset(task.rows(), self.shape.padded_dim());
                partial.reset(task.rows(), self.shape.padded_dim());
                for item in tile * n_splits..(tile + 1) * n_splits {
                    // SAFETY: the first dispatch is over, and each item belongs to one tile, each
                    // tile to one call.
                    let lines = unsafe { partials.part(item * len..(item + 1) * len) };
                    let n = partial.lines().len();
                    partial.lines_mut().copy_from_slice(&lines[..n]);
                    // SAFETY: `self.kernels` exists only where the slot's instruction set is
                    // present.
                    unsafe { (self.kernels.slots.attend_merge)(total, partial) }
                }
                self.finish(&task, total);
            }
        });
    }

    /// Writes the rows of a task: accumulator divided by the sum; zeros for rows without weight.
    fn finish(&self, task: &Task<'_>, state: &State) {
        let (group, dim) = (self.shape.group(), self.shape.head_dim);
        for (i, query) in task.queries.clone().enumerate() {
            let start = (query * self.shape.n_heads + task.kv_head * group) * dim;
            // SAFETY: a query's heads of one key/value head belong to exactly one query tile, and a
            // tile is finished by one call of the closure that got it.
            let out = unsafe { self.out.part(start..start + group * dim) };
            for (g, out) in out.chunks_exact_mut(dim).enumerate() {
                let (_, sum) = state.row_sums(i * group + g);
                let divisor = if sum == 0.0 { 1.0 } else { sum };
                for (out, acc) in out.iter_mut().zip(state.row(i * group + g)) {
                    *out = acc / divisor;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
