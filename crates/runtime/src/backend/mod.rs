//! Inference backends: the trait between the generation loop and the code that computes logits from
//! tokens.
//!
//! ```text
//! GenerateRequest ──► generate: prompt, sampler, stop strings, streaming, cancellation
//!                        │ TextCodec: text ◄─► tokens
//!                        ▼
//!          BackendSession: tokens ──► logits
//!            │                  │
//!          Engine          GpuBackend (feature `gpu`), CandleBackend (feature `candle`), or your own
//! ```

#[cfg(feature = "candle")]
pub(crate) mod candle;
pub(crate) mod conversation;
#[cfg(feature = "gpu")]
pub(crate) mod gpu;
mod measure;
pub(crate) mod sequence;

use std::ops::ControlFlow;

use ruvllm_kernels::Kernels;
use ruvllm_kernels::attention::KvFormat;
use ruvllm_kv_cache::KvPolicy;
use ruvllm_models::ModelConfig;
use ruvllm_text::TokenId;

use self::sequence::BackendSession;
use crate::benchmark::{BenchOptions, BenchResult};
use crate::cancel::CancelToken;
use crate::codec::TextCodec;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::evaluate::Perplexity;
use crate::generate::{Facts, Generation, Prepared};
use crate::request::{Completion, GenerateRequest};
use crate::session::Session;

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
    /// Name of the backend in messages: `native`, `candle`.
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

    /// Prompt tokens per pass; a prefill can be cancelled between passes.
    fn prefill_chunk(&self) -> usize {
        512
    }

    /// Generates text for one request: see [`Engine::generate_with`].
    ///
    /// # Errors
    /// As [`Engine::generate_with`], [`Error::AdapterBackend`] for a request with an adapter, and
    /// errors of the backend's sessions.
    fn generate_with(
        &self,
        request: &GenerateRequest,
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        let prepared = prepare(self, request, cancel)?;
        let mut session = self.session(prepared.capacity())?;
        let mut generation = Generation::new(prepared, Vec::new());
        let reason = generation.run(&mut *session, cancel, on_text)?;
        Ok(generation.complete(reason, &*session).0)
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
}

/// Checks a request to a backend without adapters and encodes its prompt.
fn prepare<'r, B: InferenceBackend + ?Sized>(
    backend: &'r B,
    request: &'r GenerateRequest,
    cancel: &CancelToken,
) -> Result<Prepared<'r>> {
    if request.adapter.is_some() {
        return Err(Error::AdapterBackend { backend: backend.name().to_owned() });
    }
    let facts = Facts {
        codec: backend.codec(),
        kernels: Kernels::detect().map_err(Error::Compute)?,
        context: backend.context_length(),
        model_context: backend.config().context_length,
        prefill_chunk: backend.prefill_chunk(),
    };
    Prepared::new(facts, request, cancel)
}

/// Sequences are charged to the root tenant and use its prefix cache;
/// [`generate_with`](InferenceBackend::generate_with) is [`Engine::generate_with`], with tenants
/// and adapters.
impl InferenceBackend for Engine {
    fn name(&self) -> &str {
        "native"
    }

    fn config(&self) -> &ModelConfig {
        Engine::config(self)
    }

    fn codec(&self) -> &TextCodec {
        &self.codec
    }

    fn context_length(&self) -> usize {
        Engine::context_length(self)
    }

    fn session(&self, capacity: usize) -> Result<Box<dyn BackendSession + '_>> {
        Ok(Box::new(Session::new(self, capacity)?))
    }

    fn prefill_chunk(&self) -> usize {
        self.prefill_chunk
    }

    fn generate_with(
        &self,
        request: &GenerateRequest,
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        Engine::generate_with(self, request, cancel, on_text)
    }

    fn kv_policy(&self) -> KvPolicy {
        *Engine::kv_policy(self)
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
}
