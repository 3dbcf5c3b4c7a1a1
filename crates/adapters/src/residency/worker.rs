//! Background thread: loads adapters for requests that wait, ahead of others, and moves adapters
//! between tiers.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::thread;

use parking_lot::{Condvar, Mutex};
use ruvllm_kernels::low_rank::FactorFormat;

use super::{Acquired, AdapterVersion, Residency};
use crate::error::Result;

/// Longest queue of prefetches. What would be loaded later than these has left memory again when
/// its request starts.
const PREFETCHES: usize = 64;

/// Load for a request that waits for it.
pub(super) struct Load {
    pub(super) version: Arc<AdapterVersion>,
    /// Format that the request began with.
    pub(super) format: Option<FactorFormat>,
    pub(super) done: Box<dyn FnOnce(Result<Acquired>) + Send>,
}

enum Work {
    Load(Load),
    Settle,
    Prefetch(Arc<AdapterVersion>),
}

/// Work of the thread.
#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    loads: VecDeque<Load>,
    /// Moves between tiers are due.
    is_due: bool,
    prefetches: VecDeque<Arc<AdapterVersion>>,
    has_ended: bool,
}

impl State {
    /// The next piece of work: requests wait for loads, then the limits of the tiers, then what may
    /// be wanted.
    fn next(&mut self) -> Option<Work> {
        if let Some(load) = self.loads.pop_front() {
            return Some(Work::Load(load));
        }
        if std::mem::take(&mut self.is_due) {
            return Some(Work::Settle);
        }
        self.prefetches.pop_front().map(Work::Prefetch)
    }
}

impl Queue {
    fn push(&self, push: impl FnOnce(&mut State)) {
        push(&mut self.state.lock());
        self.arrived.notify_one();
    }

    /// Waits for work; `None` at the end.
    fn next(&self) -> Option<Work> {
        let mut state = self.state.lock();
        loop {
            if state.has_ended {
                return None;
            }
            if let Some(work) = state.next() {
                return Some(work);
            }
            self.arrived.wait(&mut state);
        }
    }
}

/// Handle of the thread, which ends when this is dropped.
pub(super) struct Worker {
    queue: Arc<Queue>,
}

impl Worker {
    pub(super) fn start(residency: Weak<Residency>) -> Option<Self> {
        let queue = Arc::new(Queue::default());
        let work = Arc::clone(&queue);
        let thread = thread::Builder::new().name("ruvllm-adapters".to_owned());
        thread.spawn(move || run(&residency, &work)).ok()?;
        Some(Self { queue })
    }

    pub(super) fn load(&self, load: Load) {
        self.queue.push(|state| state.loads.push_back(load));
    }

    pub(super) fn prefetch(&self, version: &Arc<AdapterVersion>) {
        self.queue.push(|state| {
            if state.prefetches.len() < PREFETCHES {
                state.prefetches.push_back(Arc::clone(version));
            }
        });
    }

    pub(super) fn settle(&self) {
        self.queue.push(|state| state.is_due = true);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.queue.push(|state| state.has_ended = true);
    }
}

fn run(residency: &Weak<Residency>, queue: &Queue) {
    while let Some(work) = queue.next() {
        // Held for one piece of work only, so that the table ends with its last other owner.
        let Some(residency) = residency.upgrade() else { return };
        match work {
            Work::Load(load) => residency.finish(load),
            Work::Prefetch(version) => residency.load_ahead(&version),
            // One move at a time, so that a load waits for no more than that.
            Work::Settle => {
                if residency.settle_one().is_some() {
                    queue.push(|state| state.is_due = true);
                }
            }
        }
    }
}
