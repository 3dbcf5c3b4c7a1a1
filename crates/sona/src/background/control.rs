//! State that the background thread shares with its handle.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Counters of a task. Numbers are measured; what did not happen is absent or 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskStatus {
    /// Runs that ended, with or without an error.
    pub runs: u64,
    /// Runs that did something.
    pub done: u64,
    /// Runs that ended with an error.
    pub failures: u64,
    /// CPU time of all runs.
    pub cpu_time: Duration,
    /// Report of the last run that did something, or the reason why the last one did nothing.
    pub last: Option<String>,
    /// Last error.
    pub last_error: Option<String>,
    /// Message of the panic after which the task no longer runs: its state may be broken.
    pub panic: Option<String>,
}

/// State of the background loop.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Times the loop ran its tasks.
    pub wakes: u64,
    /// The loop is paused.
    pub paused: bool,
    /// The thread has ended.
    pub stopped: bool,
    /// CPU time of the thread.
    pub cpu_time: Duration,
    /// Time since the start, without pauses.
    pub active_time: Duration,
    /// Trajectories that no task has seen.
    pub new_trajectories: u64,
    /// Tasks by name.
    pub tasks: BTreeMap<String, TaskStatus>,
}

/// Shared state.
#[derive(Debug, Default)]
pub(super) struct Control {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) stop: bool,
    pub(super) status: Status,
}

impl Control {
    /// The state. It is consistent between all statements, so that a panic elsewhere does not
    /// matter.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits while `wait` is true, at most for `time`; false if the loop has to stop.
    pub(super) fn wait(&self, time: Duration, mut wait: impl FnMut(&State) -> bool) -> bool {
        let end = Instant::now() + time;
        let mut state = self.lock();
        while !state.stop && wait(&state) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        !state.stop
    }

    /// Waits while paused; the time it took. `None` if the loop has to stop.
    pub(super) fn wait_while_paused(&self) -> Option<Duration> {
        let mut state = self.lock();
        let start = Instant::now();
        let was_paused = state.status.paused;
        while !state.stop && state.status.paused {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let paused = if was_paused { start.elapsed() } else { Duration::ZERO };
        (!state.stop).then_some(paused)
    }
}
