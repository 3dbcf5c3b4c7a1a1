//! The loop that computes all requests, step by step, in one thread.

mod adapters;
mod choices;
mod drafts;
mod prompt_rows;
mod sampling;
#[cfg(test)]
mod tests;
mod tuned;

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use ruvllm_kernels::ThreadPool;
use ruvllm_scheduler::{Config, RequestId, Scheduler, TenantId, Work};
use ruvllm_text::TokenId;

pub(crate) use self::adapters::{AdapterLoader, Loaded};
use self::adapters::{Suspended, short_tenant};
use self::drafts::keep_states;
use self::prompt_rows::{most_prompt_rows, score_prompts};
use self::sampling::{Task, sample_all};
use super::executor::{Executor, Outcome, SequenceId, Step};
use super::request::{Request, Sampled};
use super::statistics::StepCounters;
use super::tuning::StepTuner;
use crate::backend::batch::Decoded;
use crate::codec::TextCodec;
use crate::error::{Error, Result};
use crate::request::FinishReason;
use crate::session_table::SessionId;
use crate::speculation::{Ask, Speculator};

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
    /// Requests that have started and wait for their adapters.
    suspended: Suspended,
    loader: Option<AdapterLoader>,
    /// Time for which others start before a request that waits for memory.
    patience: Duration,
    /// True if the last iteration had nothing to compute.
    is_waiting: bool,
    /// True if memory was short in the last step.
    is_short: bool,
    /// Largest number of rows of logits for prompt positions in a step.
    most_prompt_rows: usize,
    /// Requests with text that their readers were not woken for.
    unread: Vec<RequestId>,
    tenants: HashMap<Box<str>, TenantId>,
    /// Number of the next request, and of the sequence that it begins.
    next: u64,
    /// Start of the scheduler's time.
    epoch: Instant,
    counters: Arc<StepCounters>,
    speculator: Speculator<'c>,
    tuner: Option<StepTuner<'c>>,
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
    /// Requests that may have a draft: index of their part, and question. Their drafts.
    asking: Vec<usize>,
    asks: Vec<Ask<'static>>,
    drafts: Vec<Vec<TokenId>>,
    /// Drafted tokens of each part.
    drafted: Vec<usize>,
    /// Outcome of sampling for each part of the step; `None` if it sampled nothing.
    sampled: Vec<Option<Result<Sampled>>>,
    ended: Vec<RequestId>,
    tasks: Vec<Mutex<Task<'c>>>,
}

