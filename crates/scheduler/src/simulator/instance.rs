//! A simulated engine: one machine that runs the step loop over submitted requests.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use super::memory::{Memory, Table};
use super::random::Random;
use super::report::{Report, TenantReport};
use super::traffic::Arrival;
use super::{Machine, Setup, Violation};
use crate::config::Config;
use crate::request::RequestId;
use crate::scheduler::Scheduler;
use crate::work::Work;

/// A request that was submitted and has not ended.
#[derive(Debug, Default)]
struct Live {
    table: Table,
    runs: bool,
    known: usize,
    computed: usize,
    generated: usize,
    /// Tokens that were computed or found at least once.
    seen: usize,
    /// Tokens that were found before they were computed.
    found: usize,
    last_token: Option<Duration>,
    /// Time from which its time to first token counts.
    since: Duration,
    has_started: bool,
    /// Tokens that had been computed for all requests when it was submitted.
    clock: usize,
    /// Tokens of its tenant that were to be computed then, its own included.
    ahead: usize,
}

/// A request on its way to an instance.
#[derive(Debug, Clone, Copy)]
struct Incoming {
    /// Time of its submission.
    at: Duration,
    /// Time at which it was sent: the start of its time to first token.
    since: Duration,
    id: RequestId,
}

/// Progress of a request, for the owner of several instances.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Progress {
    /// Started for the first time, with `cached` tokens of its prompt from the prefix cache.
    Started { id: RequestId, cached: usize },
    /// Has its first token.
    FirstToken { id: RequestId },
    /// Completed, cancelled, or expired.
    Ended { id: RequestId },
}

/// A machine with a scheduler, a KV cache and a prefix cache. Times between [`begin`](Self::begin)
/// and [`finish_step`](Self::finish_step) are those of one step.
pub(super) struct Instance<'s> {
    config: Config,
    setup: &'s Setup,
    arrivals: &'s [Arrival],
    scheduler: Scheduler,
    pub(super) memory: Memory,
    /// Progress since the owner last took it; `None` if nobody wants it.
    pub(super) progress: Option<Vec<Progress>>,
    random: Random,
    live: HashMap<RequestId, Live>,
    /// Times at which requests are cancelled.
    cancels: BTreeSet<(Duration, RequestId)>,
    pub(super) now: Duration,
    /// Requests that are not submitted yet, in the order of time.
    incoming: VecDeque<Incoming>,
    step: Vec<Work>,
    pub(super) report: Report,
    /// Tokens computed, and those of them that had been computed before.
    computed: usize,
    recomputed: usize,
    /// Tokens to compute for the live requests of each tenant.
    outstanding: HashMap<u32, usize>,
    /// Part of the bound on waiting that is the same for all requests.
    slack: Slack,
}

struct Slack {
    weights: HashMap<u32, f64>,
    weight: f64,
    /// Tokens to be multiplied by the inverse share of a tenant.
    shared: usize,
    fixed: usize,
}

impl Slack {
    fn new(config: &Config, setup: &Setup) -> Self {
        let weights: HashMap<u32, f64> =
            setup.traffic.iter().map(|tenant| (tenant.tenant.0, tenant.weight)).collect();
        let weight: f64 = weights.values().sum();
        let output = setup.traffic.iter().map(|tenant| tenant.output.most).max().unwrap_or(0);
        let burst = (config.burst_tokens.max(config.quantum_tokens) as f64 * weight) as usize;
        let shared = setup.cache_tokens + config.max_running * output + burst;
        let price = setup.machine.prefill.min(setup.machine.decode).as_secs_f64();
        let tokens = config.step_tokens as f64;
        let rate = tokens / (setup.machine.step.as_secs_f64() + price * tokens);
        let patience = config.ageing.as_secs_f64() * f64::from(2 + 2 * config.max_priority);
        // The machine is faster than its mean at times.
        Self { weights, weight, shared, fixed: (1.2 * rate * patience) as usize }
    }

    fn bound(&self, tenant: u32, ahead: usize, is_fair: bool) -> usize {
        let weight = if is_fair { self.weights.get(&tenant).copied().unwrap_or(1.0) } else { self.weight };
        ((ahead + self.shared) as f64 * self.weight / weight) as usize + self.fixed
    }
}

