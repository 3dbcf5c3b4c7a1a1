//! The loop that computes all requests, step by step, in one thread.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ruvllm_scheduler::{Config, RequestId, Scheduler, TenantId, Work};

use super::executor::{Executor, Outcome, SequenceId, SequenceReport, Step};
use super::request::{Job, Request, Sampled, SessionId};
use super::statistics::StepCounters;
use crate::codec::TextCodec;
use crate::error::{Error, Result};
use crate::request::FinishReason;

/// Tokens whose hash tells the scheduler that prompts may share a prefix.
const PREFIX_TOKENS: usize = 32;

/// All requests of one executor.
pub(crate) struct StepLoop<'c, X> {
    executor: X,
    codec: &'c TextCodec,
    scheduler: Scheduler,
    requests: HashMap<RequestId, Request<'c>>,
    /// Sequences of sessions whose last request has ended, the longest idle first.
    idle: VecDeque<(SessionId, SequenceId)>,
    tenants: HashMap<Box<str>, TenantId>,
    /// Number of the next request, and of the sequence that it begins.
    next: u64,
    /// Start of the scheduler's time.
    epoch: Instant,
    counters: Arc<StepCounters>,
    scratch: Scratch,
}

/// Lists of an iteration, kept for their memory.
#[derive(Default)]
struct Scratch {
    work: Vec<Work>,
    step: Step,
    outcomes: Vec<Outcome>,
    /// Outcome of sampling for each part of the step; `None` if it sampled nothing.
    sampled: Vec<Option<Result<Sampled>>>,
    ended: Vec<RequestId>,
}

impl<'c, X: Executor> StepLoop<'c, X> {
    /// A loop without requests.
    pub(crate) fn new(
        executor: X,
        codec: &'c TextCodec,
        counters: Arc<StepCounters>,
        config: Config,
    ) -> Self {
        Self {
            executor,
            codec,
            scheduler: Scheduler::new(config),
            requests: HashMap::new(),
            idle: VecDeque::new(),
            tenants: HashMap::new(),
            next: 0,
            epoch: Instant::now(),
            counters,
            scratch: Scratch::default(),
        }
    }

    /// True without waiting and running requests.
    pub(crate) fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Takes a request into the queue, or reports why not.
    pub(crate) fn submit(&mut self, job: Job) {
        let (id, sequence) = (RequestId(self.next), SequenceId(self.next));
        self.next += 1;
        let tenant = self.tenant(job.spec.tenant.path());
        let (priority, deadline) = (job.priority, job.deadline);
        let request = Request::new(self.codec, sequence, job);
        if request.max_new_tokens() == 0 {
            return request.finish(FinishReason::Length, &SequenceReport::default());
        }
        let asked = ruvllm_scheduler::Request {
            id,
            tenant,
            priority,
            deadline: deadline.map(|deadline| deadline.saturating_duration_since(self.epoch)),
            prompt_tokens: request.prompt_tokens(),
            max_new_tokens: request.max_new_tokens(),
            prefix: prefix_hash(&request),
        };
        match self.scheduler.submit(self.now(), asked) {
            Ok(()) => {
                self.requests.insert(id, request);
            }
            Err(refusal) => request.fail(Error::Refused(refusal)),
        }
    }

    /// Number of a tenant for the scheduler.
    fn tenant(&mut self, path: &str) -> TenantId {
        if let Some(&id) = self.tenants.get(path) {
            return id;
        }
        let id = TenantId(u32::try_from(self.tenants.len()).unwrap_or(u32::MAX));
        self.tenants.insert(path.into(), id);
        id
    }

    /// Releases the sequence that a session keeps, if it has one.
    pub(crate) fn end_session(&mut self, session: SessionId) {
        if let Some(sequence) = self.take_idle(session) {
            self.executor.release(sequence);
        }
    }

    /// The idle sequence of a session, which is idle no longer.
    fn take_idle(&mut self, session: SessionId) -> Option<SequenceId> {
        let index = self.idle.iter().position(|(kept, _)| *kept == session)?;
        self.idle.remove(index).map(|(_, sequence)| sequence)
    }

    /// One step: ends what was cancelled or is too late, starts requests, computes, samples.
    pub(crate) fn iterate(&mut self) {
        self.end_cancelled();
        while let Some(id) = self.scheduler.expire(self.now()) {
            self.fail(id, Error::DeadlineExceeded);
        }
        self.admit();
        let mut scratch = std::mem::take(&mut self.scratch);
        self.scheduler.plan(self.now(), &mut scratch.work);
        if !scratch.work.is_empty() {
            self.counters.count_step(scratch.work.len());
            let started = Instant::now();
            self.compute(&mut scratch);
            self.scheduler.observe(&scratch.work, started.elapsed());
            self.settle(&mut scratch);
        }
        self.scratch = scratch;
        self.counters.set_load(self.scheduler.waiting(), self.scheduler.running());
    }

    fn end_cancelled(&mut self) {
        let mut ended = std::mem::take(&mut self.scratch.ended);
        let cancelled = self.requests.iter().filter(|(_, request)| request.cancel.is_cancelled());
        ended.extend(cancelled.map(|(&id, _)| id));
        for id in ended.drain(..) {
            self.finish(id, FinishReason::Cancelled);
        }
        self.scratch.ended = ended;
    }

