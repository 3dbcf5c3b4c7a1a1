//! Inference backends: the trait between the generation loop and the code that computes logits from
//! tokens.
//!
//! ```text
//! GenerateRequest ──► step loop: prompt, sampler, stop sequences, streaming, cancellation
//!                        │ TextCodec: text ◄─► tokens
//!                        ▼
//!          BackendSession: tokens ──► logits
//!            │                  │
//!          Engine          GpuBackend (feature `gpu`), CandleBackend (feature `candle`), or your own
//! ```

pub(crate) mod adapters;
pub(crate) mod batch;
#[cfg(feature = "candle")]
pub(crate) mod candle;
pub(crate) mod conversation;
#[cfg(feature = "gpu")]
pub(crate) mod gpu;
pub(crate) mod head;
mod many;
mod measure;
pub(crate) mod queue;
mod requests;
pub(crate) mod sequence;

use std::ops::ControlFlow;

use ruvllm_kernels::attention::KvFormat;
use ruvllm_kv_cache::KvPolicy;
use ruvllm_kv_cache::prefix::TreeStatistics;
use ruvllm_memory::Tenant;
use ruvllm_models::ModelConfig;
use ruvllm_text::TokenId;

use self::adapters::BackendAdapters;
use self::batch::{BackendBatch, OneByOne};
use self::head::BackendHead;
use self::requests::Requests;
use self::sequence::BackendSession;
use crate::benchmark::{BenchOptions, BenchResult, ParallelOptions, ParallelResult};
use crate::cancel::CancelToken;
use crate::codec::TextCodec;
use crate::engine::Engine;
use crate::error::Result;
use crate::evaluate::Perplexity;
use crate::request::{Completion, GenerateRequest};
use crate::session::Session;
use crate::speculation::Speculation;
use crate::step::RequestHandle;

/// A loaded model that computes logits: the trait of inference backends.
///
/// Implemented by [`Engine`]. Another backend describes its model and creates sequences
/// ([`BackendSession`]); the generation loop (sampling, stop sequences, streaming, cancellation) is
/// shared.
///
/// # Example
/// ```no_run
/// use std::ops::ControlFlow;
///
/// use ruvllm::{CancelToken, GenerateRequest, InferenceBackend};
///
/// /// Continues a text with whatever computes.
/// fn answer(backend: &dyn InferenceBackend, text: &str) -> Result<String, ruvllm::Error> {
///     let request = GenerateRequest::new(text).with_max_tokens(64);
///     let completion =
///         backend.generate_with(&request, &CancelToken::new(), &mut |_| ControlFlow::Continue(()))?;
///     Ok(completion.text)
/// }
/// ```
pub trait InferenceBackend: Send + Sync {
    /// Name of the backend in messages: `native`, `gpu`, `candle`.
    fn name(&self) -> &str;

    /// Hyperparameters and names of the model.
    fn config(&self) -> &ModelConfig;

    /// Tokenizer and chat template of the model.
    fn codec(&self) -> &TextCodec;

    /// Context length in tokens: prompt and output together.
    fn context_length(&self) -> usize;

    /// Creates an empty sequence of at most `capacity` tokens, up to
    /// [`context_length`](Self::context_length).
    ///
    /// # Errors
    /// A capacity beyond the context length; too little memory.
    fn session(&self, capacity: usize) -> Result<Box<dyn BackendSession + '_>>;