impl<'s> Instance<'s> {
    /// An idle instance for requests of `arrivals`, whose numbers are their positions.
    pub(super) fn new(config: &Config, setup: &'s Setup, arrivals: &'s [Arrival], seed: u64) -> Self {
        let config = config.clone().bounded();
        let mut scheduler = Scheduler::new(config.clone());
        for tenant in &setup.traffic {
            scheduler.set_weight(tenant.tenant, tenant.weight);
        }
        Self {
            scheduler,
            memory: Memory::new(setup.cache_tokens, config.block_tokens),
            random: Random::new(seed),
            progress: None,
            live: HashMap::new(),
            cancels: BTreeSet::new(),
            now: Duration::ZERO,
            incoming: VecDeque::new(),
            step: Vec::new(),
            report: Report::default(),
            computed: 0,
            recomputed: 0,
            outstanding: HashMap::new(),
            slack: Slack::new(&config, setup),
            config,
            setup,
            arrivals,
        }
    }

    /// Sends a request that is submitted at `at`, not before those that were sent earlier.
    pub(super) fn send(&mut self, id: RequestId, at: Duration, since: Duration) {
        self.incoming.push_back(Incoming { at, since, id });
    }

    /// Time of the next submission.
    pub(super) fn next_submission(&self) -> Option<Duration> {
        self.incoming.front().map(|incoming| incoming.at)
    }

    /// Begins a step; its duration, or `None` if nothing waits or runs.
    pub(super) fn begin(&mut self) -> Result<Option<Duration>, Violation> {
        let (mut waiting, mut running) = (0, 0);
        // A step may become empty by preemptions, but not again and again.
        for _ in 0..3 {
            self.receive()?;
            self.admit()?;
            let mut step = std::mem::take(&mut self.step);
            self.scheduler.plan(self.now, &mut step);
            self.check_step(&step)?;
            self.allocate(&mut step)?;
            self.step = step;
            if !self.step.is_empty() {
                return Ok(Some(self.setup.machine.duration(&self.step, &mut self.random)));
            }
            (waiting, running) = (self.scheduler.waiting(), self.scheduler.running());
            if waiting + running == 0 {
                return Ok(None);
            }
        }
        Err(Violation::Idle { waiting, running, tokens: 0 })
    }

    fn note(&mut self, progress: Progress) {
        if let Some(log) = &mut self.progress {
            log.push(progress);
        }
    }

