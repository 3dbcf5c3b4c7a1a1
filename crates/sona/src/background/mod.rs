//! Background loop: runs learning tasks on a thread of its own within a share of one CPU.

mod clock;
mod control;
mod pace;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::{Error, Result};
use control::Control;
pub use control::{Status, TaskStatus};
pub use pace::Pace;

/// Settings of the background loop.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct BackgroundSettings {
    /// Time between two runs of the tasks.
    pub interval: Duration,
    /// Number of new trajectories that starts a run earlier.
    pub trajectories: u64,
    /// Largest share of one CPU, above 0 to 1. Counted is the CPU time of the thread; a task
    /// exceeds it between two calls of [`Pace::rest`] only, and rests longer then.
    pub cpu_share: f64,
}

impl Default for BackgroundSettings {
    fn default() -> Self {
        Self { interval: Duration::from_millis(100), trajectories: 32, cpu_share: 0.1 }
    }
}

/// Outcome of a run of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Run {
    /// It did something; the report says what.
    Done(String),
    /// It did nothing, for this reason.
    Skipped(String),
}

/// Task of the background loop: consolidation, merging of patterns, refreshing of routes.
pub trait Task: Send {
    /// Name in the status.
    fn name(&self) -> &str;

    /// Runs once. `new_trajectories` came since the last run of the tasks. Long work calls
    /// [`Pace::rest`] between its pieces and returns when that is false.
    ///
    /// # Errors
    /// Any; it is reported, and the task runs again next time.
    fn run(
        &mut self,
        new_trajectories: u64,
        pace: &mut Pace<'_>,
    ) -> Result<Run, Box<dyn std::error::Error + Send + Sync>>;
}

/// Handle of the background loop. Dropping it stops the loop and waits for its thread.
#[derive(Debug)]
pub struct Background {
    control: Arc<Control>,
    trajectories: u64,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts the loop with its tasks, which run in order at each wake. A task that panics no
    /// longer runs; the others do.
    ///
    /// # Errors
    /// [`Error::Setting`] for a share outside (0, 1] or an interval or number of trajectories of 0,
    /// or two tasks of one name; [`Error::Thread`].
    pub fn start(tasks: Vec<Box<dyn Task>>, settings: BackgroundSettings) -> Result<Self> {
        let BackgroundSettings { interval, trajectories, cpu_share } = settings;
        let refuse = |name, value: String, range| Err(Error::Setting { name, value, range });
        if !(cpu_share > 0.0 && cpu_share <= 1.0) {
            return refuse("cpu_share", cpu_share.to_string(), "above 0, at most 1");
        }
        if interval.is_zero() {
            return refuse("interval", "0".to_owned(), "above 0");
        }
        if trajectories == 0 {
            return refuse("trajectories", "0".to_owned(), "at least 1");
        }
        let control = Arc::new(Control::default());
        for task in &tasks {
            let former = control.lock().status.tasks.insert(task.name().to_owned(), TaskStatus::default());
            if former.is_some() {
                return refuse("name of a task", task.name().to_owned(), "different from all others");
            }
        }
        let shared = Arc::clone(&control);
        let thread = std::thread::Builder::new()
            .name("sona-background".to_owned())
            .spawn(move || {
                run(tasks, settings, &shared);
                shared.change(|state| state.status.stopped = true);
            })
            .map_err(Error::Thread)?;
        Ok(Self { control, trajectories, thread: Some(thread) })
    }

    /// Counts new trajectories; enough of them wake the loop. Never waits for a task.
    pub fn notify(&self, trajectories: u64) {
        let mut state = self.control.lock();
        let count = &mut state.status.new_trajectories;
        *count = count.saturating_add(trajectories);
        let wake = *count >= self.trajectories;
        drop(state);
        if wake {
            self.control.change(|_| ());
        }
    }

    /// Pauses the loop: at once between tasks, within a task at its next [`Pace::rest`].
    pub fn pause(&self) {
        self.control.change(|state| state.status.paused = true);
    }

    /// Ends a pause.
    pub fn resume(&self) {
        self.control.change(|state| state.status.paused = false);
    }

    /// State of the loop. Its times are those of the last rest or end of a task.
    pub fn status(&self) -> Status {
        self.control.lock().status.clone()
    }

    /// Stops the loop, waits for its thread and returns the last state.
    pub fn stop(mut self) -> Status {
        self.join();
        self.status()
    }

    fn join(&mut self) {
        self.control.change(|state| state.stop = true);
        if let Some(thread) = self.thread.take() {
            // Panics of tasks were caught; one of a task's destructor is not of interest any more.
            drop(thread.join());
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.join();
    }
}

/// Body of the thread.
fn run(mut tasks: Vec<Box<dyn Task>>, settings: BackgroundSettings, control: &Control) {
    let mut pace = Pace::new(control, settings.cpu_share);
    loop {
        let few = |state: &control::State| state.status.new_trajectories < settings.trajectories;
        if !control.wait(settings.interval, few) || !pace.rest() {
            return;
        }
        let new_trajectories = {
            let status = &mut control.lock().status;
            status.wakes += 1;
            std::mem::take(&mut status.new_trajectories)
        };
        let mut index = 0;
        while index < tasks.len() {
            match run_task(&mut *tasks[index], new_trajectories, &mut pace, control) {
                true => index += 1,
                false => {
                    // Its destructor may panic too.
                    let broken = tasks.remove(index);
                    drop(catch_unwind(AssertUnwindSafe(move || drop(broken))));
                }
            }
            if !pace.rest() {
                return;
            }
        }
    }
}

/// Runs a task and writes its status; false if it panicked.
fn run_task(task: &mut dyn Task, new_trajectories: u64, pace: &mut Pace<'_>, control: &Control) -> bool {
    let name = task.name().to_owned();
    let before = pace.cpu_time();
    let result = catch_unwind(AssertUnwindSafe(|| task.run(new_trajectories, pace)));
    let cpu_time = pace.cpu_time().saturating_sub(before);
    let mut state = control.lock();
    let status = state.status.tasks.entry(name).or_default();
    status.cpu_time += cpu_time;
    let result = match result {
        Ok(result) => result,
        Err(panic) => {
            status.panic = Some(message(&*panic));
            return false;
        }
    };
    status.runs += 1;
    match result {
        Ok(Run::Done(report)) => {
            status.done += 1;
            status.last = Some(report);
        }
        Ok(Run::Skipped(reason)) => status.last = Some(reason),
        Err(error) => {
            status.failures += 1;
            status.last_error = Some(error.to_string());
        }
    }
    true
}

/// Text of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}
