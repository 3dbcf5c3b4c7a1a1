//! Requests to a backend, in the caller's thread.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use ruvllm_kernels::{Kernels, ThreadPool};
use ruvllm_memory::PressurePolicy;
use ruvllm_scheduler::Config;

use super::InferenceBackend;
use crate::adapter_refusal::AdapterRefusal;
use crate::cancel::CancelToken;
use crate::error::{Error, Result};
use crate::generate::check_choices;
use crate::request::{Completion, GenerateRequest};
use crate::sequence::SequenceSpec;
use crate::session_table::SessionId;
use crate::speculation::{BackendDraft, BackendHeadDraft, CAPACITY, Speculator};
use crate::step::{
    AdapterLoader, Facts, Inbox, Job, Loaded, Outlet, Prepared, RequestHandle, SessionExecutor, StepCounters,
    StepLoop,
};

/// Longest wait for an adapter before deadlines and cancelled requests are looked at.
const GLANCE: Duration = Duration::from_millis(10);

/// The step loop over a backend's sequences.
pub(super) struct Requests<'b, B: InferenceBackend + ?Sized> {
    backend: &'b B,
    counters: Arc<StepCounters>,
    steps: StepLoop<'b, SessionExecutor<'b>>,
    /// Factors of registered adapters for requests that wait for them.
    loads: Receiver<Loaded>,
}

impl<'b, B: InferenceBackend + ?Sized> Requests<'b, B> {
    /// Requests one at a time.
    pub(super) fn new(backend: &'b B) -> Self {
        let mut config = Config::default();
        // Prompts are cut into passes by the backend's sequence.
        (config.step_tokens, config.max_running) = (usize::MAX, 1);
        Self::with(backend, None, config, Arc::default())
    }

    /// Requests that run at once, sampled on the threads of `pool` and counted in `counters`.
    pub(super) fn many(backend: &'b B, pool: &'b ThreadPool, counters: Arc<StepCounters>) -> Self {
        let mut config = Config::default();
        config.step_tokens = config.step_tokens.max(backend.prefill_chunk());
        config.prefix_ordering = backend.shares_prefixes();
        config.block_tokens = backend.kv_policy().block_tokens();
        Self::with(backend, Some(pool), config, counters)
    }

    fn with(
        backend: &'b B,
        pool: Option<&'b ThreadPool>,
        config: Config,
        counters: Arc<StepCounters>,
    ) -> Self {
        let executor = SessionExecutor::new(backend.batch(), backend.prefill_chunk())
            .with_model_dim(backend.config().model_dim);
        let mut steps = StepLoop::new(executor, backend.codec(), pool, Arc::clone(&counters), config)
            .with_drafts(Speculator::of_backend(backend.speculation(), draft(backend), head(backend)));
        let (send, loads) = mpsc::channel();
        if let Some(adapters) = backend.backend_adapters() {
            steps = steps.with_adapters(AdapterLoader {
                residency: Arc::clone(adapters.registry().residency()),
                // Without the loop nobody waits.
                send: Arc::new(move |loaded| drop(send.send(loaded))),
            });
        }
        Self { backend, counters, steps, loads }
    }

    /// Runs a request to its end, or until `on_text` breaks.
    ///
    /// # Errors
    /// Errors of [`InferenceBackend::generate_with`].
    pub(super) fn run(
        &mut self,
        request: &GenerateRequest,
        session: Option<SessionId>,
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        let prepared = prepare(self.backend, request, cancel)?;
        let (job, mut handle) = job(self.backend, request, prepared, session, cancel)?;
        self.submit(job);
        while !self.steps.is_idle() {
            self.iterate();
            if handle.drain(on_text)?.is_break() {
                handle.cancel_token().cancel();
                while !self.steps.is_idle() {
                    self.iterate();
                }
                return handle.finish();
            }
        }
        handle.run(on_text)
    }

    /// Submits a request to the step loop.
    pub(super) fn submit(&mut self, job: Job) {
        self.steps.submit(job);
    }

    /// Requests that had not begun after the last step.
    pub(super) fn waiting(&self) -> u64 {
        self.counters.read().waiting
    }

    /// True without requests.
    pub(super) fn is_idle(&self) -> bool {
        self.steps.is_idle()
    }

    /// Computes a step.
    pub(super) fn iterate(&mut self) {
        if self.steps.is_waiting()
            && let Ok(loaded) = self.loads.recv_timeout(GLANCE)
        {
            self.steps.loaded(loaded);
        }
        while let Ok(loaded) = self.loads.try_recv() {
            self.steps.loaded(loaded);
        }
        self.steps.iterate();
    }

    /// Releases the sequence that a session keeps.
    pub(super) fn end_session(&mut self, session: SessionId) {
        self.steps.end_session(session);
    }
}

