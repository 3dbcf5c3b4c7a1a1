//! The engine's thread: it runs the step loop and nothing else.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;

use super::native::NativeExecutor;
use super::request::Job;
use super::step_loop::StepLoop;
use crate::core::Core;
use crate::session_table::SessionId;
use crate::speculation::Speculator;

/// Message to the thread.
enum Command {
    /// Requests of one prompt.
    Submit(Vec<Job>),
    /// Releases the sequence of a session, then drops the sender.
    EndSession(SessionId, Sender<()>),
}

/// Handle of the thread. Dropping it ends the requests that run, and waits for that.
pub(crate) struct StepThread {
    /// `None` when the thread is to end.
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl StepThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub(crate) fn start(core: Arc<Core>) -> io::Result<Self> {
        let (commands, received) = mpsc::channel();
        let run = move || run(&core, &received);
        let thread = std::thread::Builder::new().name("ruvllm-steps".into()).spawn(run)?;
        Ok(Self { commands: Some(commands), thread: Some(thread) })
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
        if let Some(commands) = &self.commands {
            // A command that nobody receives is dropped, and tells its sender so.
            let _ = commands.send(command);
        }
    }
}

impl Drop for StepThread {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the thread itself; its requests have got an error.
            let _ = thread.join();
        }
    }
}

/// Runs steps until the last sender is gone. What still runs then is dropped, which tells its
/// callers.
fn run(core: &Core, commands: &Receiver<Command>) {
    let (executor, counters) = (NativeExecutor::new(core), Arc::clone(&core.counters));
    let mut config = core.scheduling.clone();
    (config.step_tokens, config.block_tokens) = (core.prefill_chunk, core.kv.block_tokens());
    let mut steps = StepLoop::new(executor, &core.codec, Some(&core.compute.pool), counters, config)
        .with_drafts(Speculator::new(core));
    loop {
        let received = if steps.is_idle() {
            commands.recv().map_err(|_| TryRecvError::Disconnected)
        } else {
            commands.try_recv()
        };
        match received {
            Ok(Command::Submit(jobs)) => steps.submit_choices(jobs),
            Ok(Command::EndSession(session, _done)) => steps.end_session(session),
            Err(TryRecvError::Empty) => steps.iterate(),
            Err(TryRecvError::Disconnected) => return,
        }
    }
}
