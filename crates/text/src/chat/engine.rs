//! Runs the template engine on a thread with enough stack.

use std::thread;

use super::bounds::NAME;

/// Stack of a thread that compiles or renders, in bytes. Freeing and printing a value recurse as
/// deeply as it is nested; untouched pages cost nothing.
const STACK_BYTES: usize = 512 << 20;

/// Runs `work` on a thread with a large stack.
///
/// # Errors
/// No thread could be started, or the work panicked.
pub(super) fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name(NAME.to_owned()).stack_size(STACK_BYTES);
        let worker = builder.spawn_scoped(scope, work).map_err(|error| format!("no thread: {error}"))?;
        worker.join().map_err(|_| "the template engine stopped".to_owned())
    })
}
