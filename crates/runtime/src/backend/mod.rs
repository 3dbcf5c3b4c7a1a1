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

#[cfg(feature = "candle")]
pub(crate) mod candle;
pub(crate) mod conversation;
#[cfg(feature = "gpu")]
pub(crate) mod gpu;
mod measure;
mod requests;
pub(crate) mod sequence;

use std::ops::ControlFlow;

use ruvllm_kernels::attention::KvFormat;
use ruvllm_kv_cache::KvPolicy;
use ruvllm_models::ModelConfig;
use ruvllm_text::TokenId;

use self::requests::Requests;
use self::sequence::BackendSession;
use crate::benchmark::{BenchOptions, BenchResult};
use crate::cancel::CancelToken;
use crate::codec::TextCodec;
use crate::engine::Engine;
use crate::error::Result;
use crate::evaluate::Perplexity;
use crate::request::{Completion, GenerateRequest};
use crate::session::Session;

/// A loaded model that computes logits, whatever computes them.
///
/// The [`Engine`] is one. Another needs to say what the model is and to start sequences
/// ([`BackendSession`]); it gets the engine's generation loop: sampling, stop strings, streaming,
/// cancellation.
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

    /// Shape and names of the model.
    fn config(&self) -> &ModelConfig;

    /// Its tokenizer and chat template.
    fn codec(&self) -> &TextCodec;

    /// Tokens that a sequence can have, prompt and output together.
    fn context_length(&self) -> usize;

    /// An empty sequence that is to have at most `capacity` tokens, of at most
    /// [`context_length`](Self::context_length).
    ///
    /// # Errors
    /// A capacity beyond the context, and no memory.
    fn session(&self, capacity: usize) -> Result<Box<dyn BackendSession + '_>>;

    /// Prompt tokens per pass; also how often a prefill can be cancelled.
    fn prefill_chunk(&self) -> usize {
        512
    }

    /// Generates text for one request: see [`Engine::generate_with`], which this is for an
    /// engine.
    ///
    /// # Errors
    /// As [`Engine::generate_with`], [`Error::AdapterBackend`] for a request with an adapter, and
    /// what the backend's sessions report.
    fn generate_with(
        &self,
        request: &GenerateRequest,
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        Requests::new(self).run(request, None, cancel, on_text)
    }

    /// Storage policy of keys and values. Default: F32.
    fn kv_policy(&self) -> KvPolicy {
        KvPolicy::from(KvFormat::F32)
    }

    /// Perplexity of a text given as token ids: see [`Engine::perplexity`]. Unless the backend has
    /// its own way, tokens are computed one at a time, as in decode.
    ///
    /// # Errors
    /// As [`Engine::perplexity`], and what the backend's sessions report.
    fn perplexity(
        &self,
        tokens: &[TokenId],
        context: usize,
        limit: Option<usize>,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Perplexity> {
        measure::perplexity(self, tokens, (context, limit), progress)
    }

    /// Logits at `positions` of a sequence of tokens: see [`Engine::logits`]. Unless the backend
    /// has its own way, tokens up to a position are computed as a prompt, one alone as in decode.
    ///
    /// # Errors
    /// As [`Engine::logits`], and what the backend's sessions report.
    fn logits(&self, tokens: &[TokenId], positions: &[usize]) -> Result<Vec<f32>> {
        measure::logits(self, tokens, positions)
    }

    /// Measures the speed of the model: see [`Engine::bench`]. Unless the backend has its own way,
    /// one uncounted run of each test goes first, the whole depth is computed, the numbers of
    /// threads have no effect, and results have one thread and no CPU time.
    ///
    /// # Errors
    /// As [`Engine::bench`], and what the backend's sessions report.
    fn bench(
        &self,
        options: &BenchOptions,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Vec<BenchResult>> {
        measure::bench(self, options, progress)
    }
}

/// Sequences of the engine are charged to the root tenant; [`generate_with`](InferenceBackend::generate_with) is the engine's own, with
/// tenants.
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
