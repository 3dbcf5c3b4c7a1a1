//! The state machine.

mod admit;
mod preempt;
mod step;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::config::Config;
use crate::cost::StepCost;
use crate::entries::{Entries, Entry, Place, Slot};
use crate::prefixes::{self, Prefixes};
use crate::queue::Queue;
use crate::rank::Rank;
use crate::rates::Rates;
use crate::request::{Refusal, Request, RequestId, TenantId};
use crate::shares::Rounds;
use crate::statistics::Statistics;

/// Larger numbers of tokens count as this one, so that sums of them are exact.
const MAX_TOKENS: usize = 1 << 30;

/// Decides which tokens of which requests are computed in the next step.
///
/// With `n` waiting requests, `t` tenants and `r` running requests, [`submit`](Self::submit) takes
/// O(log n + log t), apart from a look at all tenants once per
/// [`Config::tenant_memory`](crate::Config::tenant_memory). [`finished`](Self::finished),
/// [`expire`](Self::expire), [`preempted`](Self::preempted) and [`admit`](Self::admit) take O(log
/// n + log t + r). [`advanced`](Self::advanced) takes O(log t), and [`plan`](Self::plan) O(r + c p)
/// for `c` chunks of `p` unfinished prompts, without allocating.
///
/// Between tenants shares come first: deficit round robin decides how much each is served, the
/// priority of its first request when within a round. Within a tenant priority and age decide.
#[derive(Debug)]
pub struct Scheduler {
    config: Config,
    entries: Entries,
    queue: Queue,
    prefixes: Prefixes,
    running: Vec<Slot>,
    /// Request that did not fit, and the time since when others pass it.
    blocked: Option<(Slot, Duration)>,
    deadlines: BTreeSet<(Duration, Slot)>,
    /// Shares of the computed tokens.
    computed: Rounds,
    cost: StepCost,
    rates: Rates,
    statistics: Statistics,
    scratch: step::Scratch,
    waiting: usize,
    waiting_prompt: usize,
    waiting_output: usize,
    /// Refused requests that were told when to come back, less the places that came free.
    booked: usize,
    /// Sum of the running requests' claims: tokens of KV cache that they still need.
    claimed: usize,
    /// Tokens of the running requests in the KV cache.
    tokens: usize,
    submissions: u64,
    /// Latest time that was passed in.
    now: Duration,
}

impl Scheduler {
    /// A scheduler without requests. Settings outside their range count as the nearest inside.
    pub fn new(config: Config) -> Self {
        let config = config.bounded();
        let rounds = Rounds::new(&config);
        Self {
            entries: Entries::default(),
            queue: Queue::new(rounds.clone(), config.fair_shares),
            prefixes: Prefixes::default(),
            running: Vec::new(),
            blocked: None,
            deadlines: BTreeSet::new(),
            computed: rounds,
            cost: StepCost::default(),
            rates: Rates::new(),
            statistics: Statistics::default(),
            scratch: step::Scratch::default(),
            waiting: 0,
            waiting_prompt: 0,
            waiting_output: 0,
            booked: 0,
            claimed: 0,
            tokens: 0,
            submissions: 0,
            now: Duration::ZERO,
            config,
        }
    }

    /// Sets the weight of a tenant, which is 1 else: its share is proportional to it. The weight is
    /// limited to 1/1024 to 1024.
    pub fn set_weight(&mut self, tenant: TenantId, weight: f64) {
        let at = self.tenant(tenant);
        self.queue.tenants.set_weight(at, weight);
    }

    /// Changes the largest number of sequences and of tokens in a step from the next one on; at
    /// least 1 each. Running requests go on, also where they are more now.
    pub fn set_limits(&mut self, max_running: usize, step_tokens: usize) {
        self.config.max_running = max_running.max(1);
        self.config.step_tokens = step_tokens.max(1);
    }

