//! The event loop of a fleet.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::report::FleetReport;
use super::router::{Router, View};
use super::{Fleet, Loop};
use crate::config::Config;
use crate::request::RequestId;
use crate::simulator::Violation;
use crate::simulator::instance::{Instance, Progress};
use crate::simulator::random::{Random, mix};
use crate::simulator::traffic::Arrival;

/// Next moment of a part; of one time, in the order in which they were entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A request arrives at its router.
    Arrival(usize),
    /// A router has made its choice.
    Selection(usize),
    /// A worker ends a step.
    Step(usize),
}

/// Runs the requests `arrivals`, whose numbers are their positions, on a fleet whose engines have
/// the settings `config`.
///
/// The result depends on the arguments alone; so does each engine's, but for its seed.
///
/// # Errors
/// The first [`Violation`] of an invariant.
pub fn simulate_fleet(
    config: &Config,
    fleet: &Fleet,
    arrivals: &[Arrival],
) -> Result<FleetReport, Violation> {
    let mut run = Run::new(config, fleet, arrivals);
    let first = match fleet.arrivals {
        Loop::Open => 1,
        Loop::Closed { concurrency } => concurrency.max(1),
    };
    (0..first).for_each(|_| run.enter_arrival(Duration::ZERO));
    while let Some(Reverse((now, _, event))) = run.agenda.pop() {
        match event {
            Event::Arrival(index) => run.arrive(now, index),
            Event::Selection(index) => run.select(now, index)?,
            Event::Step(worker) => run.end_step(now, worker)?,
        }
    }
    run.finish()
}

struct Run<'s> {
    fleet: &'s Fleet,
    arrivals: &'s [Arrival],
    instances: Vec<Instance<'s>>,
    /// Duration of each worker's step; `None` if it is idle.
    steps: Vec<Option<Duration>>,
    routers: Vec<Router>,
    view: View,
    agenda: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    entered: u64,
    /// Requests that have entered the agenda.
    next: usize,
    /// Time of arrival, request by request.
    since: Vec<Duration>,
    ended: usize,
    /// Time in steps of each worker before the first request that is measured.
    busy_before: Vec<Duration>,
    /// Arrival of the first request that is measured, and the last arrival of all: the time that
    /// rates count.
    window: Option<(Duration, Duration)>,
    report: FleetReport,
}

impl<'s> Run<'s> {
    fn new(config: &Config, fleet: &'s Fleet, arrivals: &'s [Arrival]) -> Self {
        let workers = fleet.workers.max(1);
        let instance = |worker: usize| {
            // The first one has the seed of a simulation of one engine.
            let seed = fleet.setup.seed ^ mix(worker as u64);
            let mut instance = Instance::new(config, &fleet.setup, arrivals, seed);
            instance.progress = Some(Vec::new());
            instance.memory.changes = Some(Vec::new());
            instance
        };
        let instances: Vec<Instance<'s>> = (0..workers).map(instance).collect();
        let router = |index: usize| {
            let random = Random::new(mix(fleet.setup.seed ^ mix(!(index as u64))));
            Router::new(fleet.policy, workers, config.block_tokens.max(1), random)
        };
        Self {
            fleet,
            arrivals,
            instances,
            steps: vec![None; workers],
            routers: (0..fleet.routers.max(1)).map(router).collect(),
            view: View::new(fleet.event_delay, fleet.event),
            agenda: BinaryHeap::new(),
            entered: 0,
            next: 0,
            since: vec![Duration::ZERO; arrivals.len()],
            ended: 0,
            busy_before: vec![Duration::ZERO; workers],
            window: None,
            report: FleetReport { requests: vec![0; workers], ..FleetReport::default() },
        }
    }

    fn enter(&mut self, at: Duration, event: Event) {
        self.agenda.push(Reverse((at, self.entered, event)));
        self.entered += 1;
    }

    /// Enters the arrival of the next request; `now` is its time in a closed loop.
    fn enter_arrival(&mut self, now: Duration) {
        let Some(arrival) = self.arrivals.get(self.next) else { return };
        let at = if self.fleet.arrivals == Loop::Open { arrival.at } else { now };
        self.enter(at, Event::Arrival(self.next));
        self.next += 1;
    }

    /// True between the arrivals of the first request that is measured and of the last one.
    fn is_window(&self) -> bool {
        self.window.is_some() && self.report.busy.is_empty()
    }

