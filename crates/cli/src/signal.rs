//! Ctrl-C: asks the engine to stop, and ends the program when that is not enough.
//!
//! The handler is installed when generation starts. Before that (while a model loads) the system's
//! default applies and Ctrl-C ends the program immediately, which is what one wants there.

use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ruvllm::CancelToken;

/// Exit code after Ctrl-C: 128 + SIGINT, as shells report it.
pub(crate) const INTERRUPTED: u8 = 130;

/// A token that the first Ctrl-C from now on cancels; the second ends the program at once.
///
/// When the handler cannot be installed, Ctrl-C keeps ending the program at once; that is no reason
/// to fail.
pub(crate) fn cancel_on_interrupt() -> CancelToken {
    let token = CancelToken::new();
    // It runs before the handler is there: no press may find nothing to stop.
    Interrupts::take_over(State {
        running: Some(token.clone()),
        presses: 0,
        presses_to_end: 2,
        ends_idle: true,
    });
    token
}

/// Ctrl-C in a program that answers again and again: what it stops is what runs at the time.
pub(crate) struct Interrupts(Arc<Mutex<State>>);

struct State {
    /// Running answer; `None` between two answers.
    running: Option<CancelToken>,
    presses: usize,
    /// Number of presses during one answer that end the program.
    presses_to_end: usize,
    /// True if a press ends the program when nothing runs.
    ends_idle: bool,
}

impl Interrupts {
    /// Takes Ctrl-C over. `presses_to_end` of them while one answer runs end the program, and with
    /// `ends_idle` one while none does.
    pub(crate) fn install(presses_to_end: usize, ends_idle: bool) -> Self {
        Self::take_over(State { running: None, presses: 0, presses_to_end, ends_idle })
    }

    fn take_over(state: State) -> Self {
        let state = Arc::new(Mutex::new(state));
        let handle = Arc::clone(&state);
        // A refusal leaves the default action in place, see above.
        let _ = ctrlc::set_handler(move || {
            let mut state = lock(&handle);
            state.presses += 1;
            let ends = match &state.running {
                Some(token) => {
                    token.cancel();
                    state.presses >= state.presses_to_end
                }
                None => state.ends_idle,
            };
            if ends {
                process::exit(i32::from(INTERRUPTED));
            }
        });
        Self(state)
    }

    /// A token for what begins now.
    pub(crate) fn begin(&self) -> CancelToken {
        let token = CancelToken::new();
        let mut state = lock(&self.0);
        state.running = Some(token.clone());
        state.presses = 0;
        token
    }

    /// Nothing runs any more.
    pub(crate) fn end(&self) {
        lock(&self.0).running = None;
    }
}

/// Every state that a panic can leave is a valid one.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
