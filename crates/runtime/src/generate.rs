//! Requests to an engine: one that waits for its text, and one that is given back as a handle.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::cancel::CancelToken;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::options::check_pressure;
use crate::request::{Completion, GenerateRequest};
use crate::sequence::SequenceSpec;
use crate::step::{Facts, Inbox, Job, Outlet, Prepared, RequestHandle, SessionId};

impl Engine {
    /// Generates text for a prompt or a [`GenerateRequest`] and returns the result at the end.
    ///
    /// A reference to a request is accepted as well and cloned.
    ///
    /// # Errors
    /// As [`generate_with`](Self::generate_with).
    ///
    /// # Examples
    /// ```no_run
    /// use ruvllm::{Engine, GenerateRequest};
    ///
    /// let engine = Engine::open("model.gguf")?;
    /// println!("{}", engine.generate("Once upon a time")?.text);
    /// let request = GenerateRequest::new("The capital of France is").with_max_tokens(8);
    /// println!("{}", engine.generate(request)?.text);
    /// # Ok::<(), ruvllm::Error>(())
    /// ```
    pub fn generate(&self, request: impl Into<GenerateRequest>) -> Result<Completion> {
        self.submit(request)?.wait()
    }

    /// Generates text for one request, with a callback and cancellation.
    ///
    /// `on_text` gets each piece of text as soon as it is certain, in the caller's thread: whole
    /// characters that belong to no stop sequence. The pieces joined are the completion's text.
    /// Returning `Break` ends the generation, as `cancel` does from outside; what was generated
    /// until then is still returned, with [`FinishReason::Cancelled`](crate::FinishReason).
    ///
    /// The generation ends with [`FinishReason::Length`](crate::FinishReason) when the sequence
    /// fills the context. The last token of such a sequence is sampled but no longer computed, so a
    /// prompt of exactly the context's length gives one token.
    ///
    /// # Errors
    /// Errors of [`submit`](Self::submit) before anything is computed, then
    /// [`Error`]`::{Refused, DeadlineExceeded, Cache, Forward, NoCandidate, Decode,
    /// EngineStopped}` from the run.
    pub fn generate_with(
        &self,
        request: &GenerateRequest,
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        self.submit_in(request, None, cancel)?.run(on_text)
    }

    /// Submits a prompt or a whole [`GenerateRequest`] and returns a handle of it: an iterator over
    /// the pieces of its text.
    ///
    /// The prompt is encoded here, in the caller's thread. The request then runs in the engine's
    /// thread, in the same steps as all others; its text is the same as if it ran alone (ADR-0003).
    /// Time to first token counts from here.
    ///
    /// # Errors
    /// [`Error`]`::{PromptTooLong, IdLength, KvPolicyNotOpened, SpillWithoutFolder}`, and those of
    /// [`combine_adapters`](Self::combine_adapters),
    /// [`encode_prompt`](Self::encode_prompt), [`Sampler::new`](crate::Sampler::new) and
    /// [`StopMatcher::new`](crate::StopMatcher::new); [`Error::StepThread`]. Those of the run come
    /// from the handle. Errors of a request with an id are in [`Error::InRequest`].
    ///
    /// # Examples
    /// ```no_run
    /// # let engine = ruvllm::Engine::open("model.gguf")?;
    /// let mut story = engine.submit("Once upon a time")?;
    /// let poem = engine.submit("Roses are red")?;
    /// for chunk in &mut story {
    ///     print!("{}", chunk?.text);
    /// }
    /// let completion = story.completion().expect("the iterator has ended without an error");
    /// println!("\n[{}, {} tokens]", completion.finish_reason, completion.tokens.len());
    /// println!("{}", poem.wait()?.text);
    /// # Ok::<(), ruvllm::Error>(())
    /// ```
    pub fn submit(&self, request: impl Into<GenerateRequest>) -> Result<RequestHandle> {
        self.submit_in(&request.into(), None, &CancelToken::new())
    }

    /// Submits a request that goes on with the sequence of its session, if it has one.
    pub(crate) fn submit_in(
        &self,
        request: &GenerateRequest,
        session: Option<SessionId>,
        cancel: &CancelToken,
    ) -> Result<RequestHandle> {
        let submitted = self.submit_unnamed(request, session, cancel);
        // An id that is refused is not repeated.
        submitted.map_err(|error| match error {
            Error::IdLength { .. } => error,
            error => error.in_request(request.id.as_deref()),
        })
    }

    /// As [`submit_in`](Self::submit_in); errors are without the id.
    fn submit_unnamed(
        &self,
        request: &GenerateRequest,
        session: Option<SessionId>,
        cancel: &CancelToken,
    ) -> Result<RequestHandle> {
        let core = self.core();
        request.check()?;
        let kv = core.store_of(request.kv.as_ref())?;
        let pressure = request.pressure.unwrap_or(core.pressure);
        check_pressure(pressure, core.prefixes.as_ref().is_some_and(|prefixes| prefixes.has_files()))?;
        let facts = Facts {
            codec: &core.codec,
            kernels: self.kernels(),
            context: core.context,
            model_context: self.config().context_length,
        };
        let prepared = Prepared::new(facts, request, cancel)?;
        let spec = SequenceSpec {
            tenant: request.tenant.clone(),
            adapter: match &*request.adapters {
                [] => self.adapter().cloned(),
                adapters => Some(self.combine_adapters(adapters)?),
            },
            kv,
            pressure,
            capacity: if session.is_some() { core.context } else { prepared.capacity() },
            caches_prefix: request.cache_prefix,
            min_cache_tokens: request.min_cache_tokens,
            shared_tokens: request.shared_tokens,
        };
        let inbox = Arc::new(Inbox::default());
        // The end of this request is not that of others with the caller's token.
        let cancel = cancel.child();
        self.steps()?.submit(Job {
            prepared,
            spec,
            session,
            priority: request.priority,
            deadline: request.deadline,
            cancel: cancel.clone(),
            outlet: Outlet::new(Arc::clone(&inbox), request.id.as_deref()),
        });
        Ok(RequestHandle::new(inbox, cancel.clone()))
    }
}
