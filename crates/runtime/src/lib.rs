#![doc = include_str!("../README.md")]
//!
//! # Main types
//! ```text
//! ModelSource + EngineOptions ──load──▶ Engine ──generate(GenerateRequest, CancelToken, on_text)──▶ Completion
//!                                         │            Prompt, SamplingParams, stop strings
//!                                         ├──conversation▶ Conversation: requests that go on from one another
//!                                         ├──plan────────▶ Plan: what was chosen for machine and model, and why
//!                                         ├──load_adapter▶ Adapter: LoRA, named by requests
//!                                         ├──perplexity──▶ Perplexity
//!                                         ├──passkey─────▶ Vec<PasskeyResult>
//!                                         ├──logits──────▶ Vec<f32>
//!                                         ├──embed───────▶ Embeddings (also of encoders: Embedder)
//!                                         ├──calibrate_kv▶ KvCalibration
//!                                         └──bench───────▶ Vec<BenchResult>
//! ```
//! [`Sampler`] and [`StopMatcher`] can be used alone. [`InferenceBackend`] is the seam behind which
//! something else computes: the engine is one, with the feature `gpu` there is one on a GPU, with
//! `candle` one that reads Hugging Face folders, for a second opinion.
//!
//! # Invariants
//! - Text is given out as it is generated, in whole characters, and never includes any part of a
//!   stop string.
//! - Output is the same, bit for bit, for any number of threads, instruction set and prefill chunk.
//! - A value that was not measured is absent.
//! - No input makes it panic: files, prompts and parameters give an [`Error`] that says what to
//!   change.

#![forbid(unsafe_code)]

mod adapter;
mod backend;
mod benchmark;
mod calibrate;
mod cancel;
mod codec;
mod conversation;
mod embed;
mod engine;
mod error;
mod evaluate;
mod generate;
mod machine;
mod memory;
mod options;
mod plan;
mod prefix;
mod quality;
mod request;
mod sampler;
mod session;
mod stop;

pub use ruvllm_adapters::Adapter;
pub use ruvllm_kernels::{Isa, Kernels};
pub use ruvllm_kv_cache::prefix::FolderKey;
pub use ruvllm_kv_cache::{KvCalibration, KvPolicy};
pub use ruvllm_memory::{PressurePolicy, Quota, Tenant};
pub use ruvllm_models::quantize::Recipe;
pub use ruvllm_models::{LoadProgress, ModelConfig, Pooling};
pub use ruvllm_text::TokenId;
pub use ruvllm_text::chat::Message;

pub use crate::adapter::AdapterSource;
pub use crate::backend::InferenceBackend;
#[cfg(feature = "candle")]
pub use crate::backend::candle::{CandleBackend, CandleDevice, CandleOptions};
#[cfg(feature = "gpu")]
pub use crate::backend::gpu::{GpuBackend, GpuOptions, GpuSession};
pub use crate::backend::sequence::BackendSession;
pub use crate::benchmark::{BenchOptions, BenchResult, BenchTest, Spread};
pub use crate::cancel::CancelToken;
pub use crate::codec::TextCodec;
pub use crate::conversation::Conversation;
pub use crate::embed::{Embedder, Embedding, EmbeddingRequest, Embeddings};
pub use crate::engine::Engine;
pub use crate::error::{Error, KvShortage, Result};
pub use crate::evaluate::{PasskeyOptions, PasskeyResult, Perplexity};
pub use crate::machine::Machine;
pub use crate::memory::ProcessMemory;
pub use crate::options::{EngineOptions, ModelSource};
pub use crate::plan::{Choice, ModelSize, Plan, Reason, Warning};
pub use crate::prefix::{PrefixCaching, PrefixStatistics};
pub use crate::request::{Completion, FinishReason, GenerateRequest, KvQuality, Prompt, Timings};
pub use crate::sampler::{Sampler, SamplingParams};
pub use crate::stop::StopMatcher;
