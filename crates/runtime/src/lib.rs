#![doc = include_str!("../README.md")]
//!
//! # Main types
//! ```text
//! ModelSource + EngineOptions ──open──▶ Engine ──generate(Prompt or GenerateRequest)──▶ Completion
//!                              (load)     ├──submit──────▶ RequestHandle: Chunk, Chunk, ...
//!                                         ├──submit_many─▶ Vec<RequestHandle>: choices of one prompt
//!                                         ├──sessions────▶ Sessions: state by tenant and id, across restarts
//!                                         ├──generate_with(request, CancelToken, on_text)──▶ Completion
//!                                         ├──conversation▶ Conversation: requests that go on from one another
//!                                         │  ToolLoop: runs a model's tool calls with closures, on either of them
//!                                         ├──plan────────▶ Plan: what was chosen for machine and model, and why
//!                                         ├──load_adapter▶ Adapter: LoRA, named by requests
//!                                         ├──perplexity──▶ Perplexity
//!                                         ├──compare─────▶ KlDivergence: two runs over one text
//!                                         ├──passkey─────▶ Vec<PasskeyResult>
//!                                         ├──logits──────▶ Vec<f32>
//!                                         ├──embed───────▶ Embeddings (also of encoders: Embedder)
//!                                         ├──rerank──────▶ Ranking (also of encoders: Embedder)
//!                                         ├──calibrate_kv▶ KvCalibration
//!                                         └──bench───────▶ Vec<BenchResult>
//! ```
//! [`Sampler`], [`StopMatcher`] and [`ConstraintCompiler`] can be used alone. [`InferenceBackend`]
//! is the trait of forward passes: implemented by the engine, with the feature `gpu` by a GPU
//! backend, with `candle` by a backend over candle's models, for comparison.
//!
//! # Invariants
//! - Text is returned as it is generated, in whole characters, and never includes any part of a
//!   stop sequence.
//! - Output is bit-identical for any number of threads, instruction set and prefill chunk size.
//! - A value that was not measured is absent.
//! - No input causes a panic: invalid files, prompts and parameters give an [`Error`] that says
//!   what to change.

#![forbid(unsafe_code)]

mod adapter;
mod adapter_choice;
mod adapter_refusal;
mod answer;
mod answer_parser;
mod backend;
mod benchmark;
mod calibrate;
mod cancel;
mod codec;
#[cfg(feature = "structured-output")]
mod constraint;
mod conversation;
mod core;
mod embed;
mod engine;
mod error;
mod evaluate;
mod generate;
mod guide;
mod importance;
mod intake;
#[cfg(feature = "kernel-packs")]
pub mod kernel_packs;
mod learning;
mod machine;
mod memory;
mod options;
mod plan;
mod prefix;
mod quality;
mod request;
mod sampler;
mod segments;
mod sequence;
mod session;
mod session_table;
mod sessions;
mod setters;
mod speculation;
mod step;
mod stop;
mod thinking;
mod tool_loop;
mod tools;
mod transfer;
mod usage;

/// Lower-layer crates in the versions used here: for types in signatures and sources of errors.
pub mod crates {
    pub use {
        gguf_rs_lite as gguf, ruvllm_adapters as adapters, ruvllm_kernels as kernels,
        ruvllm_kv_cache as kv_cache, ruvllm_memory as memory, ruvllm_models as models, ruvllm_sona as sona,
        ruvllm_text as text,
    };
}

/// JSON values of messages and tools, in the version used here.
pub use serde_json;

pub use ruvllm_adapters::{
    Adapter, AdapterGate, FactorFormat, MicroLora, Precision, Registry, ResidencyStatistics, ScaledAdapter,
    Tier,
};
#[cfg(feature = "store")]
pub use ruvllm_hub::Store;
pub use ruvllm_kernels::rope::RopeLayout;
pub use ruvllm_kernels::{Isa, Kernels};
pub use ruvllm_kv_cache::prefix::store::{EntryStorage, StoreStatistics};
pub use ruvllm_kv_cache::prefix::{FolderKey, PrefixNode, TreeStatistics};
pub use ruvllm_kv_cache::{KvCalibration, KvPolicy, KvShape, KvStore};
pub use ruvllm_memory::{PagePool, PoolStats, PressurePolicy, Quota, Tenant};
pub use ruvllm_models::quantize::Recipe;
pub use ruvllm_models::{
    Checkpoint, LoadProgress, Model, ModelConfig, Pooling, RowKernelCounts, RowKernelReport, RowKernels,
};
pub use ruvllm_scheduler::{Config as SchedulerConfig, Refusal};
pub use ruvllm_text::TokenId;
pub use ruvllm_text::chat::{ChatTemplate, Message};
pub use ruvllm_text::reasoning::{AnswerEvent, AnswerParser, ReasoningFormat};
pub use ruvllm_text::tokenizer::Tokenizer;
pub use ruvllm_text::tool_call::{ToolCall, ToolCallEvent, ToolCallFormat, ToolCallParser};

