//! A router: blocks of the workers as their events tell, requests that it sent, and the choice.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::Policy;
use crate::request::RequestId;
use crate::simulator::memory::Change;
use crate::simulator::random::Random;
use crate::simulator::report::Latencies;
use crate::simulator::traffic::Arrival;

/// Events of one step of a worker.
#[derive(Debug)]
struct Batch {
    sent: Duration,
    applied: Duration,
    worker: usize,
    changes: Vec<Change>,
}

/// Blocks of the workers that the routers know of.
#[derive(Debug, Default)]
pub(super) struct View {
    delay: Duration,
    /// Time per block.
    event: Duration,
    /// Leading blocks of a prefix by worker.
    held: HashMap<u64, HashMap<usize, usize>>,
    pending: VecDeque<Batch>,
    /// End of the work on all batches.
    busy_until: Duration,
    /// Times from the end of a step to the end of the work on its events.
    pub(super) lag: Latencies,
}

impl View {
    pub(super) fn new(delay: Duration, event: Duration) -> Self {
        Self { delay, event, ..Self::default() }
    }

    /// Sends the events of a step at `now`.
    pub(super) fn send(&mut self, now: Duration, worker: usize, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        let work = self.event.saturating_mul(u32::try_from(changes.len()).unwrap_or(u32::MAX));
        let applied = (now + self.delay).max(self.busy_until) + work;
        self.busy_until = applied;
        self.pending.push_back(Batch { sent: now, applied, worker, changes });
    }

    /// Applies the events that are due at `now`.
    pub(super) fn advance(&mut self, now: Duration) {
        while let Some(batch) = self.pending.pop_front_if(|batch| batch.applied <= now) {
            self.lag.add(batch.applied - batch.sent);
            for change in batch.changes {
                let Some(prefix) = change.prefix else { continue };
                let workers = self.held.entry(prefix).or_default();
                let blocks = workers.entry(batch.worker).or_default();
                if change.is_stored {
                    *blocks += 1;
                } else {
                    *blocks = blocks.saturating_sub(1);
                }
                if *blocks == 0 {
                    workers.remove(&batch.worker);
                }
            }
        }
    }

    /// Leading blocks of a prefix that a worker has.
    fn overlap(&self, prefix: Option<u64>, worker: usize) -> usize {
        let workers = prefix.and_then(|prefix| self.held.get(&prefix));
        workers.and_then(|workers| workers.get(&worker)).copied().unwrap_or(0)
    }

    fn holders(&self, prefix: Option<u64>) -> impl Iterator<Item = (usize, usize)> + '_ {
        let workers = prefix.and_then(|prefix| self.held.get(&prefix));
        workers.into_iter().flatten().map(|(&worker, &blocks)| (worker, blocks))
    }
}

/// An unfinished request.
#[derive(Debug)]
struct Booking {
    worker: usize,
    /// Tokens to prefill until its first token.
    prefill: usize,
    own_blocks: usize,
    prefix_blocks: usize,
    prefix: Option<u64>,
}

/// Load of a worker by the requests of one router.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    prefill: usize,
    blocks: usize,
}

/// A router and the requests that it sent.
#[derive(Debug)]
pub(super) struct Router {
    policy: Policy,
    block_tokens: usize,
    random: Random,
    next: usize,
    loads: Vec<Load>,
    bookings: HashMap<RequestId, Booking>,
    /// Unfinished requests of a prefix by worker.
    active: HashMap<u64, HashMap<usize, usize>>,
    costs: Vec<f64>,
    /// End of the selections of all requests that have arrived.
    pub(super) busy_until: Duration,
}

impl Router {
    pub(super) fn new(policy: Policy, workers: usize, block_tokens: usize, random: Random) -> Self {
        Self {
            policy,
            block_tokens,
            random,
            next: 0,
            loads: vec![Load::default(); workers],
            bookings: HashMap::new(),
            active: HashMap::new(),
            costs: Vec::new(),
            busy_until: Duration::ZERO,
        }
    }

