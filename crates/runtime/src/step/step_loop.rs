//! The loop that computes all requests, step by step, in one thread.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use ruvllm_kernels::ThreadPool;
use ruvllm_scheduler::{Config, RequestId, Scheduler, TenantId, Work};

use super::executor::{Executor, Outcome, SequenceId, SequenceReport, Step};
use super::request::{Job, Request, Sampled};
use super::statistics::StepCounters;
use crate::codec::TextCodec;
use crate::error::{Error, Result};
use crate::request::FinishReason;
use crate::session_table::SessionId;

/// Tokens whose hash tells the scheduler that prompts may share a prefix.
const PREFIX_TOKENS: usize = 32;

/// All requests of one executor.
pub(crate) struct StepLoop<'c, X> {
    executor: X,
    codec: &'c TextCodec,
    scheduler: Scheduler,
    /// Threads that sample; `None` samples in the loop's own.
    pool: Option<&'c ThreadPool>,
    // Boxed, because those of a step move to their tasks and back.
    requests: HashMap<RequestId, Box<Request<'c>>>,
    /// Sequences of sessions whose last request has ended, the longest idle first.
    idle: VecDeque<Idle>,
    /// Requests whose sequence is a fork that has not started; some may have by now.
    forks: VecDeque<RequestId>,
    tenants: HashMap<Box<str>, TenantId>,
    /// Number of the next request, and of the sequence that it begins.
    next: u64,
    /// Start of the scheduler's time.
    epoch: Instant,
    counters: Arc<StepCounters>,
    scratch: Scratch<'c>,
}

/// Sequence of a session whose last request has ended.
struct Idle {
    session: SessionId,
    sequence: SequenceId,
    /// Number of its tokens.
    tokens: usize,
}

/// Lists of an iteration, kept for their memory.
#[derive(Default)]
struct Scratch<'c> {
    work: Vec<Work>,
    step: Step,
    outcomes: Vec<Outcome>,
    /// Outcome of sampling for each part of the step; `None` if it sampled nothing.
    sampled: Vec<Option<Result<Sampled>>>,
    ended: Vec<RequestId>,
    tasks: Vec<Mutex<Task<'c>>>,
}

/// Sampling of one request in a step. Each task is locked by one thread, once.
struct Task<'c> {
    id: RequestId,
    request: Box<Request<'c>>,
    /// Index of its part in the step.
    part: usize,
    /// Its values in the logits of the step.
    rows: Range<usize>,
    outcome: Option<Result<Sampled>>,
}