    /// Takes a request into the queue.
    ///
    /// # Errors
    /// [`Refusal`] if the queue is full, the deadline has passed, the prompt is empty or the number
    /// is in use.
    pub fn submit(&mut self, now: Duration, mut request: Request) -> Result<(), Refusal> {
        self.now = self.now.max(now);
        request.prompt_tokens = request.prompt_tokens.min(MAX_TOKENS);
        request.max_new_tokens = request.max_new_tokens.min(MAX_TOKENS);
        request.priority = request.priority.clamp(-self.config.max_priority, self.config.max_priority);
        if let Err(refusal) = self.check(now, &request) {
            match refusal {
                Refusal::QueueFull { .. } => self.statistics.refused_queue_full += 1,
                Refusal::TenantQueueFull { .. } => self.statistics.refused_tenant_queue_full += 1,
                Refusal::Late { .. } => self.statistics.refused_late += 1,
                Refusal::EmptyPrompt | Refusal::NumberInUse { .. } => {
                    self.statistics.refused_malformed += 1;
                }
            }
            return Err(refusal);
        }
        self.queue.tenants.forget(now, self.config.tenant_memory);
        let tenant = self.tenant(request.tenant);
        self.queue.tenants.get_mut(tenant).last_seen = now;
        let rank = Rank::new(&self.config, now, request.priority, self.submissions);
        self.submissions += 1;
        let (deadline, known) = (request.deadline, request.prompt_tokens);
        let slot = self.entries.insert(Entry {
            request,
            tenant,
            rank,
            submitted: now,
            since: now,
            waited_again: Duration::ZERO,
            was_preempted: false,
            place: Place::Queued,
            held_until: None,
            known,
            computed: 0,
            prefill_end: known,
            seen: 0,
            charged: 0,
            claim: 0,
            leads: false,
            is_suspended: false,
        });
        self.deadlines.extend(deadline.map(|deadline| (deadline, slot)));
        self.count_waiting(slot, true);
        self.enqueue(slot);
        self.statistics.submitted += 1;
        Ok(())
    }

    fn check(&mut self, now: Duration, request: &Request) -> Result<(), Refusal> {
        if let Some(late) = request.deadline.and_then(|deadline| now.checked_sub(deadline)) {
            return Err(Refusal::Late { late });
        }
        if request.prompt_tokens == 0 {
            return Err(Refusal::EmptyPrompt);
        }
        if self.entries.contains(request.id) {
            return Err(Refusal::NumberInUse { id: request.id });
        }
        if self.waiting >= self.config.max_waiting {
            self.booked = (self.booked + 1).min(self.waiting.max(1));
            let tokens = self.mean_tokens(self.waiting, self.waiting_prompt, self.waiting_output);
            let retry_after = self.rates.time_for(tokens * self.booked as f64);
            return Err(Refusal::QueueFull { waiting: self.waiting, retry_after });
        }
        let Some(at) = self.queue.tenants.find(request.tenant) else { return Ok(()) };
        let tenant = self.queue.tenants.get_mut(at);
        if tenant.waiting >= self.config.max_waiting_per_tenant {
            tenant.booked = (tenant.booked + 1).min(tenant.waiting.max(1));
            let (waiting, booked, weight) = (tenant.waiting, tenant.booked as f64, tenant.weight);
            let (prompt, output) = (tenant.waiting_prompt, tenant.waiting_output);
            let tokens = self.mean_tokens(waiting, prompt, output);
            let slowdown = if self.config.fair_shares {
                self.queue.tenants.weight_beside(at) / weight
            } else {
                self.waiting as f64 / waiting.max(1) as f64
            };
            let retry_after = self.rates.time_for(tokens * booked * slowdown);
            return Err(Refusal::TenantQueueFull { waiting, retry_after });
        }
        Ok(())
    }

    /// Tokens per waiting request, with the output that is expected of it.
    fn mean_tokens(&self, waiting: usize, prompt: usize, output: usize) -> f64 {
        (prompt + self.rates.expected_output(output)) as f64 / waiting.max(1) as f64
    }

    /// Removes a waiting or running request; true if it was there.
    pub fn finished(&mut self, id: RequestId) -> bool {
        let Some(slot) = self.entries.slot(id) else { return false };
        self.remove(slot);
        self.statistics.finished += 1;
        true
    }

    /// Removes a request whose deadline has passed, waiting or running; the earliest deadline
    /// first.
    pub fn expire(&mut self, now: Duration) -> Option<RequestId> {
        self.now = self.now.max(now);
        let &(_, slot) = self.deadlines.first().filter(|(deadline, _)| *deadline <= now)?;
        let id = self.entries.get(slot).request.id;
        self.remove(slot);
        self.statistics.expired += 1;
        Some(id)
    }