    /// Starts waiting requests as memory allows.
    fn admit(&mut self) {
        while let Some(id) = self.scheduler.admit(self.now(), self.executor.free_tokens()) {
            match self.start(id) {
                Ok(cached) => self.scheduler.started(id, cached),
                Err(error) => self.fail(id, error),
            }
        }
    }

    /// The sequence of a request begins, or that of its session goes on; returns the number of
    /// tokens that it has.
    fn start(&mut self, id: RequestId) -> Result<usize> {
        let session = self.requests.get(&id).and_then(|request| request.session);
        let kept = session.and_then(|session| self.take_idle(session));
        let Some(request) = self.requests.get_mut(&id) else { return Ok(0) };
        let mut cached = None;
        if let Some(sequence) = kept {
            cached = self.executor.resume(sequence, &request.spec, request.tokens())?;
            if cached.is_some() {
                request.sequence = sequence;
            }
        }
        let cached = match cached {
            Some(cached) => cached,
            None => self.executor.begin(request.sequence, &request.spec, request.tokens())?,
        };
        request.start(cached);
        Ok(cached)
    }

    /// Computes the planned work and samples.
    fn compute(&mut self, scratch: &mut Scratch) {
        let Scratch { work, step, outcomes, sampled, .. } = scratch;
        step.clear();
        sampled.clear();
        for &Work { id, tokens, samples } in &*work {
            let request = &self.requests[&id];
            let tokens = &request.tokens()[request.computed..request.computed + tokens];
            let (is_prompt, rows) = (request.is_prefilling(), usize::from(samples));
            step.push(request.sequence, tokens, is_prompt, rows, &request.cancel);
            sampled.push(None);
        }
        let (requests, vocab_size) = (&mut self.requests, self.codec.vocab_size());
        self.executor.step(step, outcomes, &mut |parts, mut logits| {
            for &part in parts {
                let rows;
                (rows, logits) = logits.split_at(step.parts()[part].rows * vocab_size);
                if let Some(request) = requests.get_mut(&work[part].id) {
                    request.computed += work[part].tokens;
                    sampled[part] = Some(request.sample(rows));
                }
            }
        });
    }

    /// Tells the scheduler what was computed; ends and preempts requests.
    fn settle(&mut self, scratch: &mut Scratch) {
        let Scratch { work, step, outcomes, sampled, .. } = scratch;
        let mut short = None;
        let parts = work.iter().zip(step.parts());
        for (((work, part), outcome), sampled) in parts.zip(outcomes.drain(..)).zip(sampled.drain(..)) {
            match outcome {
                Outcome::Failed(error) if is_shortage(&error) => short = Some((work.id, error)),
                Outcome::Failed(error) => self.fail(work.id, error),
                Outcome::Computed { tokens } => {
                    let is_prompt = part.is_prompt;
                    self.counters.count_tokens(tokens, is_prompt);
                    match sampled {
                        None => {
                            if let Some(request) = self.requests.get_mut(&work.id) {
                                request.computed += tokens;
                            }
                            self.scheduler.advanced(work.id, tokens, 0);
                        }
                        Some(Ok(Sampled { end: Some(reason), .. })) => self.finish(work.id, reason),
                        Some(Ok(sampled)) => {
                            self.scheduler.advanced(work.id, tokens, sampled.tokens);
                            if sampled.is_first {
                                self.executor.prefilled(part.sequence);
                            }
                        }
                        Some(Err(error)) => self.fail(work.id, error),
                    }
                }
            }
        }
        if let Some((id, error)) = short {
            self.yield_memory(id, error);
        }
    }

    /// Makes memory free for a request: an idle session ends, or a request waits again. A request
    /// that is alone fails.
    fn yield_memory(&mut self, id: RequestId, error: Error) {
        if let Some((_, sequence)) = self.idle.pop_front() {
            self.executor.park(sequence);
        } else if self.scheduler.running() > 1 {
            self.preempt(self.scheduler.victim(id));
        } else {
            self.fail(id, error);
        }
    }

    /// Stores the sequence of a running request as a prefix; the request waits again.
    fn preempt(&mut self, id: RequestId) {
        if let Some(request) = self.requests.get_mut(&id) {
            self.executor.park(request.sequence);
            request.computed = 0;
        }
        self.scheduler.preempted(id);
        self.counters.count_preemption();
    }

    /// Ends a request with a result.
    fn finish(&mut self, id: RequestId, reason: FinishReason) {
        self.scheduler.finished(id);
        let Some(request) = self.requests.remove(&id) else { return };
        self.counters.count_end();
        let report = self.executor.finish(request.sequence);
        match request.session {
            Some(session) if report.size.tokens > 0 => {
                self.end_session(session);
                self.idle.push_back((session, request.sequence));
            }
            _ => self.executor.release(request.sequence),
        }
        request.finish(reason, &report);
    }

