//! CPU arithmetic for language models.
//!
//! Everything between bytes of weights and logits: dot products and norms, activation functions, softmax, rotary
//! embeddings, selection, attention over key/value blocks, block formats and matrix products on packed weights,
//! distances between vectors and their quantization, and the thread pool they run on. It knows nothing of model files,
//! architectures, tokens or sampling policies, holds no global state but the cached CPU detection, and depends on three
//! small crates.
//!
//! # Example
//! A head of a transformer layer: project, rotate, attend.
//! ```
//! use ruvllm_kernels::*;
//!
//! let kernels = Kernels::detect()?; // the best of this CPU, or what RUVLLM_ISA names
//! let pool = ThreadPool::new(2)?;
//! let (tokens, head_dim) = (3, 16);
//!
//! // Rows [tokens, heads, head_dim], here with one head; rotated to positions 0..3.
//! let mut q: Vec<f32> = (0..tokens * head_dim).map(|i| (i as f32 * 0.7).sin()).collect();
//! let table = RopeTable::new(&RopeConfig::new(10_000.0, head_dim), 64)?;
//! kernels.rope(&table, RopeLayout::Halves, 0..tokens, &mut q, 1, head_dim);
//!
//! // Keys and values live in blocks of planes, here of 32 positions in half precision.
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
//!
//! # Parts
//! ```text
//! Kernels ── what computes: one value per instruction set, two words, Copy
//!   ├── rows          dot, add_assign, add_product, add_gram, hadamard, norm, add_norm, activate, gated, softmax, log_sum_exp, argmax, top_k, f16/bf16
//!   ├── rope          RopeConfig -> RopeTable
//!   ├── matrices      PackedMatrix (BlockFormat, SharedBytes) times Activations: matmul, matmul_many
//!   ├── vectors       VectorRows, Metric: distance, distances, hamming; quantize_int8/int4/bits; ProductQuantizer
//!   └── attention     AttentionShape with its Mask, KvView of KvBlocks of KvPlanes, AttentionScratch; store_kv, convert_kv, read_kv;
//!                     SquatCorrection: add_gram;
//!                     NuqTraining -> NuqCodebooks, KeyRotation
//! ThreadPool ── passed to whatever is worth several threads
//! ```
//!
//! # Instruction sets
//! | [`Isa`] | needs | lanes |
//! |---|---|---|
//! | `scalar` | nothing | `[f32; 8]`, `f32::mul_add` |
//! | `avx2` | AVX2, FMA, F16C and POPCNT | `__m256` |
//! | `avx512` | also AVX-512 F, BW, DQ, VL and VNNI | `__m256`, `__m512` for two groups |
//! | `neon` | NEON (every 64-bit ARM CPU) | two `float32x4_t` |
//! | `neon-dotprod` | also dot products of bytes | the same |
//! | `neon-i8mm` | also matrix products of bytes | the same |
//!
//! The set is chosen once, when [`Kernels`] is made; `RUVLLM_ISA=scalar` forces one, and asking for an absent one is an
//! error.
//!
//! # Numerics
//! All instruction sets, thread counts and ways of cutting a batch give the same bits (of a NaN, only that it is one):
//! f32 sums are carried in eight lanes (32 for distances of vectors) in a fixed order and joined by a fixed tree,
//! everywhere. Each operation states its
//! error against exact arithmetic. Denormals are kept, except that the exponential gives 0 below `e^-87.3`.
//!
//! # Panics and errors
//! Data that comes from outside (settings, files) gives an [`Error`]. A caller's own slices of the wrong length are
//! mistakes in the program and panic.

#![allow(clippy::needless_range_loop)] // a register tile is several arrays under one index

mod activations;
mod attention;
mod disjoint;
mod error;
mod format;
mod isa;
mod kernels;
mod lanes;
mod matmul;
mod matrix;
mod op;
mod pool;
mod vector;

pub use activations::Activations;
pub use attention::{
    AttentionScratch, AttentionShape, KeyRotation, KiviBits, KiviGroup, KvBlock, KvBuffer, KvFormat,
    KvLayout, KvPlane, KvPlaneMut, KvRole, KvScratch, KvView, Mask, NUQ_LEVELS, NuqCodebooks, NuqContext,
    NuqTraining, SquatCorrection, alibi_slope,
};
pub use error::{Error, Result};
pub use format::BlockFormat;
pub use isa::{ISA_VARIABLE, Isa};
pub use kernels::Kernels;
pub use matmul::MatmulJob;
pub use matrix::{PackedMatrix, SharedBytes};
pub use op::activation::Activation;
pub use op::norm::Norm;
pub use op::product::MatrixView;
pub use op::rope::{RopeConfig, RopeFrequencies, RopeLayout, RopeScaling, RopeTable, yarn_attention_factor};
pub use pool::{Placement, ThreadPool};
pub use vector::{AdcTable, Metric, ProductQuantizer, ProductTraining, VectorRows};
