//! Panics of tickets: the first is kept for the caller; none unwinds through the protocol.

use std::any::Any;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::sync::{Mutex, lock};

/// Payload of a panic.
pub(super) type Payload = Box<dyn Any + Send>;

/// Stores the first payload of a job in `slot`; returns later ones.
///
/// A separate frame that no job is above: the thread sanitizer misses the ordering by a contended
/// lock, and `xtask/tsan.supp` names this function only.
#[inline(never)]
pub(super) fn keep_first(slot: &Mutex<Option<Payload>>, payload: Payload) -> Option<Payload> {
    let mut first = lock(slot);
    if first.is_some() { Some(payload) } else { first.replace(payload) }
}

/// Drops a payload.
///
/// Its drop is foreign code and may panic. The payload of that panic is leaked, because its own
/// drop may panic again, without end.
pub(super) fn discard(payload: Payload) {
    if let Err(of_drop) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        forget(of_drop);
    }
}

/// Aborts the process when dropped, which only unwinding does.
///
/// For code that must complete because other threads depend on it: a caller whose frame workers
/// still read, a worker whose ticket the caller waits for.
pub(super) struct AbortOnUnwind;

impl AbortOnUnwind {
    /// Ends the guarded section.
    pub(super) fn disarm(self) {
        forget(self);
    }
}

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}