impl<'c, X: Executor> StepLoop<'c, X> {
    /// A loop without requests and drafts.
    pub(crate) fn new(
        executor: X,
        codec: &'c TextCodec,
        pool: Option<&'c ThreadPool>,
        counters: Arc<StepCounters>,
        config: Config,
    ) -> Self {
        Self {
            speculator: Speculator::off(),
            tuner: None,
            executor,
            pool,
            codec,
            patience: config.ageing,
            scheduler: Scheduler::new(config),
            suspended: Suspended::default(),
            loader: None,
            is_waiting: false,
            is_short: false,
            requests: HashMap::new(),
            idle: VecDeque::new(),
            forks: VecDeque::new(),
            most_prompt_rows: most_prompt_rows(codec.vocab_size()),
            unread: Vec::new(),
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

    /// The loop with registered adapters.
    #[must_use]
    pub(crate) fn with_adapters(self, loader: AdapterLoader) -> Self {
        Self { loader: Some(loader), ..self }
    }

    /// True while there is nothing to compute before an adapter is loaded.
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_waiting && self.suspended.loading().is_some()
    }

    /// True without waiting and running requests.
    pub(crate) fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
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
            prefix: if request.scores_prompt() { None } else { prefix_hash(request) },
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
        // Memory that a request yielded is for the one that lacked it, not for the next adapters.
        if !std::mem::take(&mut self.is_short) {
            self.retry_short();
            self.admit();
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        self.apply_settings();
        self.scheduler.plan(self.now(), &mut scratch.work);
        self.bound_prompt_rows(&mut scratch.work);
        self.wake_readers(&scratch.work);
        self.is_waiting = scratch.work.is_empty();
        if !scratch.work.is_empty() {
            let record = self.counters.begin_step(scratch.work.len());
            let started = Instant::now();
            self.speculate(&mut scratch);
            self.compute(&mut scratch);
            let time = started.elapsed();
            self.scheduler.observe(&scratch.work, time);
            self.observe_drafts(&scratch, time);
            let sampling = self.sampling(&scratch);
            self.settle(&mut scratch);
            let record = self.counters.end_step(record, time);
            self.tune(sampling, record);
        }
        self.scratch = scratch;
        let suspended = self.suspended.len();
        self.counters.set_load(self.scheduler.waiting(), self.scheduler.running() - suspended, suspended);
    }

    /// Wakes the readers of text that would wait too long until the end of the planned step, and
    /// lets them run first if they share a core with this thread.
    fn wake_readers(&mut self, work: &[Work]) {
        let prefill = |work: &&Work| self.requests.get(&work.id).is_some_and(|r| r.is_prefilling());
        let (prompts, prefill_tokens) =
            work.iter().filter(prefill).fold((0, 0), |(n, tokens), work| (n + 1, tokens + work.tokens));
        let next_step = match work.is_empty() {
            true => None,
            false => self.scheduler.expected_step(prefill_tokens, work.len() - prompts),
        };
        let (now, requests) = (Instant::now(), &mut self.requests);
        let mut has_woken = false;
        self.unread.retain(|id| {
            let Some(request) = requests.get_mut(id) else { return false };
            if request.reader.is_due(now, next_step) {
                request.announce(now);
                has_woken = true;
            }
            request.reader.has_text()
        });
        if has_woken {
            thread::yield_now();
        }
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
        while !self.suspended.is_overdue(self.patience) {
            // Idle sequences yield to any request.
            let idle = self.idle.iter().fold(0, |sum: usize, idle| sum.saturating_add(idle.tokens));
            let free_tokens = self.executor.free_tokens().saturating_add(idle);
            let Some(id) = self.scheduler.admit(self.now(), free_tokens) else { return };
            if self.suspend(id) {
                continue;
            }
            match self.start(id) {
                Ok(cached) => self.scheduler.started(id, cached),
                Err(error) if short_tenant(&error).is_some() => self.suspend_short(id, error),
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
            cached = self.executor.resume(sequence, &request.spec, request.reusable())?;
            if cached.is_some() {
                request.sequence = sequence;
            }
        }
        let cached = match cached {
            Some(cached) => cached,
            None => self.executor.begin(request.sequence, &request.spec, request.reusable())?,
        };
        request.start(cached);
        Ok(cached)
    }

    /// Computes the planned work with its drafts and samples.
    fn compute(&mut self, scratch: &mut Scratch<'c>) {
        let Scratch { work, step, outcomes, sampled, asking, drafts, drafted, tasks, .. } = scratch;
        step.clear();
        sampled.clear();
        drafted.clear();
        let mut drafting = asking.iter().zip(&*drafts).peekable();
        let most_states = self.speculator.states();
        for (index, &Work { id, tokens, samples }) in work.iter().enumerate() {
            let request = &self.requests[&id];
            let rows = match request.prompt_rows(tokens) {
                (_, 0) => usize::from(samples),
                (before, _) => tokens - before,
            };
            let tokens = &request.tokens()[request.computed..request.computed + tokens];
            let draft = drafting.next_if(|(asking, _)| **asking == index).map(|(_, draft)| draft);
            let draft = draft.map_or(&[][..], Vec::as_slice);
            // A part with a draft is computed whole or not at all.
            let is_prompt = request.is_prefilling() && draft.is_empty();
            step.push(request.sequence, tokens, is_prompt, rows, &request.cancel);
            step.want(request.wanted());
            drafted.push(draft.len());
            step.push_draft(draft);
            if samples && request.has_drafts(self.speculator.setting()) {
                step.want_states(most_states);
            }
            sampled.push(None);
        }
        let (requests, codec, pool) = (&mut self.requests, self.codec, self.pool);
        let (unread, counters, speculator) = (&mut self.unread, &self.counters, &mut self.speculator);
        self.executor.step(step, outcomes, &mut |parts, decoded, states| {
            keep_states(speculator, requests, work, parts, states);
            let mut start = 0;
            for &part in parts {
                let Work { id, tokens, samples } = work[part.part];
                if let Some(request) = requests.remove(&id) {
                    if !request.reader.has_text() {
                        unread.push(id);
                    }
                    let samples = samples && part.tokens >= tokens;
                    tasks.push(Mutex::new(Task::new(id, request, part, start, samples.then_some(tokens))));
                }
                start += part.rows;
            }
            if let Decoded::Logits(logits) = decoded {
                score_prompts(pool, tasks, codec, logits);
            }
            sample_all(pool, tasks, step, decoded, codec.vocab_size());
            for task in tasks.drain(..) {
                let Task { id, mut request, part, outcome, .. } = task.into_inner();
                let (masks, time) = request.take_mask_time();
                counters.count_masks(masks, time);
                sampled[part] = outcome;
                requests.insert(id, request);
            }
        });
    }

    /// Tells the scheduler what was computed; ends and preempts requests.
    fn settle(&mut self, scratch: &mut Scratch<'c>) {
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
            self.is_short = true;
            self.yield_memory(id, error);
        }
    }

    /// Makes memory free for a request: an idle session ends, or a request waits again. A request
    /// that is alone fails.
    fn yield_memory(&mut self, id: RequestId, error: Error) {
        if self.yield_idle() {
            // The request has another try in the next step.
        } else if self.scheduler.running() - self.suspended.len() > 1 {
            self.preempt(self.scheduler.victim(id));
        } else if let Some(loading) = self.suspended.loading() {
            self.stall(loading, error);
        } else {
            self.fail(id, error);
        }
    }

    /// Makes the memory of an idle session or of a fork that has not started free; false if there
    /// is none.
    fn yield_idle(&mut self) -> bool {
        let Some(idle) = self.idle.pop_front() else { return self.park_fork() };
        self.executor.park(idle.sequence);
        true
    }

    /// Stores the sequence of a running request as a prefix; the request waits again.
    fn preempt(&mut self, id: RequestId) {
        if let Some(request) = self.requests.get_mut(&id) {
            self.executor.park(request.sequence);
            request.computed = 0;
            request.release_adapters();
        }
        self.suspended.remove(id);
        self.suspended.freed();
        self.scheduler.preempted(id);
        self.counters.count_preemption();
    }

    /// Ends a request with a result.
    fn finish(&mut self, id: RequestId, reason: FinishReason) {
        self.scheduler.finished(id);
        self.suspended.remove(id);
        self.suspended.freed();
        let Some(mut request) = self.requests.remove(&id) else { return };
        self.speculator.end(request.sequence.0);
        self.counters.count_end();
        self.lead(&std::mem::take(&mut request.followers));
        let report = self.executor.finish(request.sequence);
        let tokens = report.size.tokens;
        // The sequence of a named session is in the prefix cache, if there is one.
        let stays = tokens > 0
            && request.record.as_ref().is_none_or(|record| {
                let known = &request.tokens()[..tokens.min(request.tokens().len())];
                let prefix = self.executor.prefix_key(request.sequence);
                record.end(known, prefix, SystemTime::now()) && !report.is_kept
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
        self.suspended.remove(id);
        self.suspended.freed();
        if let Some(mut request) = self.requests.remove(&id) {
            self.speculator.end(request.sequence.0);
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
    request.adapters.prefix_hash(&mut hasher);
    Some(hasher.finish())
}