pub use crate::adapter::AdapterSource;
pub use crate::adapter_choice::{AdapterChoice, ServedAdapter};
pub use crate::adapter_refusal::AdapterRefusal;
pub use crate::backend::adapters::BackendAdapters;
pub use crate::backend::batch::{
    BackendBatch, Decoded, NextToken, OnDecoded, OnStates, PrefixSharing, TokenLogit, Wanted,
};
#[cfg(feature = "candle")]
pub use crate::backend::candle::{CandleBackend, CandleDevice, CandleOptions};
pub use crate::backend::conversation::BackendConversation;
#[cfg(feature = "gpu")]
pub use crate::backend::gpu::{
    GpuAdapter, GpuAdapterKind, GpuBackend, GpuCacheFile, GpuCheck, GpuCompileTimes, GpuKernel, GpuLoadTimes,
    GpuMatrixShape, GpuOptions, GpuSelfTest, GpuSession, GpuStates, GpuTuned, gpu_adapters, gpu_choose,
    gpu_self_test,
};
pub use crate::backend::head::{BackendHead, HeadPart};
pub use crate::backend::queue::BackendQueue;
pub use crate::backend::sequence::BackendSession;
pub use crate::backend::{DeviceMemory, InferenceBackend};
pub use crate::benchmark::{
    BenchOptions, BenchResult, BenchTest, ParallelOptions, ParallelResult, Percentiles, Spread,
};
pub use crate::cancel::CancelToken;
pub use crate::codec::TextCodec;
#[cfg(feature = "structured-output")]
pub use crate::constraint::{Constraint, ConstraintCompiler, ConstraintError, ConstraintState, TokenMask};
pub use crate::conversation::Conversation;
pub use crate::embed::{
    Embedder, Embedding, EmbeddingRequest, Embeddings, RankedDocument, Ranking, RerankError, RerankRequest,
};
pub use crate::engine::Engine;
pub use crate::error::{Error, KvShortage, Result};
pub use crate::evaluate::{KlDivergence, MeanNll, PasskeyOptions, PasskeyResult, Perplexity};
pub use crate::learning::LearnedAdapter;
#[cfg(feature = "learning")]
pub use crate::learning::{LearningOptions, OnlineAdapter};
pub use crate::machine::Machine;
pub use crate::memory::ProcessMemory;
pub use crate::options::{EngineOptions, ModelSource};
pub use crate::plan::{Choice, ModelSize, Plan, Reason, Warning};
pub use crate::prefix::{
    BlockHash, EntryFault, ImportPlan, ImportedPrefix, PrefixCaching, PrefixEvent, PrefixEvents,
    PrefixExport, PrefixImport, PrefixOffer, PrefixStatistics, PrefixStorage, TransferError,
    TransferStatistics,
};
pub use crate::request::{Completion, FinishReason, GenerateRequest, KvQuality, Prompt, Timings};
pub use crate::sampler::{
    DryBreakers, Logprobs, Sampler, SamplerOrder, SamplerState, SamplerStep, SamplingParams, TokenLogprob,
};
pub use crate::session_table::SessionError;
pub use crate::sessions::{SessionInfo, Sessions};
pub use crate::speculation::Speculation;
pub use crate::step::{
    Chunk, RequestEvent, RequestHandle, StepRecord, StepStatistics, TuningOptions, TuningStatus,
};
pub use crate::stop::StopMatcher;
pub use crate::tool_loop::{
    Generator, Tool, ToolLoop, ToolLoopEnd, ToolLoopEvent, ToolLoopOptions, ToolLoopResult,
};
pub use crate::tools::{ToolChoice, ToolError};
pub use crate::usage::{KvTierUsage, KvUsage};

/// README examples of crates whose documentation does not include their README.
#[cfg(doctest)]
mod readmes {
    #[doc = include_str!("../../kernels/README.md")]
    struct Kernels;
    #[doc = include_str!("../../kv-cache/README.md")]
    struct KvCache;
    #[doc = include_str!("../../memory/README.md")]
    struct Memory;
    #[doc = include_str!("../../text/README.md")]
    struct Text;
    #[doc = include_str!("../../../docs/serving.md")]
    struct Serving;
    #[doc = include_str!("../../../docs/sona.md")]
    struct Learning;
    #[doc = include_str!("../../../docs/scale-out.md")]
    struct ScaleOut;
    #[doc = include_str!("../../../docs/speculation.md")]
    struct Speculation;
}