/// Samples in every task, on all threads of the pool. A task reads nothing of another one.
fn sample_all(pool: Option<&ThreadPool>, tasks: &[Mutex<Task<'_>>], logits: &[f32]) {
    let sample = |range: Range<usize>| {
        for task in &tasks[range] {
            let Task { request, rows, outcome, .. } = &mut *task.lock();
            *outcome = Some(request.sample(&logits[rows.clone()]));
        }
    };
    match pool {
        Some(pool) if tasks.len() > 1 => pool.for_each_chunk(tasks.len(), 1, &sample),
        _ => sample(0..tasks.len()),
    }
}

impl<'c, X: Executor> StepLoop<'c, X> {
    /// A loop without requests.
    pub(crate) fn new(
        executor: X,
        codec: &'c TextCodec,
        pool: Option<&'c ThreadPool>,
        counters: Arc<StepCounters>,
        config: Config,
    ) -> Self {
        Self {
            executor,
            pool,
            codec,
            scheduler: Scheduler::new(config),
            requests: HashMap::new(),
            idle: VecDeque::new(),
            forks: VecDeque::new(),
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
        self.submit_choices([job]);
    }

    /// Takes requests of one prompt: the first computes it, the others go on from there.
    pub(crate) fn submit_choices(&mut self, jobs: impl IntoIterator<Item = Job>) {
        let mut ids = Vec::new();
        for job in jobs {
            let (id, sequence) = (RequestId(self.next), SequenceId(self.next));
            self.next += 1;
            let request = Request::new(self.codec, sequence, job);
            if request.max_new_tokens() == 0 {
                request.finish(FinishReason::Length, &SequenceReport::default());
            } else {
                self.requests.insert(id, Box::new(request));
                ids.push(id);
            }
        }
        self.lead(&ids);
    }

    /// The first of these requests that the queue takes computes the prompt, the others follow it.
    fn lead(&mut self, mut ids: &[RequestId]) {
        while let Some((&id, followers)) = ids.split_first() {
            if self.enqueue(id) {
                if let Some(request) = self.requests.get_mut(&id) {
                    request.followers.extend_from_slice(followers);
                }
                return;
            }
            ids = followers;
        }
    }

    /// Gives a request to the scheduler; a refusal ends it. False if there is none any more.
    fn enqueue(&mut self, id: RequestId) -> bool {
        let Some(request) = self.requests.get(&id) else { return false };
        let asked = ruvllm_scheduler::Request {
            id,
            tenant: tenant(&mut self.tenants, request.spec.tenant.path()),
            priority: request.priority,
            deadline: request.deadline.map(|deadline| deadline.saturating_duration_since(self.epoch)),
            prompt_tokens: request.prompt_tokens(),
            max_new_tokens: request.max_new_tokens(),
            prefix: prefix_hash(request),
        };
        let refusal = self.scheduler.submit(self.now(), asked).err();
        if let Some(refusal) = refusal
            && let Some(request) = self.requests.remove(&id)
        {
            self.executor.release(request.sequence);
            request.fail(Error::Refused(refusal));
            return false;
        }
        true
    }

    /// Lets the other choices of a prompt that has been computed begin, as forks of its sequence.
    fn release_followers(&mut self, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let (source, followers) = (request.sequence, std::mem::take(&mut request.followers));
        for follower in followers {
            let Some(request) = self.requests.get_mut(&follower) else { continue };
            request.is_forked = self.executor.fork(source, request.sequence);
            if self.enqueue(follower) {
                self.forks.push_back(follower);
            }
        }
    }

    /// Takes the memory of a fork that has not started; false if there is none.
    fn park_fork(&mut self) -> bool {
        while let Some(id) = self.forks.pop_front() {
            if let Some(request) = self.requests.get_mut(&id).filter(|request| request.is_forked) {
                request.is_forked = false;
                self.executor.park(request.sequence);
                return true;
            }
        }
        false
    }

    /// Releases the sequence that a session keeps, if it has one.
    pub(crate) fn end_session(&mut self, session: SessionId) {
        if let Some(sequence) = self.take_idle(session) {
            self.executor.release(sequence);
        }
    }

    /// The idle sequence of a session, which is idle no longer.
    fn take_idle(&mut self, session: SessionId) -> Option<SequenceId> {
        let index = self.idle.iter().position(|idle| idle.session == session)?;
        self.idle.remove(index).map(|idle| idle.sequence)
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
        loop {
            // Idle sequences yield to any request.
            let idle = self.idle.iter().fold(0, |sum: usize, idle| sum.saturating_add(idle.tokens));
            let free_tokens = self.executor.free_tokens().saturating_add(idle);
            let Some(id) = self.scheduler.admit(self.now(), free_tokens) else { return };
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
        let forked = std::mem::take(&mut request.is_forked).then_some(request.sequence);
        if let Some(sequence) = forked.or(kept) {
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
    fn compute(&mut self, scratch: &mut Scratch<'c>) {
        let Scratch { work, step, outcomes, sampled, tasks, .. } = scratch;
        step.clear();
        sampled.clear();
        for &Work { id, tokens, samples } in &*work {
            let request = &self.requests[&id];
            let tokens = &request.tokens()[request.computed..request.computed + tokens];
            let (is_prompt, rows) = (request.is_prefilling(), usize::from(samples));
            step.push(request.sequence, tokens, is_prompt, rows, &request.cancel);
            sampled.push(None);
        }
        let (requests, vocab_size, pool) = (&mut self.requests, self.codec.vocab_size(), self.pool);
        self.executor.step(step, outcomes, &mut |parts, logits| {
            let mut end = 0;
            for &part in parts {
                let start = end;
                end += step.parts()[part].rows * vocab_size;
                let (id, rows) = (work[part].id, start..end);
                if let Some(mut request) = requests.remove(&id) {
                    request.computed += work[part].tokens;
                    tasks.push(Mutex::new(Task { id, request, part, rows, outcome: None }));
                }
            }
            sample_all(pool, tasks, logits);
            for task in tasks.drain(..) {
                let Task { id, request, part, outcome, .. } = task.into_inner();
                sampled[part] = outcome;
                requests.insert(id, request);
            }
        });
    }

    /// Tells the scheduler what was computed; ends and preempts requests.
    fn settle(&mut self, scratch: &mut Scratch<'c>) {
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
                        Some(Ok(sampled)) => {
                            if sampled.is_first {
                                self.release_followers(work.id);
                            }
                            if let Some(reason) = sampled.end {
                                self.finish(work.id, reason);
                                continue;
                            }
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
        if let Some(idle) = self.idle.pop_front() {
            self.executor.park(idle.sequence);
        } else if self.park_fork() {
            // The request has another try in the next step.
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
        let Some(mut request) = self.requests.remove(&id) else { return };
        self.counters.count_end();
        self.lead(&std::mem::take(&mut request.followers));
        let report = self.executor.finish(request.sequence);
        let tokens = report.size.tokens;
        // The sequence of a named session is in the prefix cache, if there is one.
        let stays = tokens > 0
            && request.record.as_ref().is_none_or(|record| {
                let known = &request.tokens()[..tokens.min(request.tokens().len())];
                record.end(known, SystemTime::now()) && !report.is_kept
            });
        match request.session {
            Some(session) if stays => {
                self.end_session(session);
                self.idle.push_back(Idle { session, sequence: request.sequence, tokens });
            }
            _ => self.executor.release(request.sequence),
        }
        request.finish(reason, &report);
    }

    /// Ends a request with an error; its session begins anew.
    fn fail(&mut self, id: RequestId, error: Error) {
        self.scheduler.finished(id);
        if let Some(mut request) = self.requests.remove(&id) {
            self.counters.count_end();
            self.lead(&std::mem::take(&mut request.followers));
            self.executor.release(request.sequence);
            request.fail(error);
        }
    }
}

/// True if another request could make the memory free that is short.
fn is_shortage(error: &Error) -> bool {
    matches!(error, Error::Forward { source, .. } if source.is_memory_short())
}

/// Number of a tenant for the scheduler.
fn tenant(tenants: &mut HashMap<Box<str>, TenantId>, path: &str) -> TenantId {
    if let Some(&id) = tenants.get(path) {
        return id;
    }
    let id = TenantId(u32::try_from(tenants.len()).unwrap_or(u32::MAX));
    tenants.insert(path.into(), id);
    id
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
        let prepared = Prepared::new(&facts, request, &cancel).expect("a valid request");
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
        let (session, record, priority, deadline) = (None, None, 0, None);
        steps.submit(Job { prepared, spec, session, record, priority, deadline, cancel, outlet });
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
            let mut steps =
                StepLoop::new(executor, &core.codec, Some(&core.compute.pool), Arc::clone(&counters), config);
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