    /// Number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Number of running requests, suspended ones included.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Takes a running request out of the next steps until [`resumed`](Self::resumed): it waits for
    /// something else than its turn, such as a file that is read. It keeps its place and its claim
    /// to memory.
    pub fn suspended(&mut self, id: RequestId) {
        self.suspend(id, true);
    }

    /// Resumes a suspended request: it takes part in steps again.
    pub fn resumed(&mut self, id: RequestId) {
        self.suspend(id, false);
    }

    fn suspend(&mut self, id: RequestId, is_suspended: bool) {
        if let Some(slot) = self.entries.slot(id) {
            self.entries.get_mut(slot).is_suspended = is_suspended;
        }
    }

    /// True if there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.waiting == 0 && self.running.is_empty()
    }

    /// Counters since the start.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Expected duration of a step from measured ones; absent before the first.
    pub fn expected_step(&self, prefill_tokens: usize, decoding: usize) -> Option<Duration> {
        self.cost.expected(prefill_tokens, decoding)
    }

    fn tenant(&mut self, id: TenantId) -> usize {
        let (admission, computed) = (self.queue.rounds.open(), self.computed.open());
        self.queue.tenants.find_or_insert(id, admission, computed)
    }

    /// Takes a request out of every list.
    fn remove(&mut self, slot: Slot) {
        let entry = self.entries.get(slot);
        let (tenant, place) = (entry.tenant, entry.place);
        let in_vain = entry.charged.saturating_sub(entry.seen);
        if let Some(deadline) = entry.request.deadline {
            self.deadlines.remove(&(deadline, slot));
        }
        if place == Place::Running {
            let generated = entry.known - entry.request.prompt_tokens;
            self.rates.ended(generated, entry.request.max_new_tokens);
            self.stop(slot);
        } else {
            self.leave_queue(slot);
            self.count_waiting(slot, false);
        }
        self.queue.refund(tenant, in_vain);
        self.update_turn(tenant);
        self.entries.remove(slot);
    }

    /// Puts a waiting request into the queue of its tenant.
    fn enqueue(&mut self, slot: Slot) {
        let entry = self.entries.get_mut(slot);
        entry.place = Place::Queued;
        let (tenant, rank) = (entry.tenant, entry.rank);
        let prefix = prefixes::key(entry, self.config.prefix_ordering);
        self.queue.insert(tenant, rank, slot, prefix);
        self.update_turn(tenant);
    }

    /// Takes a waiting request out of the list in which it waits.
    fn leave_queue(&mut self, slot: Slot) {
        let entry = self.entries.get(slot);
        let (tenant, rank) = (entry.tenant, entry.rank);
        let prefix = prefixes::key(entry, self.config.prefix_ordering);
        match entry.place {
            Place::Queued => self.queue.remove(tenant, rank, slot, prefix),
            Place::Held => {
                if let (Some(hash), Some(until)) = (prefix, entry.held_until) {
                    self.prefixes.unhold(hash, rank, slot, until);
                }
            }
            Place::Blocked => self.blocked = None,
            Place::Running => {}
        }
        self.update_turn(tenant);
    }

    /// Counts a request among the waiting ones, or no longer.
    fn count_waiting(&mut self, slot: Slot, is_waiting: bool) {
        let entry = self.entries.get(slot);
        let (prompt, output) = (entry.known, entry.output_left());
        let add = |count: &mut usize, part: usize| {
            *count = if is_waiting { count.saturating_add(part) } else { count.saturating_sub(part) };
        };
        add(&mut self.waiting, 1);
        add(&mut self.waiting_prompt, prompt);
        add(&mut self.waiting_output, output);
        self.queue.tenants.count(entry.tenant, |tenant| {
            add(&mut tenant.waiting, 1);
            add(&mut tenant.waiting_prompt, prompt);
            add(&mut tenant.waiting_output, output);
        });
    }

    fn update_turn(&mut self, tenant: usize) {
        let Self { queue, entries, .. } = self;
        queue.update(tenant, |slot| entries.get(slot).request.priority);
    }
}
