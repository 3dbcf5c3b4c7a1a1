//! Requests to an engine: one that waits for its text, and one that is given back as a handle.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::SystemTime;

use crate::cancel::CancelToken;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::options::check_pressure;
use crate::request::{Completion, GenerateRequest};
use crate::sequence::SequenceSpec;
use crate::session_table::SessionId;
use crate::step::{Facts, Inbox, Job, Outlet, Prepared, RequestHandle};

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
    /// [`Error`]`::{Refused, DeadlineExceeded, Adapter, Cache, Forward, NoCandidate, Decode,
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
    /// [`Error`]`::{Adapter, AdapterScale, PromptTooLong, IdLength, KvPolicyNotOpened, Session,
    /// ShuttingDown, SpillWithoutFolder, StepThread}`, those of
    /// [`encode_prompt`](Self::encode_prompt), [`Sampler::new`](crate::Sampler::new) and
    /// [`StopMatcher::new`](crate::StopMatcher::new). Those of the run come from the handle.
    /// Errors of a request with an id are in [`Error::InRequest`].
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
        let mut handles = self.submit_choices(request, 1, session, cancel)?;
        handles.pop().ok_or(Error::EngineStopped)
    }

    /// Submits a request `n` times, 1 to 128, as choices of one prompt: it is computed once, and
    /// the sequences share its keys and values. Choice `i` samples with the seed of the request
    /// plus `i` and gives what that request gives alone; choice 0 is the request itself.
    ///
    /// Each handle is independent: when one is dropped, the others go on.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for another `n`; otherwise as [`submit`](Self::submit).
    ///
    /// # Examples
    /// ```no_run
    /// # let engine = ruvllm::Engine::open("model.gguf")?;
    /// for (index, choice) in engine.submit_many("Once upon a time", 3)?.into_iter().enumerate() {
    ///     println!("{index}: {}", choice.wait()?.text);
    /// }
    /// # Ok::<(), ruvllm::Error>(())
    /// ```
    pub fn submit_many(&self, request: impl Into<GenerateRequest>, n: usize) -> Result<Vec<RequestHandle>> {
        self.submit_many_with(request, n, &CancelToken::new())
    }

    /// As [`submit_many`](Self::submit_many); `cancel` ends all choices.
    ///
    /// # Errors
    /// As [`submit_many`](Self::submit_many).
    pub fn submit_many_with(
        &self,
        request: impl Into<GenerateRequest>,
        n: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<RequestHandle>> {
        self.submit_choices(&request.into(), n, None, cancel)
    }

    /// Generates `best_of` choices as [`submit_many`](Self::submit_many) does and returns the `n`
    /// with the highest [mean log-probability](Completion::mean_logprob) of their tokens, the
    /// highest first, equal ones in the order of their seeds. A choice without tokens comes last.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for an `n` of 0 or a `best_of` below `n` or above 128; otherwise as
    /// [`generate_with`](Self::generate_with), where the first choice that fails decides.
    pub fn generate_best(
        &self,
        request: impl Into<GenerateRequest>,
        n: usize,
        best_of: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<Completion>> {
        check_choices(n)?;
        if !(n..=MOST_CHOICES).contains(&best_of) {
            let expected = "at least as many as are returned, and at most 128";
            return Err(Error::InvalidOption { name: "best_of", value: best_of, expected });
        }
        let mut request = request.into();
        request.logprobs.get_or_insert(0);
        let handles = self.submit_choices(&request, best_of, None, cancel)?;
        let mut choices =
            handles.into_iter().map(RequestHandle::wait).collect::<Result<Vec<Completion>>>()?;
        let rank = |choice: &Completion| choice.mean_logprob().unwrap_or(f64::NEG_INFINITY);
        choices.sort_by(|a, b| rank(b).total_cmp(&rank(a)));
        choices.truncate(n);
        Ok(choices)
    }

    /// Submits choices of one prompt; they go on with the sequence of the session, if it has one.
    fn submit_choices(
        &self,
        request: &GenerateRequest,
        n: usize,
        session: Option<SessionId>,
        cancel: &CancelToken,
    ) -> Result<Vec<RequestHandle>> {
        let submitted = self.submit_unnamed(request, n, session, cancel);
        // An id that is refused is not repeated.
        submitted.map_err(|error| match error {
            Error::IdLength { .. } => error,
            error => error.in_request(request.id.as_deref()),
        })
    }

    /// As [`submit_choices`](Self::submit_choices); errors are without the id.
    fn submit_unnamed(
        &self,
        request: &GenerateRequest,
        n: usize,
        session: Option<SessionId>,
        cancel: &CancelToken,
    ) -> Result<Vec<RequestHandle>> {
        check_choices(n)?;
        let core = self.core();
        let taken = (0..n).map(|_| core.intake.take()).collect::<Result<Vec<_>>>()?;
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
        let choices = Prepared::choices(&facts, request, n, cancel)?;
        let spec = SequenceSpec {
            tenant: request.tenant.clone(),
            adapters: Arc::default(),
            kv,
            pressure,
            capacity: if session.is_some() || request.session.is_some() {
                core.context
            } else {
                choices[0].capacity()
            },
            caches_prefix: request.cache_prefix,
            min_cache_tokens: request.min_cache_tokens,
            shared_tokens: request.shared_tokens,
        };
        let adapters = self.resolve_adapters(request)?;
        let steps = self.steps()?;
        // A conversation keeps its sequence itself.
        let mut record = if session.is_some() { None } else { self.session_of(request)? };
        if let Some(record) = &record {
            record.begin(&self.last_message(&request.prompt), SystemTime::now());
        }
        let (mut jobs, mut handles) = (Vec::with_capacity(n), Vec::with_capacity(n));
        for (prepared, taken) in choices.into_iter().zip(taken) {
            let inbox = Arc::new(Inbox::default());
            // The end of this request is not that of others with the caller's token.
            let cancel = cancel.child();
            let (record, parser) = (record.take(), prepared.parser());
            let prompt_tokens = prepared.prompt_tokens();
            jobs.push(Job {
                prepared,
                spec: spec.clone(),
                adapters: adapters.clone(),
                session: record.as_ref().map(|record| record.number).or(session),
                record,
                priority: request.priority,
                deadline: request.deadline,
                cancel: cancel.clone(),
                outlet: Outlet::new(Arc::clone(&inbox), request.id.as_deref()).with(taken),
            });
            handles.push(RequestHandle::new(inbox, cancel, parser, prompt_tokens));
        }
        steps.submit(jobs);
        Ok(handles)
    }
}

/// Most choices of a request.
const MOST_CHOICES: usize = 128;

/// # Errors
/// [`Error::InvalidOption`].
pub(crate) fn check_choices(n: usize) -> Result<()> {
    match n {
        1..=MOST_CHOICES => Ok(()),
        value => Err(Error::InvalidOption { name: "n", value, expected: "1 to 128" }),
    }
}
