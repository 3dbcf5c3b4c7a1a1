//! GPU arithmetic for language models: WGSL kernels, generated per format and shape, through wgpu.
//!
//! Matrix products of few (decode) and many (prefill) activation rows with weights in F16, `Q8_0`,
//! `Q4_0`, `IQ4_NL`, `MXFP4`, `Q4_K`, `Q5_K` and `Q6_K`, attention over paged keys and values,
//! mixtures of experts, and the row operations between them. Usable alone: buffers in, buffers out.
//! Independent of model files, layers and tokens.
//!
//! # Parts
//! ```text
//! adapters, Selection ── which GPU
//! Gpu ── the open device: Buffer (one budget), run, time
//!   ├── kernels     compiled by background threads, kept on disk (open_cached)
//!   ├── Matrix      weights, repacked at upload; product and gemm with Activations, gather
//!   ├── LowRank     LoRA factors in slots, added to products of rows with lists of slots
//!   ├── KvBlocks    paged keys and values in F16 or Q8; rope_kv, attention
//!   ├── latent      part_norm, latent_queries, latent_keys: latent attention
//!   ├── experts     route, sort_pairs, ExpertMatrix: product and gemm by expert, expert_sum
//!   ├── states      convolve, delta_rule, selective_scan over Spans of rows; gate, split_gates
//!   ├── streams     split, predict, correct, merge residual streams; cut_gates
//!   ├── rows        quantize, rms_norm, layer_norm, head_norm, gated, add, rope, argmax, largest
//!   ├── heads       stored_head_dim, cut_heads: heads of sizes that attention does not take
//!   └── Dispatch    a prepared launch; a list of them is a pass
//! tune ── tiles of products measured on the device, remembered in its cache folder
//! Kernel, Target ── what the generator makes a kernel for; Kernel::source is its WGSL
//! self_test ── every kernel against float64 on this device
//! ```
//!
//! # Numerics
//! Results differ from the CPU's bits. Promised (ADR-0032, ADR-0033, ADR-0048): each operation's
//! error bound against float64; the same bits from run to run on one device and driver; bits of a
//! row independent of the rows beside it. [`Matrix::gemm`] rounds activations and weights to f16 on
//! devices with cooperative matrices, and has a wider bound there. Inputs must be finite: of
//! others, results are unspecified values, never out-of-bounds accesses.

#![deny(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]

mod activation;
mod adapter;
mod attention;
mod cache;
mod compiler;
mod copy;
mod dispatch;
mod error;
mod experimental;
mod expert_keys;
mod experts;
mod faults;
mod future;
mod gemm;
mod gpu;
mod head_key;
mod heads;
mod kernel;
mod kv;
mod kv_format;
mod largest;
mod largest_key;
mod latent;
mod latent_key;
mod layer_keys;
mod limits;
mod low_rank;
mod low_rank_key;
mod matrix;
mod memory;
mod readback;
mod reference;
mod repack;
mod rope_layout;
mod rows;
pub mod self_test;
mod split_key;
mod state_keys;
mod states;
mod stream_keys;
mod streams;
mod tiles;
mod timer;
mod trace;
mod tracing;
mod tune;
mod tuning;
mod wgsl;
mod window;

pub use activation::Activation;
pub use adapter::{AdapterChoice, AdapterInfo, AdapterKind, MatrixShape, Selection, adapters};
pub use attention::{Queries, Sequences};
pub use cache::{CacheError, CacheFile};
pub use compiler::CompileTimes;
pub use dispatch::Dispatch;
pub use error::{Error, Result};
pub use expert_keys::{
    ExpertAffineKernel, ExpertScaleKernel, ExpertStack, ExpertSumKernel, MAX_EXPERTS, MAX_USED_EXPERTS,
    RouterKernel, RouterLogitsKernel, RouterScoring, SortKernel, SumStart,
};
pub use experts::{Choices, ExpertMatrix, SortedPairs};
pub use gpu::Gpu;
pub use head_key::{CutHeadsKernel, stored_head_dim};
pub use kernel::{
    AddKernel, AttentionKernel, AttentionOutput, CooperativeKernel, CooperativeTile, ExpandKernel,
    GatherKernel, GemmKernel, HeadNormKernel, Kernel, MAX_BATCH, MAX_PRODUCT_ROWS, MergeKernel, Product,
    RopeKernel, RopeKvKernel, RowKernel, RowOp, Target, Tile, TiledAttentionKernel,
};
pub use kv::{KvBlocks, KvRows, PositionTables};
pub use kv_format::{KV_BLOCK_TOKENS, KvFormat};
pub use largest_key::{ArgmaxKernel, LARGEST_VALUES, LargestKernel};
pub use latent_key::{LatentKeysKernel, LatentQueriesKernel, PartNormKernel};
pub use layer_keys::{HeadValues, RowPart};
pub use low_rank::{LowRank, LowRankExpansion, LowRankRows, NO_SLOT};
pub use low_rank_key::{LowRankKernel, LowRankRoom, LowRankStep, MAX_TERMS};
pub use matrix::{Activations, Matrix};
pub use memory::{Buffer, Memory};
pub use readback::{Readback, Reading, Recording};
pub use repack::Format;
pub use rope_layout::RopeLayout;
pub use rows::{Quantized, RowOutput};
pub use split_key::{ColumnSplits, MAX_SPLIT_BYTES, SumSplitsKernel};
pub use state_keys::{
    ConvolutionForm, ConvolutionKernel, DeltaRuleKernel, GateKernel, GateNorm, MAX_TAPS, SelectiveScanKernel,
    SplitGatesKernel, StateKernel,
};
pub use states::{Span, Spans};
pub use stream_keys::{CutGatesKernel, MAX_STREAMS, StreamKernel, StreamRows};
pub use streams::StreamGates;
pub use trace::{Traced, TracedBuffer};
pub use tune::Tuned;
pub use tuning::ProductShape;
pub use window::AttentionWindow;
