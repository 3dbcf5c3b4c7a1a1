#![doc = include_str!("../README.md")]
//!
//! # Main types
//! ```text
//! Gguf ──────┐
//! HfFolder ──┴► Checkpoint ──► ModelConfig ──► Model ◄── Compute (kernels, threads)
//!                                               │ forward(Workspace, [Segment { tokens, KvStep, LogitsRows }])
//!                                               ▼
//!                                             logits
//! ```
//!
//! A pass takes any mix of prompt chunks and single tokens of different sequences ([`Segment`]),
//! each with a step of its own [`Sequence`], and commits all of them or none. See [`Model`] for an
//! example of decoding.
//!
//! # Invariants
//! - Matrices are used where they are in the file, unless the file has their rows in another order;
//!   norms and biases are copied.
//! - A token's logits depend on its sequence alone, bit for bit: not on the batch, the cut of the
//!   prompt, the threads or the instruction set. Of the sequence's capacity they depend only where
//!   [`ModelConfig::long_rope_above`] says so.
//! - No file and no token id makes it panic: they give an [`Error`].
//! - A decode step allocates nothing once its workspace and cache are warm, but for tables that
//!   double with the length.

#![forbid(unsafe_code)]

mod batch;
mod checkpoint;
mod compute;
mod config;
mod decoder;
mod encoder;
mod error;
mod family;
mod hf;
mod importance;
mod interleaved;
#[cfg(feature = "merge")]
pub mod merge;
mod open;
mod parameters;
mod pooling;
mod projection;
pub mod quantize;
mod ranking;
mod rope;
mod rows;
mod tensor_names;
mod weights;
mod workspace;

pub use batch::{LogitsRows, Segment};
pub use checkpoint::{Checkpoint, TensorBytes};
pub use compute::{Compute, RowKernelCounts, RowKernelReport, RowKernels};
pub use config::{Heads, LocalRope, ModelConfig};
pub use decoder::Model;
pub use encoder::{Encoder, EncoderConfig, EncoderText, EncoderWorkspace};
pub use error::{Error, Result};
pub use family::{
    Activation, AttentionTemperature, DecoderSpec, DeltaNet, EncoderNetwork, EncoderNorms, EncoderSpec,
    ExpertGroups, Experts, LatentAttention, LayerKinds, LayerParts, LocalHeads, Mamba2, Projections,
    Recurrent, RecurrentMixer, ResidualStreams, RotaryBases, Router, Scoring, ShortConvolution, Window,
    is_encoder,
};
pub use hf::{HfFolder, StoredTensor, folder_chat_template};
pub use importance::{ImportanceMatrix, InputSquares};
pub use open::{open_checkpoint, open_checkpoint_in};
pub use parameters::ParameterCounts;
pub use pooling::{EmbeddingDefaults, Pooling};
pub use ranking::rerank_template;
pub use ruvllm_kernels::attention::KvFormat;
pub use ruvllm_kv_cache::{KvPolicy, KvStore, Sequence};
pub use ruvllm_memory::PagePool;
pub use weights::{
    AttentionWeights, BesideWeights, ConvolutionWeights, DeltaNetWeights, ExpertLinears, ExpertWeights,
    FeedForward, LatentWeights, LayerInputWeights, LayerStreamWeights, LayerWeights, Linear, LoadProgress,
    Mamba2Weights, Mixer, ParallelWeights, PerLayerWeights, PredictionHead, RankHead, SharedAttentionWeights,
    StreamWeights, WeightBytes, Weights, weight_format,
};
pub use workspace::Workspace;
