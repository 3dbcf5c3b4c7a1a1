//! The waker of a task that waits for the engine.

use std::task::Waker;

use parking_lot::Mutex;

/// Wakes the task that was registered last. Announcements before a registration are not kept: the
/// task looks at the mailboxes after it has registered.
#[derive(Default)]
pub(super) struct Arrival(Mutex<Option<Waker>>);

impl Arrival {
    pub(super) fn register(&self, waker: &Waker) {
        let mut registered = self.0.lock();
        match &mut *registered {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// Wakes the task, once for any number of announcements before it runs.
    pub(super) fn announce(&self) {
        let waker = self.0.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
