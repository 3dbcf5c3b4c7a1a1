//! The engine's thread: it runs the step loop and nothing else.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::job::Job;
use super::native::NativeExecutor;
use super::step_loop::{AdapterLoader, Loaded, StepLoop};
use crate::core::Core;
use crate::session_table::SessionId;
use crate::speculation::Speculator;

/// Longest wait for an adapter before deadlines and cancelled requests are looked at.
const GLANCE: Duration = Duration::from_millis(10);

/// Message to the thread.
enum Command {
    /// Requests of one prompt.
    Submit(Vec<Job>),
    /// Releases the sequence of a session, then drops the sender.
    EndSession(SessionId, Sender<()>),
    /// Factors for a request.
    Loaded(Box<Loaded>),
    /// Ends the thread.
    Stop,
}

/// Handle of the thread. Dropping it ends the requests that run, and waits for that.
pub(crate) struct StepThread {
    commands: Sender<Command>,
    thread: Option<JoinHandle<()>>,
}

impl StepThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub(crate) fn start(core: Arc<Core>) -> io::Result<Self> {
        let (commands, received) = mpsc::channel();
        let loads = commands.clone();
        let run = move || run(&core, &received, loads);
        let thread = std::thread::Builder::new().name("ruvllm-steps".into()).spawn(run)?;
        Ok(Self { commands, thread: Some(thread) })
    }

    /// Hands the jobs of one prompt over. Their outlets report a thread that has stopped.
    pub(crate) fn submit(&self, jobs: Vec<Job>) {
        self.send(Command::Submit(jobs));
    }

    /// Releases the sequence of a session and waits for that.
    pub(crate) fn end_session(&self, session: SessionId) {
        let (done, released) = mpsc::channel();
        self.send(Command::EndSession(session, done));
        // Both a message and a dropped sender mean that the sequence is gone.
        let _ = released.recv();
    }

    fn send(&self, command: Command) {
        // A command that nobody receives is dropped, and tells its sender so.
        let _ = self.commands.send(command);
    }
}

impl Drop for StepThread {
    fn drop(&mut self) {
        self.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the thread itself; its requests have got an error.
            let _ = thread.join();
        }
    }
}

/// Runs steps until it is stopped. What still runs then is dropped, which tells its callers. What
/// is loaded for requests comes through `loads`.
fn run(core: &Core, commands: &Receiver<Command>, loads: Sender<Command>) {
    let (executor, counters) = (NativeExecutor::new(core), Arc::clone(&core.counters));
    let mut config = core.scheduling.clone();
    (config.step_tokens, config.block_tokens) = (core.prefill_chunk, core.kv.block_tokens());
    let mut steps = StepLoop::new(executor, &core.codec, Some(&core.compute.pool), counters, config)
        .with_drafts(Speculator::new(core))
        .with_adapters(AdapterLoader {
            residency: Arc::clone(&core.residency),
            // Without the thread nobody waits.
            send: Arc::new(move |loaded: Loaded| drop(loads.send(Command::Loaded(Box::new(loaded))))),
        });
    if let Some(tuning) = &core.tuning {
        steps = steps.with_tuning(tuning);
    }
    loop {
        let received = if steps.is_idle() {
            commands.recv().map_err(|_| TryRecvError::Disconnected)
        } else if steps.is_waiting() {
            commands.recv_timeout(GLANCE).map_err(|error| match error {
                RecvTimeoutError::Timeout => TryRecvError::Empty,
                RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
            })
        } else {
            commands.try_recv()
        };
        match received {
            Ok(Command::Submit(jobs)) => steps.submit_choices(jobs),
            Ok(Command::EndSession(session, _done)) => steps.end_session(session),
            Ok(Command::Loaded(loaded)) => steps.loaded(*loaded),
            Err(TryRecvError::Empty) => steps.iterate(),
            Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return,
        }
    }
}