    fn is_measured(&self, id: RequestId) -> bool {
        id.0 as usize >= self.fleet.warm_up
    }

    fn arrive(&mut self, now: Duration, index: usize) {
        if self.fleet.arrivals == Loop::Open {
            self.enter_arrival(now);
        }
        self.since[index] = now;
        if index >= self.fleet.warm_up {
            if self.window.is_none() {
                self.busy_before = self.busy();
            }
            self.window = Some((self.window.map_or(now, |(first, _)| first), now));
            if index + 1 == self.arrivals.len() {
                let time = |(busy, before): (Duration, &Duration)| busy.saturating_sub(*before);
                self.report.busy = self.busy().into_iter().zip(&self.busy_before).map(time).collect();
            }
        }
        let count = self.routers.len();
        let router = &mut self.routers[index % count];
        router.busy_until = router.busy_until.max(now) + self.fleet.selection;
        let at = router.busy_until;
        self.enter(at, Event::Selection(index));
    }

    /// Time of each worker in steps that have ended.
    fn busy(&self) -> Vec<Duration> {
        self.instances.iter().map(|instance| instance.report.busy).collect()
    }

    fn select(&mut self, now: Duration, index: usize) -> Result<(), Violation> {
        self.view.advance(now);
        let (arrival, count) = (&self.arrivals[index], self.routers.len());
        let worker = self.routers[index % count].choose(arrival, &self.view);
        let since = self.since[index];
        if index >= self.fleet.warm_up {
            self.report.routing.add(now - since);
            self.report.requests[worker] += 1;
        }
        self.instances[worker].send(arrival.request.id, now, since);
        if self.steps[worker].is_none() { self.begin_step(now, worker) } else { Ok(()) }
    }

    fn begin_step(&mut self, now: Duration, worker: usize) -> Result<(), Violation> {
        let instance = &mut self.instances[worker];
        instance.now = now;
        self.steps[worker] = instance.begin()?;
        self.collect(now, worker);
        if let Some(duration) = self.steps[worker] {
            self.enter(now + duration, Event::Step(worker));
        }
        Ok(())
    }

    fn end_step(&mut self, now: Duration, worker: usize) -> Result<(), Violation> {
        let duration = self.steps[worker].take().unwrap_or_default();
        self.instances[worker].finish_step(duration)?;
        self.collect(now, worker);
        self.begin_step(now, worker)
    }

    /// Passes on what a worker tells.
    fn collect(&mut self, now: Duration, worker: usize) {
        let instance = &mut self.instances[worker];
        let mut progress = instance.progress.take().unwrap_or_default();
        let changes = instance.memory.changes.replace(Vec::new()).unwrap_or_default();
        for event in progress.drain(..) {
            self.follow(now, event);
        }
        self.instances[worker].progress = Some(progress);
        if self.is_window() {
            let stored = changes.iter().filter(|change| change.is_stored).count();
            self.report.block_events.0 += stored as u64;
            self.report.block_events.1 += (changes.len() - stored) as u64;
        }
        self.view.send(now, worker, changes);
    }

    fn follow(&mut self, now: Duration, event: Progress) {
        let count = self.routers.len();
        match event {
            Progress::Started { id, cached } if self.is_measured(id) => {
                self.report.prompt_tokens += self.arrivals[id.0 as usize].request.prompt_tokens as u64;
                self.report.cached_tokens += cached as u64;
            }
            Progress::Started { .. } => {}
            Progress::FirstToken { id } => {
                self.routers[id.0 as usize % count].prefilled(id);
                if self.is_measured(id) {
                    self.report.time_to_first_token.add(now - self.since[id.0 as usize]);
                }
            }
            Progress::Ended { id } => {
                self.routers[id.0 as usize % count].ended(id);
                self.ended += 1;
                self.report.ended += u64::from(self.is_window());
                if self.fleet.arrivals != Loop::Open {
                    self.enter_arrival(now);
                }
            }
        }
    }

    fn finish(mut self) -> Result<FleetReport, Violation> {
        if self.ended != self.arrivals.len() {
            return Err(Violation::Lost { requests: self.arrivals.len(), ended: self.ended });
        }
        let (first, last) = self.window.unwrap_or_default();
        self.report.window = last - first;
        self.report.event_lag = std::mem::take(&mut self.view.lag);
        for instance in self.instances {
            instance.finish()?;
        }
        Ok(self.report)
    }
}