    /// Chooses the worker of a request, and counts the request as sent there.
    pub(super) fn choose(&mut self, arrival: &Arrival, view: &View) -> usize {
        let worker = match self.policy {
            Policy::RoundRobin => {
                let worker = self.next % self.loads.len();
                self.next += 1;
                worker
            }
            Policy::KvAware { overlap_credit, prefill_load_scale } => {
                self.set_costs(arrival, view, overlap_credit, prefill_load_scale);
                self.cheapest()
            }
        };
        self.book(arrival, worker, view.overlap(arrival.request.prefix, worker));
        worker
    }

    /// Full blocks of a prompt, and those of its prefix.
    fn blocks(&self, arrival: &Arrival) -> (usize, usize) {
        let prompt = arrival.request.prompt_tokens / self.block_tokens;
        (prompt, (arrival.prefix_tokens / self.block_tokens).min(prompt))
    }

    fn set_costs(&mut self, arrival: &Arrival, view: &View, credit: f64, scale: f64) {
        let (blocks, prefix_blocks) = self.blocks(arrival);
        let (block_tokens, prompt) = (self.block_tokens as f64, arrival.request.prompt_tokens);
        let prefill = |load: &Load, overlap: usize| {
            let raw = (load.prefill + prompt) as f64 / block_tokens;
            scale * (raw - credit * overlap as f64).max(0.0)
        };
        let cost = |load: &Load, overlap: usize| prefill(load, overlap) + (load.blocks + blocks) as f64;
        let Self { loads, costs, active, .. } = self;
        costs.clear();
        costs.extend(loads.iter().map(|load| cost(load, 0)));
        for (worker, overlap) in view.holders(arrival.request.prefix) {
            costs[worker] = cost(&loads[worker], overlap);
        }
        let active = arrival.request.prefix.and_then(|prefix| active.get(&prefix));
        for &worker in active.into_iter().flat_map(HashMap::keys) {
            costs[worker] -= prefix_blocks as f64;
        }
    }

    /// A worker of the lowest cost; each of those with equal probability.
    fn cheapest(&mut self) -> usize {
        let (mut best, mut lowest, mut ties) = (0, f64::INFINITY, 0);
        for (worker, &cost) in self.costs.iter().enumerate() {
            if cost < lowest {
                (best, lowest, ties) = (worker, cost, 1);
            } else if cost == lowest {
                ties += 1;
                if self.random.below(ties) == 0 {
                    best = worker;
                }
            }
        }
        best
    }

    fn book(&mut self, arrival: &Arrival, worker: usize, overlap: usize) {
        let (blocks, prefix_blocks) = self.blocks(arrival);
        let prompt = arrival.request.prompt_tokens;
        let prefill = prompt.saturating_sub(overlap * self.block_tokens);
        let (own_blocks, prefix) = (blocks - prefix_blocks, arrival.request.prefix);
        let load = &mut self.loads[worker];
        load.prefill += prefill;
        load.blocks += own_blocks;
        if let Some(prefix) = prefix {
            let requests = self.active.entry(prefix).or_default().entry(worker).or_default();
            load.blocks += if *requests == 0 { prefix_blocks } else { 0 };
            *requests += 1;
        }
        let booking = Booking { worker, prefill, own_blocks, prefix_blocks, prefix };
        self.bookings.insert(arrival.request.id, booking);
    }

    /// A request has its first token.
    pub(super) fn prefilled(&mut self, id: RequestId) {
        if let Some(booking) = self.bookings.get_mut(&id) {
            self.loads[booking.worker].prefill -= std::mem::take(&mut booking.prefill);
        }
    }

    /// A request has ended.
    pub(super) fn ended(&mut self, id: RequestId) {
        self.prefilled(id);
        let Some(booking) = self.bookings.remove(&id) else { return };
        let load = &mut self.loads[booking.worker];
        load.blocks -= booking.own_blocks;
        let Some(prefix) = booking.prefix else { return };
        let Some(workers) = self.active.get_mut(&prefix) else { return };
        if let Some(requests) = workers.get_mut(&booking.worker) {
            *requests -= 1;
            if *requests == 0 {
                workers.remove(&booking.worker);
                load.blocks -= booking.prefix_blocks;
            }
        }
        if workers.is_empty() {
            self.active.remove(&prefix);
        }
    }
}
