//! CPU kernels for language models: the arithmetic between weight bytes and logits.
//!
//! The crate knows no model files, architectures, tokens or sampling, has no global state except
//! the cached CPU detection, and depends on three small crates.
//!
//! # Example
//! Product of a matrix in `Q8_0` with one token:
//! ```
//! use ruvllm_kernels::matmul::Activations;
//! use ruvllm_kernels::quant::{PackedMatrix, SharedBytes, WeightFormat};
//! use ruvllm_kernels::{Kernels, ThreadPool};
//!
//! let kernels = Kernels::detect()?; // best of this CPU, or named by RUVLLM_ISA
//! let pool = ThreadPool::new(2)?;
//! let mut bytes = vec![0; 4 * 34]; // 4 rows of one quant block: 32 values in 34 bytes
//! WeightFormat::Q8_0.quantize(&[0.5; 4 * 32], &mut bytes);
//! let weights = PackedMatrix::new(WeightFormat::Q8_0, 4, 32, SharedBytes::new(bytes))?;
//! let mut x = Activations::new();
//! x.resize(1, 32).fill(2.0);
//! x.quantize(&kernels, &pool);
//! let mut y = [0.0; 4];
//! kernels.matmul(&pool, &weights, &x, &mut y);
//! assert!(y.iter().all(|y| (y - 32.0).abs() < 0.1));
//! # Ok::<(), ruvllm_kernels::Error>(())
//! ```
//!
//! # Modules
//! All operations are methods of [`Kernels`]; the modules hold their argument types.
//!
//! | module | types | methods of `Kernels` |
//! |---|---|---|
//! | [`quant`] | [`WeightFormat`](quant::WeightFormat), [`PackedMatrix`](quant::PackedMatrix), [`SharedBytes`](quant::SharedBytes) | |
//! | [`matmul`] | [`Activations`](matmul::Activations), [`MatmulJob`](matmul::MatmulJob) | `matmul`, `matmul_many` |
//! | [`low_rank`] | [`FactorFormat`](low_rank::FactorFormat), [`LowRank`](low_rank::LowRank), [`LowRankTerm`](low_rank::LowRankTerm) | `add_low_rank`, `matmul_low_rank` |
//! | [`attention`] | [`AttentionShape`](attention::AttentionShape), [`Mask`](attention::Mask), [`KvPlane`](attention::KvPlane), [`KvView`](attention::KvView), the formats of keys and values | `attention`, `store_kv`, `convert_kv`, `read_kv`, ... |
//! | [`recurrence`] | [`Convolution`](recurrence::Convolution), [`DeltaRule`](recurrence::DeltaRule), [`SelectiveScan`](recurrence::SelectiveScan) | `convolve`, `delta_rule`, `selective_scan` |
//! | [`rope`] | [`RopeConfig`](rope::RopeConfig), [`RopeTable`](rope::RopeTable) | `rope` |
//! | [`rows`] | [`Norm`](rows::Norm), [`Activation`](rows::Activation), [`MatrixView`](rows::MatrixView) | `dot`, `norm`, `gated`, `softmax`, `hadamard`, `top_k`, ... |
//! | [`vector`] | [`VectorRows`](vector::VectorRows), [`Metric`](vector::Metric), [`ProductQuantizer`](vector::ProductQuantizer) | `distance`, `distances`, `hamming`, `quantize_int8`, ... |
//! | [`pool`] | [`ThreadPool`], [`Placement`](pool::Placement) | |
//!
//! # Instruction sets
//! | [`Isa`] | needs | lanes |
//! |---|---|---|
//! | `scalar` | nothing | `[f32; 8]`, `f32::mul_add` |
//! | `avx2` | AVX2, FMA, F16C and POPCNT | `__m256` |
//! | `avx512` | also AVX-512 F, BW, DQ, VL and VNNI | `__m256`, `__m512` for two groups |
//! | `neon` | NEON (every 64-bit ARM CPU) | two `float32x4_t` |
//! | `neon-dotprod` | also int8 dot products (`FEAT_DotProd`) | the same |
//! | `neon-i8mm` | also int8 matrix products (`FEAT_I8MM`) | the same |
//!
//! The set is chosen once, when [`Kernels`] is created; `RUVLLM_ISA=scalar` forces one, and an
//! unavailable one is an error.
//!
//! # Numerics
//! All instruction sets, thread counts and batch splits give bit-identical results (NaN payloads
//! excepted): f32 sums accumulate in eight lanes (32 for vector distances) in a fixed order and are
//! reduced by a fixed tree. Each operation documents its error bound against exact arithmetic.
//! Denormals are kept, except that the exponential gives 0 below `e^-87.3`.
//!
//! # Panics and errors
//! Invalid outside data (settings, files) gives an [`Error`]. Slices of the wrong length are
//! programming errors and panic.

#![allow(clippy::needless_range_loop)] // a register tile is several arrays under one index

pub mod attention;
pub mod low_rank;
pub mod matmul;
pub mod pool;
pub mod quant;
pub mod recurrence;
pub mod rope;
pub mod rows;
pub mod vector;

mod error;
mod isa;
mod kernels;
mod lanes;

pub use error::{Error, Result};
pub use isa::Isa;
pub use kernels::Kernels;
pub use pool::ThreadPool;
