//! Requests to a backend, one at a time, in the caller's thread.

use std::ops::ControlFlow;
use std::sync::Arc;

use ruvllm_kernels::Kernels;
use ruvllm_memory::{PressurePolicy, Tenant};
use ruvllm_scheduler::Config;

use super::InferenceBackend;
use crate::cancel::CancelToken;
use crate::error::{Error, Result};
use crate::request::{Completion, GenerateRequest};
use crate::sequence::SequenceSpec;
use crate::session_table::SessionId;
use crate::step::{
    Facts, Inbox, Job, Outlet, Prepared, RequestAdapters, RequestHandle, SessionExecutor, StepLoop,
};

/// The step loop over a backend's sequences.
pub(super) struct Requests<'b, B: InferenceBackend + ?Sized> {
    backend: &'b B,
    steps: StepLoop<'b, SessionExecutor<'b>>,
}

impl<'b, B: InferenceBackend + ?Sized> Requests<'b, B> {
    pub(super) fn new(backend: &'b B) -> Self {
        let mut config = Config::default();
        // Prompts are cut into passes by the backend's sequence.
        (config.step_tokens, config.max_running) = (usize::MAX, 1);
        let open = Box::new(|capacity| backend.session(capacity));
        let executor = SessionExecutor::new(open, backend.prefill_chunk());
        Self { backend, steps: StepLoop::new(executor, backend.codec(), None, Arc::default(), config) }
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
        let backend = self.backend;
        request.check()?;
        if request.session.is_some() {
            return Err(Error::SessionBackend { backend: backend.name().to_owned() });
        }
        if !request.adapters.is_empty() {
            return Err(Error::AdapterBackend { backend: backend.name().to_owned() });
        }
        let facts = Facts {
            codec: backend.codec(),
            kernels: Kernels::detect().map_err(Error::Compute)?,
            context: backend.context_length(),
            model_context: backend.config().context_length,
        };
        let prepared = Prepared::new(&facts, request, cancel)?;
        let spec = SequenceSpec {
            tenant: Tenant::root(),
            adapters: Arc::default(),
            kv: None,
            pressure: PressurePolicy::default(),
            capacity: if session.is_some() { backend.context_length() } else { prepared.capacity() },
            caches_prefix: false,
            min_cache_tokens: 0,
            shared_tokens: 0,
        };
        let inbox = Arc::new(Inbox::default());
        let (priority, deadline) = (request.priority, request.deadline);
        let outlet = Outlet::new(Arc::clone(&inbox), request.id.as_deref());
        let cancel = cancel.child();
        let mut handle =
            RequestHandle::new(inbox, cancel.clone(), prepared.parser(), prepared.prompt_tokens());
        self.steps.submit(Job {
            prepared,
            spec,
            adapters: RequestAdapters::default(),
            session,
            record: None,
            priority,
            deadline,
            cancel,
            outlet,
        });
        while !self.steps.is_idle() {
            self.steps.iterate();
            if handle.drain(on_text)?.is_break() {
                handle.cancel_token().cancel();
                while !self.steps.is_idle() {
                    self.steps.iterate();
                }
                return handle.finish();
            }
        }
        handle.run(on_text)
    }

    /// Releases the sequence that a session keeps.
    pub(super) fn end_session(&mut self, session: SessionId) {
        self.steps.end_session(session);
    }
}
