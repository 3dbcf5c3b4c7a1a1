//! Requests that an engine has taken, and the end of its intake.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use crate::engine::Engine;
use crate::error::{Error, Result};

/// Count of the requests that have not ended, and the switch that refuses further ones.
#[derive(Debug, Default)]
pub(crate) struct Intake {
    open: AtomicUsize,
    is_closed: AtomicBool,
}

/// A request that counts until it is dropped.
#[derive(Debug)]
pub(crate) struct Taken(Arc<Intake>);

impl Intake {
    /// Takes a request.
    ///
    /// # Errors
    /// [`Error::ShuttingDown`].
    pub(crate) fn take(self: &Arc<Self>) -> Result<Taken> {
        // Counted first: who closes the intake and then finds no request open knows that none
        // comes.
        self.open.fetch_add(1, SeqCst);
        let taken = Taken(Arc::clone(self));
        if self.is_closed.load(SeqCst) { Err(Error::ShuttingDown) } else { Ok(taken) }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, SeqCst);
    }
}

impl Engine {
    /// Refuses requests from now on with [`Error::ShuttingDown`]. Those that wait or run go on to
    /// their end: the engine is drained once [`open_requests`](Self::open_requests) is 0. To end
    /// them at once, cancel them or drop the engine.
    pub fn begin_shutdown(&self) {
        self.core().intake.is_closed.store(true, SeqCst);
    }

    /// True after [`begin_shutdown`](Self::begin_shutdown).
    pub fn is_shutting_down(&self) -> bool {
        self.core().intake.is_closed.load(SeqCst)
    }

    /// Requests that were submitted and have not ended: those that are encoded, wait or run. After
    /// [`begin_shutdown`](Self::begin_shutdown) it does not rise from 0 again.
    pub fn open_requests(&self) -> usize {
        self.core().intake.open.load(SeqCst)
    }
}