    fn arrival(&self, id: RequestId) -> &'s Arrival {
        &self.arrivals[id.0 as usize]
    }

    fn tenant(&mut self, arrival: &Arrival) -> &mut TenantReport {
        self.report.tenants.entry(arrival.request.tenant).or_default()
    }

    /// Submits what has arrived, removes what is cancelled or late.
    fn receive(&mut self) -> Result<(), Violation> {
        while let Some(&Incoming { id, since, .. }) =
            self.incoming.front().filter(|incoming| incoming.at <= self.now)
        {
            self.incoming.pop_front();
            let arrival = self.arrival(id);
            let request = &arrival.request;
            let tokens = request.prompt_tokens + arrival.output;
            if tokens > self.setup.cache_tokens {
                return Err(Violation::TooLarge { id: request.id });
            }
            if self.scheduler.submit(self.now, request.clone()).is_err() {
                self.tenant(arrival).refused += 1;
                self.note(Progress::Ended { id });
                continue;
            }
            self.cancels.extend(arrival.cancel_at.map(|at| (at, request.id)));
            // Without shares all tenants are one.
            let account = if self.config.fair_shares { request.tenant.0 } else { 0 };
            let outstanding = self.outstanding.entry(account).or_default();
            *outstanding += tokens;
            let (clock, ahead) = (self.computed, *outstanding);
            self.live.insert(
                request.id,
                Live { known: request.prompt_tokens, since, clock, ahead, ..Live::default() },
            );
        }
        while let Some(&(at, id)) = self.cancels.first()
            && at <= self.now
        {
            self.cancels.pop_first();
            if self.scheduler.finished(id) {
                self.end(id, false)?;
            }
        }
        while let Some(id) = self.scheduler.expire(self.now) {
            self.end(id, false)?;
        }
        Ok(())
    }

    fn admit(&mut self) -> Result<(), Violation> {
        loop {
            let (free, memory, arrivals) = (self.memory.free_tokens(), &self.memory, self.arrivals);
            let held = |id: RequestId| memory.held_tokens(&arrivals[id.0 as usize]);
            let Some(id) = self.scheduler.admit_sharing(self.now, free, held) else { return Ok(()) };
            let arrival = self.arrival(id);
            let Some(live) = self.live.get_mut(&id) else { return Err(Violation::Work { id }) };
            live.computed = self.memory.find(arrival, live.known, &mut live.table);
            live.found += live.computed.saturating_sub(live.seen);
            live.seen = live.seen.max(live.computed);
            live.runs = true;
            self.scheduler.started(id, live.computed);
            self.report.prompt_tokens += live.known as u64;
            let tokens = self.computed - live.clock;
            let bound = self.slack.bound(arrival.request.tenant.0, live.ahead, self.config.fair_shares);
            let cached = live.computed;
            if !std::mem::replace(&mut live.has_started, true) {
                if tokens > bound {
                    return Err(Violation::Starved { id, tokens, bound });
                }
                self.note(Progress::Started { id, cached });
            }
        }
    }

    fn check_step(&self, step: &[Work]) -> Result<(), Violation> {
        let (tokens, budget) = (step.iter().map(|work| work.tokens).sum(), self.config.step_tokens);
        if tokens > budget {
            return Err(Violation::Budget { tokens, budget });
        }
        for (i, work) in step.iter().enumerate() {
            let missing = self
                .live
                .get(&work.id)
                .map_or(0, |live| if live.runs { live.known - live.computed } else { 0 });
            let is_twice = step[..i].iter().any(|other| other.id == work.id);
            if is_twice || !(1..=missing).contains(&work.tokens) || work.samples != (work.tokens == missing) {
                return Err(Violation::Work { id: work.id });
            }
        }
        let is_shortened = step.iter().any(|work| !work.samples);
        let has_decodes = step.iter().any(|work| work.tokens == 1);
        let (waiting, running) = (self.scheduler.waiting(), self.scheduler.running());
        if (tokens == 0 && waiting + running > 0) || (is_shortened && !has_decodes && tokens < budget) {
            return Err(Violation::Idle { waiting, running, tokens });
        }
        Ok(())
    }

    /// Takes blocks for the tokens of a step; removes the requests that are preempted from it.
    fn allocate(&mut self, step: &mut Vec<Work>) -> Result<(), Violation> {
        for work in step.iter() {
            let id = work.id;
            while let Some(live) = self.live.get_mut(&id).filter(|live| live.runs)
                && !self.memory.grow(&mut live.table, live.computed + work.tokens)
            {
                let victim = self.scheduler.victim(id);
                if victim == id && self.scheduler.running() == 1 {
                    return Err(Violation::TooLarge { id });
                }
                self.preempt(victim)?;
            }
        }
        step.retain(|work| self.live.get(&work.id).is_some_and(|live| live.runs));
        if self.memory.is_within_capacity() { Ok(()) } else { Err(Violation::Capacity) }
    }

    fn preempt(&mut self, id: RequestId) -> Result<(), Violation> {
        let arrival = self.arrival(id);
        let live = self.live.get_mut(&id).filter(|live| live.runs).ok_or(Violation::Work { id })?;
        self.memory.publish(arrival, live.computed, &mut live.table);
        self.memory.release(arrival, &mut live.table);
        (live.runs, live.computed) = (false, 0);
        self.scheduler.preempted(id);
        Ok(())
    }

    /// Ends the step that began last and took `duration`.
    pub(super) fn finish_step(&mut self, duration: Duration) -> Result<(), Violation> {
        let step = std::mem::take(&mut self.step);
        self.now += duration;
        self.report.steps += 1;
        self.report.busy += duration;
        if step.iter().any(|work| work.tokens == 1) {
            let (late, all) = &mut self.report.late_steps;
            *late += u64::from(duration > self.config.token_latency);
            *all += 1;
        }
        self.scheduler.observe(&step, duration);
        for &work in &step {
            self.advance(work)?;
        }
        self.step = step;
        Ok(())
    }

    fn advance(&mut self, work: Work) -> Result<(), Violation> {
        let (id, now, arrival) = (work.id, self.now, self.arrival(work.id));
        let live = self.live.get_mut(&id).ok_or(Violation::Work { id })?;
        let was_prefill = live.computed < arrival.request.prompt_tokens;
        let after = live.computed + work.tokens;
        let new = after.saturating_sub(live.seen.max(live.computed));
        self.computed += work.tokens;
        self.recomputed += work.tokens - new;
        (live.computed, live.seen) = (after, live.seen.max(after));
        self.scheduler.advanced(id, work.tokens, usize::from(work.samples));
        if was_prefill && after >= arrival.request.prompt_tokens {
            self.memory.publish(arrival, after, &mut live.table);
        }
        let sampled = work.samples.then(|| {
            live.known += 1;
            live.generated += 1;
            (live.last_token.replace(now), live.generated == arrival.output)
        });
        let since = live.since;
        if let Some((None, _)) = sampled {
            self.note(Progress::FirstToken { id });
        }
        let report = self.tenant(arrival);
        report.tokens += work.tokens as u64;
        match sampled {
            Some((None, _)) => report.time_to_first_token.add(now - since),
            Some((Some(before), _)) => report.inter_token.add(now - before),
            None => {}
        }
        if sampled.is_some_and(|(_, is_last)| is_last) {
            self.scheduler.finished(id);
            self.end(id, true)?;
        }
        Ok(())
    }

    fn end(&mut self, id: RequestId, is_complete: bool) -> Result<(), Violation> {
        let arrival = self.arrival(id);
        let mut live = self.live.remove(&id).ok_or(Violation::Work { id })?;
        self.memory.publish(arrival, live.computed, &mut live.table);
        self.memory.release(arrival, &mut live.table);
        let tokens = arrival.request.prompt_tokens + arrival.output;
        if is_complete && live.seen + 1 != tokens {
            return Err(Violation::Tokens { counted: live.seen, computed: tokens - 1 });
        }
        let account = if self.config.fair_shares { arrival.request.tenant.0 } else { 0 };
        if let Some(outstanding) = self.outstanding.get_mut(&account) {
            *outstanding -= tokens;
        }
        self.report.statistics.cached += live.found as u64;
        self.report.statistics.prefilled += (live.seen - live.found) as u64;
        let report = self.tenant(arrival);
        *(if is_complete { &mut report.completed } else { &mut report.abandoned }) += 1;
        self.note(Progress::Ended { id });
        Ok(())
    }

    /// Compares the counters of the run with those of the scheduler.
    pub(super) fn finish(mut self) -> Result<Report, Violation> {
        let needed = self.report.statistics.prefilled as usize;
        let statistics = self.scheduler.statistics();
        let counted = (statistics.prefilled + statistics.decoded) as usize;
        for (counted, computed) in [
            (counted, needed),
            (statistics.recomputed as usize, self.recomputed),
            (needed + self.recomputed, self.computed),
        ] {
            if counted != computed {
                return Err(Violation::Tokens { counted, computed });
            }
        }
        let first = self.arrivals.first().map_or(Duration::ZERO, |arrival| arrival.at);
        (self.report.statistics, self.report.duration) = (statistics, self.now.saturating_sub(first));
        Ok(self.report)
    }
}

impl Machine {
    fn duration(&self, step: &[Work], random: &mut Random) -> Duration {
        let decodes = step.iter().filter(|work| work.tokens == 1).count();
        let tokens: usize = step.iter().map(|work| work.tokens).sum();
        let (prefill, decodes) = ((tokens - decodes) as f64, decodes as f64);
        let seconds = self.step.as_secs_f64()
            + self.prefill.as_secs_f64() * prefill
            + self.decode.as_secs_f64() * decodes;
        let noise = (self.noise * random.normal()).exp();
        let outlier = if random.uniform() < self.outliers { 10.0 } else { 1.0 };
        Duration::from_secs_f64(seconds * noise * outlier)
    }
}
