//! Signals that stop the program: Ctrl-C (SIGINT), SIGTERM and SIGHUP. They ask the engine to stop,
//! and end the program if that is not enough.
//!
//! The handler is installed when generation starts. Before that (while a model loads) the system's
//! default applies and a signal ends the program immediately: no file has been begun.

use std::process::{self, ExitCode};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ruvllm::CancelToken;

#[cfg(unix)]
use crate::system;

const SIGINT: u8 = 2;

/// Exit code after Ctrl-C: 128 + SIGINT, as shells report it.
pub(crate) const INTERRUPTED: u8 = 128 + SIGINT;

/// The signal that arrived last.
static LAST: AtomicU8 = AtomicU8::new(SIGINT);

/// Exit code of a command that a signal has stopped: 128 + the signal, as shells report it.
pub(crate) fn exit_code() -> ExitCode {
    ExitCode::from(128 + LAST.load(Ordering::Relaxed))
}

/// Returns a token that the first signal cancels; the second signal ends the program at once.
///
/// If the handler cannot be installed, signals keep their default action; that is no error.
pub(crate) fn cancel_on_interrupt() -> CancelToken {
    let token = CancelToken::new();
    // The token is registered before the handler exists: no signal may find nothing to cancel.
    Interrupts::take_over(State {
        running: Some(token.clone()),
        presses: 0,
        presses_to_end: 2,
        ends_idle: true,
        is_ending: false,
    });
    token
}

/// Makes a write beyond the limit of file sizes (`ulimit -f`) an error. By default the signal
/// SIGXFSZ ends the program, which leaves temporary files.
pub(crate) fn report_file_size_limit() {
    #[cfg(unix)]
    // The flag is never read: a handler of any kind makes the write return the error. Without the
    // handler the default action stays.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
}

/// Signal handling of a conversation: Ctrl-C stops the answer in progress. SIGTERM and SIGHUP stop
/// the answer and then the program.
pub(crate) struct Interrupts(Arc<Mutex<State>>);

struct State {
    /// Cancels the work in progress; `None` between two answers.
    running: Option<CancelToken>,
    presses: usize,
    /// Number of signals during one answer that ends the program.
    presses_to_end: usize,
    /// True if Ctrl-C between two answers ends the program.
    ends_idle: bool,
    /// True once SIGTERM or SIGHUP has arrived.
    is_ending: bool,
}

impl State {
    /// Records a signal; true if the program is to end at once.
    fn receive(&mut self, signal: u8) -> bool {
        self.presses += 1;
        self.is_ending |= signal != SIGINT;
        match &self.running {
            Some(token) => {
                token.cancel();
                self.presses >= self.presses_to_end
            }
            None => self.ends_idle || self.is_ending,
        }
    }
}

impl Interrupts {
    /// Installs the handler. `presses_to_end` signals during one answer end the program; with
    /// `ends_idle`, so does one Ctrl-C between answers.
    pub(crate) fn install(presses_to_end: usize, ends_idle: bool) -> Self {
        Self::take_over(State { running: None, presses: 0, presses_to_end, ends_idle, is_ending: false })
    }

    fn take_over(state: State) -> Self {
        let state = Arc::new(Mutex::new(state));
        let handle = Arc::clone(&state);
        on_signal(move |signal| {
            LAST.store(signal, Ordering::Relaxed);
            if lock(&handle).receive(signal) {
                process::exit(128 + i32::from(signal));
            }
        });
        Self(state)
    }

    /// Begins an answer; signals cancel the returned token.
    pub(crate) fn begin(&self) -> CancelToken {
        let token = CancelToken::new();
        let mut state = lock(&self.0);
        state.running = Some(token.clone());
        state.presses = 0;
        token
    }

    /// Ends the answer: signals have nothing to cancel.
    pub(crate) fn end(&self) {
        lock(&self.0).running = None;
    }

    /// True once a signal has asked the program to end after the answer in progress.
    pub(crate) fn is_ending(&self) -> bool {
        lock(&self.0).is_ending
    }
}

/// Calls `receive` with the number of each signal, on a separate thread. If the handler cannot be
/// installed, the default action stays.
#[cfg(unix)]
fn on_signal(mut receive: impl FnMut(u8) + Send + 'static) {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::SignalsInfo;
    use signal_hook::iterator::exfiltrator::raw::WithRawSiginfo;

    // `nohup` starts a program with SIGHUP ignored, which must stay so.
    let takes_hangup = system::is_ignored(SIGHUP) == Some(false);
    let listened = [SIGINT, SIGTERM].into_iter().chain(takes_hangup.then_some(SIGHUP));
    // Not `Signals`, which counts two of a kind as one until the thread has seen the first.
    if let Ok(mut signals) = SignalsInfo::<WithRawSiginfo>::new(listened) {
        let forward = move || signals.forever().for_each(|info| receive(info.si_signo as u8));
        // Without the thread all signals would be lost.
        std::thread::Builder::new().name("signals".into()).spawn(forward).expect("a thread for signals");
    }
}

/// Calls `receive` for each Ctrl-C. If the handler cannot be installed, the default action stays.
#[cfg(not(unix))]
fn on_signal(mut receive: impl FnMut(u8) + Send + 'static) {
    let _ = ctrlc::set_handler(move || receive(SIGINT));
}

/// Locks the state, poisoned or not: every state that a panic can leave is valid.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGTERM: u8 = 15;

    fn state(running: Option<CancelToken>, ends_idle: bool) -> State {
        State { running, presses: 0, presses_to_end: 3, ends_idle, is_ending: false }
    }

    #[test]
    fn the_first_signal_cancels_and_the_last_ends() {
        let token = CancelToken::new();
        let mut state = state(Some(token.clone()), false);
        assert!(!state.receive(SIGINT) && token.is_cancelled());
        assert!(!state.receive(SIGINT) && state.receive(SIGINT));
        assert!(!state.is_ending);
    }

    #[test]
    fn a_request_to_terminate_ends_an_idle_program() {
        assert!(!state(None, false).receive(SIGINT));
        assert!(state(None, true).receive(SIGINT));
        assert!(state(None, false).receive(SIGTERM));
        let mut busy = state(Some(CancelToken::new()), false);
        assert!(!busy.receive(SIGTERM) && busy.is_ending);
    }
}