    /// Ends a request with an error; its session begins anew.
    fn fail(&mut self, id: RequestId, error: Error) {
        self.scheduler.finished(id);
        if let Some(request) = self.requests.remove(&id) {
            self.counters.count_end();
            self.executor.release(request.sequence);
            request.fail(error);
        }
    }
}

/// True if another request could make the memory free that is short.
fn is_shortage(error: &Error) -> bool {
    matches!(error, Error::Forward { source, .. } if source.is_memory_short())
}

/// Hash of the beginning of a prompt; `None` for one that is shorter than that.
fn prefix_hash(request: &Request<'_>) -> Option<u64> {
    let tokens = request.tokens().get(..PREFIX_TOKENS)?;
    let mut hasher = DefaultHasher::new();
    tokens.hash(&mut hasher);
    request.spec.tenant.path().hash(&mut hasher);
    Some(hasher.finish())
}

#[cfg(test)]
mod tests {
    use ruvllm_memory::{PressurePolicy, Tenant};
    use ruvllm_testkit::{Random, model_data};

    use super::*;
    use crate::cancel::CancelToken;
    use crate::prefix::PrefixCaching;
    use crate::request::{GenerateRequest, Prompt};
    use crate::sampler::SamplingParams;
    use crate::sequence::SequenceSpec;
    use crate::step::native::NativeExecutor;
    use crate::step::{Facts, Inbox, Outlet, Prepared, RequestHandle};
    use crate::{Engine, EngineOptions};

    fn engine(prefixes: PrefixCaching) -> Engine {
        let options = EngineOptions::default()
            .with_threads(2)
            .with_kv("f32".parse::<ruvllm_kv_cache::KvPolicy>().expect("a policy"))
            .with_prefixes(prefixes);
        Engine::open_with(model_data("tiny/llama/model-F16.gguf"), &options).expect("the model loads")
    }

    fn request(index: u64) -> GenerateRequest {
        let mut random = Random::new(index);
        let tokens = (0..1 + random.below(90)).map(|_| random.below(500) as u32).collect();
        GenerateRequest::new(Prompt::Tokens(tokens))
            .with_max_tokens(1 + random.below(30))
            .with_sampling(SamplingParams::default().with_seed(Some(index)))
    }

    fn submit<'c>(
        engine: &'c Engine,
        steps: &mut StepLoop<'c, NativeExecutor<'c>>,
        request: &GenerateRequest,
    ) -> RequestHandle {
        let core = engine.core();
        let cancel = CancelToken::new();
        let facts = Facts {
            codec: &core.codec,
            kernels: core.compute.kernels,
            context: core.context,
            model_context: core.context,
        };
        let prepared = Prepared::new(facts, request, &cancel).expect("a valid request");
        let spec = SequenceSpec {
            tenant: Tenant::root(),
            adapter: None,
            kv: None,
            pressure: PressurePolicy::default(),
            capacity: prepared.capacity(),
            caches_prefix: true,
            min_cache_tokens: 0,
            shared_tokens: 0,
        };
        let inbox = Arc::new(Inbox::default());
        let outlet = Outlet::new(Arc::clone(&inbox), None);
        let handle = RequestHandle::new(inbox, cancel.clone());
        let (session, priority, deadline) = (None, 0, None);
        steps.submit(Job { prepared, spec, session, priority, deadline, cancel, outlet });
        handle
    }

    #[test]
    fn preemption_in_every_step_changes_no_output() {
        for prefixes in [PrefixCaching::Off, PrefixCaching::Memory] {
            let requests: Vec<GenerateRequest> = (0..24).map(request).collect();
            let other = engine(PrefixCaching::Off);
            let alone: Vec<_> =
                requests.iter().map(|request| other.generate(request).expect("text")).collect();
            let engine = engine(prefixes);
            let (core, counters) = (engine.core(), Arc::new(StepCounters::default()));
            let mut config = Config::default();
            // Chunks of few tokens, so that requests yield in the middle of their prompts too.
            (config.step_tokens, config.block_tokens) = (48, core.kv.block_tokens());
            let executor = NativeExecutor::new(core);
            let mut steps = StepLoop::new(executor, &core.codec, Arc::clone(&counters), config);
            let handles: Vec<_> =
                requests.iter().map(|request| submit(&engine, &mut steps, request)).collect();
            let mut random = Random::new(7);
            let mut iterations = 0;
            while !steps.is_idle() {
                steps.iterate();
                iterations += 1;
                assert!(iterations < 100_000, "the requests make progress");
                let mut running: Vec<RequestId> = (steps.requests.iter())
                    .filter(|(_, request)| request.computed > 0)
                    .map(|(&id, _)| id)
                    .collect();
                running.sort_unstable();
                // In every step a third of them yield; the last two may end.
                for _ in 0..running.len() / 3 {
                    steps.preempt(running.swap_remove(random.below(running.len())));
                }
            }
            assert!(counters.read().preemptions > 50, "{:?}", counters.read());
            for (handle, expected) in handles.into_iter().zip(alone) {
                let found = handle.wait().expect("text");
                assert_eq!((found.tokens, found.text), (expected.tokens, expected.text));
            }
        }
    }
}
