//! The loop that computes all requests, step by step, in one thread.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ruvllm_scheduler::{Config, RequestId, Scheduler, TenantId, Work};
use ruvllm_text::TokenId;

use super::executor::{Executor, Outcome, SequenceId, SequenceReport, Step};
use super::request::{Job, Request, Sampled, SessionId};
use super::statistics::StepCounters;
use crate::codec::TextCodec;
use crate::error::{Error, Result};
use crate::request::FinishReason;
use crate::speculation::{Ask, Speculator};

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
    speculator: Speculator<'c>,
    scratch: Scratch,
}

/// Lists of an iteration, kept for their memory.
#[derive(Default)]
struct Scratch {
    work: Vec<Work>,
    step: Step,
    outcomes: Vec<Outcome>,
    /// Requests that may have a draft: index of their part, and question. Their drafts.
    asking: Vec<usize>,
    asks: Vec<Ask<'static>>,
    drafts: Vec<Vec<TokenId>>,
    /// Drafted tokens of each part.
    drafted: Vec<usize>,
    /// Outcome of sampling for each part of the step; `None` if it sampled nothing.
    sampled: Vec<Option<Result<Sampled>>>,
    ended: Vec<RequestId>,
}

impl<'c, X: Executor> StepLoop<'c, X> {
    /// A loop without requests and drafts.
    pub(crate) fn new(
        executor: X,
        codec: &'c TextCodec,
        counters: Arc<StepCounters>,
        config: Config,
    ) -> Self {
        Self {
            speculator: Speculator::off(),
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

    /// The loop with drafts.
    #[must_use]
    pub(crate) fn with_drafts(self, speculator: Speculator<'c>) -> Self {
        Self { speculator, ..self }
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
            self.speculate(&mut scratch);
            self.compute(&mut scratch);
            let time = started.elapsed();
            self.scheduler.observe(&scratch.work, time);
            self.observe_drafts(&scratch, time);
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

    /// Drafts the next tokens of the requests that decode.
    fn speculate(&mut self, scratch: &mut Scratch) {
        let Scratch { work, asking, asks, drafts, .. } = scratch;
        asking.clear();
        if self.speculator.is_off() {
            return;
        }
        let mut questions = recycle(std::mem::take(asks));
        for (index, &Work { id, tokens, samples }) in work.iter().enumerate() {
            let request = &self.requests[&id];
            if samples && tokens == 1 && !request.is_prefilling() {
                let room = self.executor.draft_room(request.sequence);
                asking.push(index);
                questions.push(request.ask(self.speculator.setting(), room));
            }
        }
        self.speculator.draft(&questions, questions.len(), drafts);
        *asks = recycle(questions);
        for (index, draft) in asking.iter().zip(drafts).filter(|(_, draft)| !draft.is_empty()) {
            if let Some(request) = self.requests.get_mut(&work[*index].id) {
                request.trim(draft);
            }
        }
    }

    /// Tells the policy of the drafts how long the step took, if nothing but drafts and the tokens
    /// before them was in it.
    fn observe_drafts(&mut self, scratch: &Scratch, time: Duration) {
        let Scratch { work, step, asking, sampled, drafted, .. } = scratch;
        let mut accepted = 0;
        for (&drafted, (part, sampled)) in drafted.iter().zip(step.parts().iter().zip(sampled)) {
            if let Some(Ok(sampled)) = sampled
                && drafted > 0
            {
                accepted += sampled.kept;
                self.speculator.verified(part.sequence.0, drafted, sampled.kept);
            }
        }
        let drafted = drafted.iter().sum();
        self.counters.count_draft(drafted, accepted);
        if asking.len() == work.len() && sampled.iter().all(Option::is_some) {
            self.speculator.observe(work.len(), [drafted, accepted], time);
        }
    }

    /// Computes the planned work with its drafts and samples.
    fn compute(&mut self, scratch: &mut Scratch) {
        let Scratch { work, step, outcomes, sampled, asking, drafts, drafted, .. } = scratch;
        step.clear();
        sampled.clear();
        drafted.clear();
        let mut drafting = asking.iter().zip(&*drafts).peekable();
        for (index, &Work { id, tokens, samples }) in work.iter().enumerate() {
            let request = &self.requests[&id];
            let tokens = &request.tokens()[request.computed..request.computed + tokens];
            let (is_prompt, rows) = (request.is_prefilling(), usize::from(samples));
            step.push(request.sequence, tokens, is_prompt, rows, &request.cancel);
            let draft = drafting.next_if(|(asking, _)| **asking == index).map(|(_, draft)| draft);
            drafted.push(draft.map_or(0, Vec::len));
            step.push_draft(draft.map_or(&[], Vec::as_slice));
            sampled.push(None);
        }
        let (requests, vocab_size) = (&mut self.requests, self.codec.vocab_size());
        self.executor.step(step, outcomes, &mut |parts, mut logits| {
            for &index in parts {
                let part = &step.parts()[index];
                let rows;
                (rows, logits) = logits.split_at(part.rows * vocab_size);
                if let Some(request) = requests.get_mut(&work[index].id) {
                    let draft = &step.tokens(part)[work[index].tokens..];
                    let outcome = request.sample(rows, draft);
                    let kept = outcome.as_ref().map_or(0, |sampled| sampled.kept);
                    request.computed += work[index].tokens + kept;
                    sampled[index] = Some(outcome);
                }
            }
        });
    }

    /// Tells the scheduler what was computed; ends and preempts requests.
    fn settle(&mut self, scratch: &mut Scratch) {
        let Scratch { work, step, outcomes, sampled, drafted, .. } = scratch;
        let mut short = None;
        let parts = work.iter().zip(step.parts()).zip(&*drafted);
        for ((((work, part), &drafted), outcome), sampled) in
            parts.zip(outcomes.drain(..)).zip(sampled.drain(..))
        {
            if let Err(error) = self.drop_rejected(part.sequence, drafted, sampled.as_ref(), work.id) {
                self.fail(work.id, error);
                continue;
            }
            match outcome {
                // Without the draft there may be room.
                Outcome::Failed(_) if drafted > 0 => self.speculator.pause(part.sequence.0),
                Outcome::Failed(error) if is_shortage(&error) => short = Some((work.id, error)),
                Outcome::Failed(error) => self.fail(work.id, error),
                Outcome::Computed { tokens } => {
                    let kept = sampled.as_ref().map_or(0, |s| s.as_ref().map_or(0, |s| s.kept));
                    let (tokens, is_prompt) = (tokens - (drafted - kept), part.is_prompt);
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

    /// Drops the tokens of a draft that were not sampled.
    fn drop_rejected(
        &mut self,
        sequence: SequenceId,
        drafted: usize,
        sampled: Option<&Result<Sampled>>,
        id: RequestId,
    ) -> Result<()> {
        match (sampled, self.requests.get(&id)) {
            (Some(Ok(sampled)), Some(request)) if sampled.kept < drafted => {
                self.executor.truncate(sequence, request.computed)
            }
            _ => Ok(()),
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
        self.speculator.end(request.sequence.0);
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
            self.speculator.end(request.sequence.0);
            self.counters.count_end();
            self.executor.release(request.sequence);
            request.fail(error);
        }
    }
}

/// Empties a list and changes the lifetime of its elements, as
/// [`segments::recycle`](crate::segments::recycle).
fn recycle<'a>(mut asks: Vec<Ask<'_>>) -> Vec<Ask<'a>> {
    asks.clear();
    asks.into_iter().map(|_| unreachable!("the list is empty")).collect()
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
    use crate::{Engine, EngineOptions, Speculation};

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
            pressure: PressurePolicy::default(),
            capacity: prepared.capacity(),
            caches_prefix: true,
            shared_tokens: 0,
        };
        let inbox = Arc::new(Inbox::default());
        let outlet = Outlet::new(Arc::clone(&inbox));
        let handle = RequestHandle::new(inbox, cancel.clone(), None);
        let (session, priority, deadline) = (None, 0, None);
        steps.submit(Job { prepared, spec, session, priority, deadline, cancel, outlet });
        handle
    }

    #[test]
    fn preemption_in_every_step_changes_no_output() {
        for (prefixes, drafts) in
            [(PrefixCaching::Off, 0), (PrefixCaching::Memory, 0), (PrefixCaching::Off, 3)]
        {
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
            let requests: Vec<GenerateRequest> = if drafts > 0 {
                steps = steps.with_drafts(Speculator::new(core));
                requests.into_iter().map(|r| r.with_speculation(Speculation::Fixed(drafts))).collect()
            } else {
                requests
            };
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
            assert_eq!(counters.read().drafted_tokens > 0, drafts > 0, "{:?}", counters.read());
            for (handle, expected) in handles.into_iter().zip(alone) {
                let found = handle.wait().expect("text");
                assert_eq!((found.tokens, found.text), (expected.tokens, expected.text));
            }
        }
    }
}
