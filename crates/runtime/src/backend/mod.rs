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
#[cfg(feature = "gpu")]
pub(crate) mod gpu;
pub(crate) mod sequence;

use std::ops::ControlFlow;

use ruvllm_kernels::Kernels;
use ruvllm_models::ModelConfig;

use self::sequence::BackendSession;
use crate::cancel::CancelToken;
use crate::codec::TextCodec;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::generate::{Facts, Generation, Prepared};
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
        if request.adapter.is_some() {
            return Err(Error::AdapterBackend { backend: self.name().to_owned() });
        }
        let facts = Facts {
            codec: self.codec(),
            kernels: Kernels::detect().map_err(Error::Compute)?,
            context: self.context_length(),
            model_context: self.config().context_length,
            prefill_chunk: self.prefill_chunk(),
        };
        let prepared = Prepared::new(facts, request, cancel)?;
        let mut session = self.session(prepared.capacity())?;
        let mut generation = Generation::new(prepared, Vec::new());
        let reason = generation.run(&mut *session, cancel, on_text)?;
        Ok(generation.complete(reason, &*session).0)
    }
}

/// Sequences of the engine count for no tenant but the engine itself and begin with the prefixes
/// that it keeps; [`generate_with`](InferenceBackend::generate_with) is the engine's own, with
/// tenants.
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
}
