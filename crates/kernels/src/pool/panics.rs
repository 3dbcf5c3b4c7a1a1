//! Panics of tickets: the first is kept for the caller, and none unwinds through the protocol.

use std::any::Any;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::sync::{Mutex, lock};

/// The payload of a panic.
pub(super) type Payload = Box<dyn Any + Send>;

/// Puts the first payload of a job into `slot`, and gives later ones back.
///
/// A frame of its own, which no job is above: the thread sanitizer does not see what a lock orders
/// that a thread waited for, and `xtask/tsan.supp` names this function alone.
#[inline(never)]
pub(super) fn keep_first(slot: &Mutex<Option<Payload>>, payload: Payload) -> Option<Payload> {
    let mut first = lock(slot);
    if first.is_some() { Some(payload) } else { first.replace(payload) }
}

/// Drops a payload that nobody will see.
///
/// Its drop is foreign code and may panic. The payload of that panic is leaked: its own drop may
/// panic again, without end.
pub(super) fn discard(payload: Payload) {
    if let Err(of_drop) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        forget(of_drop);
    }
}

/// Ends the process when it is dropped, which only unwinding does.
///
/// For code that must reach its end because other threads count on it: a caller whose frame the
/// workers still read, a worker whose ticket the caller waits for.
pub(super) struct AbortOnUnwind;

impl AbortOnUnwind {
    /// Ends the guarded part.
    pub(super) fn disarm(self) {
        forget(self);
    }
}

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}