    /// Creates an empty set of sequences that are decoded together. By default they are computed
    /// one after the other.
    fn batch(&self) -> Box<dyn BackendBatch + '_> {
        Box::new(OneByOne::new(Box::new(move |capacity| self.session(capacity))))
    }

    /// Tokens of KV cache that new sequences can take now; each takes whole blocks of
    /// [`KvPolicy::block_tokens`] for its capacity. Default: no limit.
    fn kv_room(&self) -> usize {
        usize::MAX
    }

    /// Sequences that can begin now, apart from the room for their tokens. Default: no limit.
    fn sequence_room(&self) -> usize {
        usize::MAX
    }

    /// True if sequences share what earlier ones have computed of their prompts
    /// ([`BackendBatch::begin_with_prefix`]). Default: false.
    fn shares_prefixes(&self) -> bool {
        false
    }

    /// Counters of the stored prefixes in memory. Default: `None`, for a backend that stores none.
    fn prefix_statistics(&self) -> Option<TreeStatistics> {
        None
    }

    /// Counters of the stored prefixes that sequences have displaced to memory of the host.
    /// Default: `None`, for a backend without a place for them.
    fn host_prefix_statistics(&self) -> Option<TreeStatistics> {
        None
    }

    /// The tenant of a path, to whose requests its stored prefixes are visible. Default: the root,
    /// for a backend that keeps tenants apart in nothing.
    ///
    /// # Errors
    /// A path that is not one, or more tenants than there is a place for.
    fn tenant(&self, _path: &str) -> Result<Tenant, ruvllm_memory::Error> {
        Ok(Tenant::root())
    }

    /// Drafts of requests that name no setting. They come from the tokens of a request (prompt
    /// look-up) and from a [`draft_model`](Self::draft_model) or else the model's
    /// [`prediction_head`](Self::prediction_head), and are made where batches have room for them
    /// ([`BackendBatch::draft_room`]). Default: as they pay.
    fn speculation(&self) -> Speculation {
        Speculation::Auto
    }

    /// Backend of a small model with the same vocabulary, whose likeliest tokens are drafts.
    /// Its sequences have up to 1024 tokens, fewer if its context is shorter; requests whose
    /// sequence it has no room for have no drafts of it. Default: `None`.
    fn draft_model(&self) -> Option<&dyn InferenceBackend> {
        None
    }

    /// Creates an empty set of sequences of the model's prediction head, whose likeliest tokens are
    /// drafts. It reads the states of [`BackendBatch::decode_with_states`] and
    /// [`BackendSession::prefill_with_states`]. Default: `None`.
    fn prediction_head(&self) -> Option<Box<dyn BackendHead + '_>> {
        None
    }

    /// Adapters of its requests. Default: `None`, for a backend that computes without.
    fn backend_adapters(&self) -> Option<&BackendAdapters> {
        None
    }

    /// Memory on the device. Default: `None`, for a backend without a device of its own.
    fn device_memory(&self) -> Option<DeviceMemory> {
        None
    }

    /// True once the backend can compute nothing more, such as after the loss of its device:
    /// requests fail, and the model must be loaded again. Default: false.
    fn is_lost(&self) -> bool {
        false
    }

    /// Prompt tokens per pass; a prefill can be cancelled between passes.
    fn prefill_chunk(&self) -> usize {
        512
    }

    /// Generates text for one request: see [`Engine::generate_with`].
    ///
    /// # Errors
    /// As [`Engine::generate_with`], `Error::AdapterBackend` for a request with an adapter, and
    /// errors of the backend's sessions.
    fn generate_with(
        &self,
        request: &GenerateRequest,
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        Requests::new(self).run(request, None, cancel, on_text)
    }

    /// Generates text for several requests at once, whose next tokens are computed together
    /// ([`batch`](Self::batch)). At most 64 run; others wait for a place and for memory
    /// ([`kv_room`](Self::kv_room)). `on_text` gets the index of a request and a piece of its text;
    /// a `Break` cancels that request, `cancel` all.
    ///
    /// Results are in the order of the requests. On a backend whose batches do not mix rows, such
    /// as the GPU, each has the text that it would have alone.
    ///
    /// # Errors
    /// Threads for sampling that cannot be started. Errors of a request are in its result: see
    /// [`generate_with`](Self::generate_with).
    fn generate_many(
        &self,
        requests: &[GenerateRequest],
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(usize, &str) -> ControlFlow<()>,
    ) -> Result<Vec<Result<Completion>>> {
        many::generate(self, requests, cancel, on_text)
    }

    /// KV-cache policy. Default: F32.
    fn kv_policy(&self) -> KvPolicy {
        KvPolicy::from(KvFormat::F32)
    }

    /// Perplexity of a text given as token ids: see [`Engine::perplexity`]. The default computes
    /// tokens one at a time, as in decode.
    ///
    /// # Errors
    /// As [`Engine::perplexity`], and errors of the backend's sessions.
    fn perplexity(
        &self,
        tokens: &[TokenId],
        context: usize,
        limit: Option<usize>,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Perplexity> {
        measure::perplexity(self, tokens, (context, limit), progress)
    }

    /// Logits at `positions` of a token sequence: see [`Engine::logits`]. The default prefills the
    /// tokens up to a position; a single token is computed as in decode.
    ///
    /// # Errors
    /// As [`Engine::logits`], and errors of the backend's sessions.
    fn logits(&self, tokens: &[TokenId], positions: &[usize]) -> Result<Vec<f32>> {
        measure::logits(self, tokens, positions)
    }

    /// Measures the speed of the model: see [`Engine::bench`]. The default makes one uncounted run
    /// of each test first, computes the whole depth, ignores the thread counts, and reports one
    /// thread and no CPU time.
    ///
    /// # Errors
    /// As [`Engine::bench`], and errors of the backend's sessions.
    fn bench(
        &self,
        options: &BenchOptions,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Vec<BenchResult>> {
        measure::bench(self, options, progress)
    }

    /// Measures requests that run at once: see [`Engine::bench_parallel`]. The default makes one
    /// uncounted round of each count first, and has no preemptions.
    ///
    /// # Errors
    /// As [`Engine::bench_parallel`], and errors of the backend's sessions.
    fn bench_parallel(
        &self,
        options: &ParallelOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Vec<ParallelResult>> {
        measure::bench_parallel(self, options, progress)
    }
}

/// Memory of a backend on its device, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Limit of [`used`](Self::used); `None` without one.
    pub budget: Option<u64>,
    /// Buffers: weights, keys and values, activations.
    pub used: u64,
    /// Memory taken from the driver for the buffers, in blocks; `None` if it is not known.
    pub reserved: Option<u64>,
    /// Part of [`used`](Self::used): matrices.
    pub weights: u64,
    /// Part of [`used`](Self::used): keys and values.
    pub kv: u64,
}

/// Sequences of the engine are charged to the root tenant;
/// [`generate_with`](InferenceBackend::generate_with) is the engine's own, with tenants.
impl InferenceBackend for Engine {
    fn name(&self) -> &str {
        "native"
    }

    fn config(&self) -> &ModelConfig {
        Engine::config(self)
    }

    fn codec(&self) -> &TextCodec {
        &self.core().codec
    }

    fn context_length(&self) -> usize {
        Engine::context_length(self)
    }

    fn session(&self, capacity: usize) -> Result<Box<dyn BackendSession + '_>> {
        Ok(Box::new(Session::new(self, capacity)?))
    }

    fn prefill_chunk(&self) -> usize {
        self.core().prefill_chunk
    }

    fn generate_with(
        &self,
        request: &GenerateRequest,
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        Engine::generate_with(self, request, cancel, on_text)
    }

    /// All run at once in the engine's step loop; texts are passed request by request.
    fn generate_many(
        &self,
        requests: &[GenerateRequest],
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(usize, &str) -> ControlFlow<()>,
    ) -> Result<Vec<Result<Completion>>> {
        let handles: Vec<_> = requests.iter().map(|request| self.submit_in(request, None, cancel)).collect();
        let run = |(index, handle): (usize, Result<RequestHandle>)| {
            handle.and_then(|handle| handle.run(&mut |text| on_text(index, text)))
        };
        Ok(handles.into_iter().enumerate().map(run).collect())
    }

    fn kv_policy(&self) -> KvPolicy {
        *Engine::kv_policy(self)
    }

    fn tenant(&self, path: &str) -> Result<Tenant, ruvllm_memory::Error> {
        self.kv_store().pool().tenant(path)
    }

    fn perplexity(
        &self,
        tokens: &[TokenId],
        context: usize,
        limit: Option<usize>,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Perplexity> {
        Engine::perplexity(self, tokens, context, limit, progress)
    }

    fn logits(&self, tokens: &[TokenId], positions: &[usize]) -> Result<Vec<f32>> {
        Engine::logits(self, tokens, positions)
    }

    fn bench(
        &self,
        options: &BenchOptions,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Vec<BenchResult>> {
        Engine::bench(self, options, progress)
    }

    fn bench_parallel(
        &self,
        options: &ParallelOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Vec<ParallelResult>> {
        Engine::bench_parallel(self, options, progress)
    }
}
