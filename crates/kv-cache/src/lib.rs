//! KV cache: keys and values of sequences in reference-counted blocks, with copy-on-write forks,
//! shared prefixes and precision tiers under one memory budget.
//!
//! ```
//! use ruvllm_kernels::Kernels;
//! use ruvllm_kv_cache::{KvShape, KvStore};
//! use ruvllm_memory::{PagePool, PoolConfig};
//!
//! let (kernels, pool) = (Kernels::detect()?, PagePool::new(PoolConfig::new(64 << 20))?);
//! let shape = KvShape::new(1, 2, 32);
//! let mut sequence = KvStore::new(shape, &"f16".parse()?, &pool)?.sequence(1024);
//! let mut step = sequence.step(&kernels, 3)?; // memory for three tokens
//! step.write(&kernels, 0, &[0.5; 3 * 64], &[2.0; 3 * 64]); // keys and values of layer 0
//! assert_eq!(step.view(0, &mut Vec::new()).blocks().len(), 1); // for Kernels::attention
//! step.commit();
//! assert_eq!((sequence.len(), sequence.fork().len()), (3, 3));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`KvStep`] that is dropped instead of committed leaves its sequence as it was.
//!
//! ```text
//! KvStore (shape, policy, slabs of one PagePool)
//!   │ sequence(capacity)
//!   ▼
//! Sequence ── blocks: [Block, Block, Block]  shared, whole, in any tier     ── pinned while a step reads them
//!             tail:   [Storage]              its own, hot, written by steps
//! ```
//!
//! A [`Block`] is the keys and values of `block_tokens` consecutive tokens in all layers. Sequences
//! with a common beginning share blocks; the tail belongs to one sequence. A block may move to a
//! lower-precision tier while others read it: a copy is written and then published, and a step goes
//! on with the numbers it began with.
//!
//! # Parts
//! | module | holds |
//! |---|---|
//! | `policy` | [`KvPolicy`], [`KvFormats`]: which tokens are stored how, as text and as values |
//! | `store` | [`KvStore`]: shape, policy, tenants, slabs of each tier |
//! | `tier` | formats and layouts of the blocks of one tier |
//! | `storage` | the memory of one block in one tier, and its allocation |
//! | `block` | [`Block`]: a shared storage, and its replacement by another tier's |
//! | `sequence` | [`Sequence`]: block table of one sequence; [`KvStep`]: new tokens; [`Probe`]: attention by block |
//! | `calibration` | [`KvCalibration`]: codebooks of a model, for formats that need them |
//! | `learned` | a calibration in use: codebooks and RoPE tables of a store |
//! | `controller` | [`Controller`]: hot tokens that reach a target error |
//! | [`prefix`] | prefix cache: blocks of a prompt's beginning, in memory and on disk |

#![forbid(unsafe_code)]

mod block;
mod calibration;
mod controller;
mod convert;
mod error;
mod learned;
mod policy;
pub mod prefix;
mod sequence;
mod shape;
mod storage;
mod store;
mod tier;

/// The kernels and the memory pool, whose types the functions here take.
pub use {ruvllm_kernels as kernels, ruvllm_memory as memory};

pub use block::{Block, PinnedBlock};
pub use calibration::{CalibrationFault, KvCalibration};
pub use controller::Controller;
pub use error::{Error, Result};
pub use learned::{KeyRopes, KvRope, KvRopes};
pub use policy::{ColdTier, ErrorTarget, KvFormats, KvPolicy};
pub use sequence::{
    KvReader, KvStep, Migration, Probe, Replay, Sample, SampleScratch, Sequence, StateSnapshot,
};
pub use shape::{KvShape, OtherHeads};
pub use store::{KvStore, SnapshotUse, TierUse};