/// Sequences of the backend's draft model, if it has one.
fn draft<B: InferenceBackend + ?Sized>(backend: &B) -> Option<BackendDraft<'_>> {
    let draft = backend.draft_model()?;
    // Without kernels requests are refused.
    let kernels = Kernels::detect().ok()?;
    let ids = [draft.config().vocab_size, backend.codec().sampled_ids()];
    Some(BackendDraft::new(draft.batch(), kernels, draft.context_length().min(CAPACITY), ids))
}

/// Sequences of the prediction head of the backend's model, unless a draft model drafts.
fn head<B: InferenceBackend + ?Sized>(backend: &B) -> Option<BackendHeadDraft<'_>> {
    if backend.draft_model().is_some() {
        return None;
    }
    let head = backend.prediction_head()?;
    let (config, kernels) = (backend.config(), Kernels::detect().ok()?);
    let sizes = [config.model_dim, config.vocab_size, backend.codec().sampled_ids()];
    Some(BackendHeadDraft::new(head, kernels, sizes))
}

/// Checks a request and encodes its prompt.
///
/// # Errors
/// A request that is invalid or that the backend does not support.
pub(super) fn prepare<B: InferenceBackend + ?Sized>(
    backend: &B,
    request: &GenerateRequest,
    cancel: &CancelToken,
) -> Result<Prepared> {
    check(backend, request)?;
    Prepared::new(&facts(backend)?, request, cancel)
}

/// As [`prepare`], for `n` choices: the seed of each is one above that of the one before.
///
/// # Errors
/// As [`prepare`], and [`Error::InvalidOption`] for a number of choices that no engine takes.
pub(super) fn prepare_choices<B: InferenceBackend + ?Sized>(
    backend: &B,
    request: &GenerateRequest,
    n: usize,
    cancel: &CancelToken,
) -> Result<Vec<Prepared>> {
    check_choices(n)?;
    check(backend, request)?;
    Prepared::choices(&facts(backend)?, request, n, cancel)
}

/// Checks that the backend supports a request.
fn check<B: InferenceBackend + ?Sized>(backend: &B, request: &GenerateRequest) -> Result<()> {
    request.check()?;
    if request.session.is_some() {
        return Err(Error::SessionBackend { backend: backend.name().to_owned() });
    }
    if !request.adapters.is_empty() && backend.backend_adapters().is_none() {
        let backend = backend.name().to_owned();
        return Err(Error::AdapterBackend(AdapterRefusal::Unsupported { backend }));
    }
    let own = backend.kv_policy();
    match request.kv.filter(|policy| *policy != own) {
        Some(policy) => Err(Error::KvPolicyBackend {
            backend: backend.name().to_owned(),
            own: own.to_string(),
            policy: policy.to_string(),
        }),
        None => Ok(()),
    }
}

fn facts<B: InferenceBackend + ?Sized>(backend: &B) -> Result<Facts<'_>> {
    Ok(Facts {
        codec: backend.codec(),
        kernels: Kernels::detect().map_err(Error::Compute)?,
        context: backend.context_length(),
        model_context: backend.config().context_length,
    })
}

/// A prepared request for the step loop, and its handle.
///
/// # Errors
/// Adapters that the backend does not compute with, and names that the tenant does not see.
pub(super) fn job<B: InferenceBackend + ?Sized>(
    backend: &B,
    request: &GenerateRequest,
    prepared: Prepared,
    session: Option<SessionId>,
    cancel: &CancelToken,
) -> Result<(Job, RequestHandle)> {
    let adapters = backend.backend_adapters().map(|adapters| adapters.resolve(request)).transpose()?;
    let spec = SequenceSpec {
        tenant: request.tenant.clone(),
        adapters: Arc::default(),
        kv: None,
        pressure: PressurePolicy::default(),
        capacity: if session.is_some() { backend.context_length() } else { prepared.capacity() },
        caches_prefix: request.cache_prefix && backend.shares_prefixes(),
        min_cache_tokens: request.min_cache_tokens,
        shared_tokens: request.shared_tokens,
    };
    let inbox = Arc::new(Inbox::default());
    let (priority, deadline) = (request.priority, request.deadline);
    let outlet = Outlet::new(Arc::clone(&inbox), request.id.as_deref());
    let cancel = cancel.child();
    let handle = RequestHandle::new(inbox, cancel.clone(), prepared.parser(), prepared.prompt_tokens());
    let job = Job {
        prepared,
        spec,
        adapters: adapters.unwrap_or_default(),
        session,
        record: None,
        priority,
        deadline,
        cancel,
        outlet,
    };
    Ok((job, handle))
}
