//! Keys and values of sequences in reference-counted blocks: forks, shared prefixes and tiers of precision under one
//! memory budget.
//!
//! ```text
//! KvStore (shape, policy, slabs of one PagePool)
//!   │ sequence(capacity)
//!   ▼
//! Sequence ── blocks: [Block, Block, Block]  shared, whole, in any tier     ── pinned while a step reads them
//!             tail:   [Storage]              its own, hot, written by steps
//! ```
//!
//! A [`Block`] is the keys and values of `block_tokens` consecutive tokens in all layers. Sequences that share a beginning
//! share blocks; what a sequence still writes to is its own. A block's numbers may be replaced by fewer bits while others
//! read it: they are copied first, then published, and a step goes on with those it began with.
//!
//! # Examples
//! ```
//! use ruvllm_kernels::Kernels;
//! use ruvllm_kv_cache::{KvShape, KvStore};
//! use ruvllm_memory::{PagePool, PoolConfig};
//!
//! let pool = PagePool::new(PoolConfig::new(64 << 20))?;
//! let shape = KvShape { n_layers: 1, n_kv_heads: 2, head_dim: 32 };
//! let store = KvStore::new(shape, &"f16".parse()?, &pool)?;
//! let kernels = Kernels::detect()?;
//!
//! // A step of three tokens: room for them, every layer written and viewed, then the commit.
//! let mut sequence = store.sequence(1024);
//! let mut step = sequence.step(&kernels, 3)?;
//! step.write(&kernels, 0, &[0.5; 3 * 64], &[2.0; 3 * 64]);
//! assert_eq!(step.view(0, &mut Vec::new()).len, 3);
//! step.commit();
//!
//! // A fork shares what is there; whoever writes first copies the partial block.
//! let fork = sequence.fork();
//! assert_eq!((fork.len(), sequence.len()), (3, 3));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Parts
//! | module | holds |
//! |---|---|
//! | `policy` | [`KvPolicy`], [`KvFormats`]: which tokens are stored how, as text and as values |
//! | `store` | [`KvStore`]: shape, policy, tenants, and where blocks come from |
//! | `storage` | the numbers of a block in one tier |
//! | `block` | [`Block`]: shared numbers, and how they are replaced |
//! | `sequence` | [`Sequence`]: one sequence's table of blocks; [`Probe`]: where its queries look |
//! | `calibration` | [`KvCalibration`]: what was learned of a model, for formats that need it |
//! | `learned` | a calibration at work in a store |
//! | `controller` | [`Controller`]: quality at a target |
//! | `pressure` | when memory is short |
//! | [`prefix`] | finding the blocks of a prompt's beginning again |

#![forbid(unsafe_code)]

mod block;
mod calibration;
mod controller;
mod convert;
mod error;
mod learned;
mod policy;
pub mod prefix;
mod pressure;
mod sequence;
mod shape;
mod storage;
mod store;

pub use block::{Block, PinnedBlock};
pub use calibration::{CalibrationFault, KvCalibration};
pub use controller::Controller;
pub use error::{Error, Result};
pub use learned::{KeyRotations, KvRope, KvRopes};
pub use policy::{ColdTier, ErrorTarget, KvFormats, KvPolicy};
pub use sequence::{KvReader, KvStep, Migration, Probe, Sample, SampleScratch, Sequence};
pub use shape::KvShape;
pub use store::{KvStore, TierUse};
