//! Ctrl-C: the first press asks the engine to stop, the second ends the program at once.
//!
//! The handler is installed when generation starts. Before that (while a model loads) the system's default applies
//! and Ctrl-C ends the program immediately, which is what one wants there.

use std::process;

use ruvllm::CancelToken;

/// Exit code after Ctrl-C: 128 + SIGINT, as shells report it.
pub(crate) const INTERRUPTED: u8 = 130;

/// A token that the first Ctrl-C from now on cancels.
///
/// When the handler cannot be installed, Ctrl-C keeps ending the program at once; that is no reason to fail.
pub(crate) fn cancel_on_interrupt() -> CancelToken {
    let token = CancelToken::new();
    let handle = token.clone();
    // A refusal leaves the default action in place, see above.
    let _ = ctrlc::set_handler(move || {
        if handle.is_cancelled() {
            process::exit(i32::from(INTERRUPTED));
        }
        handle.cancel();
    });
    token
}
