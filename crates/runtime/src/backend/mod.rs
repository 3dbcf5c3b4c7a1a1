//! What a model computes with: the seam between the generation loop and what makes logits of tokens.
//!
//! ```text
//! GenerateRequest ──► generate: prompt, sampler, stop strings, streaming, cancellation
//!                        │ TextCodec: text ◄─► tokens
//!                        ▼
//!          BackendSession: tokens ──► logits
//!            │                  │
//!          Engine          CandleBackend (feature `candle`), or your own
//! ```

#[cfg(feature = "candle")]
pub(crate) mod candle;

use std::ops::ControlFlow;

use ruvllm_kernels::Kernels;
use ruvllm_models::ModelConfig;
use ruvllm_text::TokenId;

use crate::cancel::CancelToken;
use crate::codec::TextCodec;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::generate;
use crate::request::{Completion, GenerateRequest};
use crate::session::Session;

/// A loaded model that computes logits, whatever computes them.
///
/// The [`Engine`] is one. Another needs to say what the model is and to start sequences ([`BackendSession`]); it gets the
/// engine's generation loop: sampling, stop strings, streaming, cancellation.
///
/// # Example
/// ```no_run
/// use std::ops::ControlFlow;
///
/// use ruvllm::{CancelToken, GenerateRequest, InferenceBackend};
///
/// /// Continues a text with whatever computes.
/// fn answer(backend: &dyn InferenceBackend, text: &str) -> Result<String, ruvllm::Error> {
///     let request = GenerateRequest { max_tokens: Some(64), ..GenerateRequest::new(text) };
///     let completion =
///         backend.generate(&request, &CancelToken::new(), &mut |_| ControlFlow::Continue(()))?;
///     Ok(completion.text)
/// }
/// ```
pub trait InferenceBackend: Send + Sync {
    /// What people call it: `native`, `candle`.
    fn name(&self) -> &str;

    /// Shape and names of the model.
    fn config(&self) -> &ModelConfig;

    /// Its tokenizer and chat template.
    fn codec(&self) -> &TextCodec;

    /// Tokens that a sequence can have, prompt and output together.
    fn context_length(&self) -> usize;

    /// An empty sequence that is to have at most `capacity` tokens, of at most [`context_length`](Self::context_length).
    ///
    /// # Errors
    /// A capacity beyond the context, and no memory.
    fn session(&self, capacity: usize) -> Result<Box<dyn BackendSession + '_>>;

    /// Prompt tokens per pass; also how often a prefill can be cancelled.
    fn prefill_chunk(&self) -> usize {
        512
    }

    /// Generates text for one request: see [`Engine::generate`], which this is for an engine.
    ///
    /// # Errors
    /// Those of [`Engine::generate`], [`Error::AdapterBackend`] for a request with an adapter, and what the backend's sessions
    /// report.
    fn generate(
        &self,
        request: &GenerateRequest,
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        if request.adapter.is_some() {
            return Err(Error::AdapterBackend { backend: self.name().to_owned() });
        }
        let kernels = Kernels::detect().map_err(Error::Compute)?;
        let prepared = generate::prepare(self, kernels, request)?;
        let mut session = self.session(prepared.capacity())?;
        generate::run(prepared, &mut *session, &[], cancel, on_text).map(|(completion, _)| completion)
    }
}

/// One sequence: tokens go in, logits come out. What was put in stays until it is cut off.
///
/// Three methods make one; the others are made of them.
pub trait BackendSession: Send {
    /// Tokens in the sequence.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `tokens`, at least one, and returns the logits after the last of them, `[vocab_size]`.
    ///
    /// # Errors
    /// No tokens, ids that the model does not know, more tokens than fit, and whatever the computation reports. The sequence
    /// may be shorter then, down to empty: [`len`](Self::len) says it.
    fn forward(&mut self, tokens: &[TokenId]) -> Result<&[f32]>;

    /// Drops the tokens from position `len` on, and as many before it as the backend cannot keep. How many are left.
    ///
    /// # Errors
    /// Whatever the backend reports.
    fn truncate(&mut self, len: usize) -> Result<usize>;

    /// Keeps what the sequence, whose tokens are `present`, has of `prompt`: how many of its first tokens need not be
    /// computed. At least the last one does.
    ///
    /// # Errors
    /// Whatever the backend reports.
    fn begin(&mut self, present: &[TokenId], prompt: &[TokenId]) -> Result<usize> {
        self.truncate(alike(present, prompt))
    }

    /// Appends `tokens`, at least one, in passes of at most `chunk`, and returns the logits after the last of them. `go_on` is
    /// asked before each pass; a `Break` gives `None` and leaves the sequence where it is.
    ///
    /// # Errors
    /// Those of [`forward`](Self::forward).
    fn prefill(
        &mut self,
        tokens: &[TokenId],
        chunk: usize,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<&[f32]>> {
        let mut rest = tokens;
        loop {
            if go_on().is_break() {
                return Ok(None);
            }
            let (pass, later) = rest.split_at(rest.len().min(chunk.max(1)));
            if later.is_empty() {
                return self.forward(pass).map(Some);
            }
            self.forward(pass)?;
            rest = later;
        }
    }
}

/// How much of `prompt` is at the beginning of `present`, its last token left out.
pub(crate) fn alike(present: &[TokenId], prompt: &[TokenId]) -> usize {
    let comparable = &prompt[..prompt.len().saturating_sub(1)];
    present.iter().zip(comparable).take_while(|(a, b)| a == b).count()
}

/// Sequences of the engine count for no tenant but the engine itself and begin with the prefixes that it keeps;
/// [`generate`](InferenceBackend::generate) is the engine's own, with tenants.
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

    fn generate(
        &self,
        request: &GenerateRequest,
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        Engine::generate(self, request, cancel, on_text)
    }
}
