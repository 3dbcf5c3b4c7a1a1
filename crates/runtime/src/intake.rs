//! Requests that an engine has taken, and the end of its intake.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

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
        if self.is_closed() { Err(Error::ShuttingDown) } else { Ok(taken) }
    }

    /// Refuses requests from now on.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, SeqCst);
    }

    /// True once requests are refused.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(SeqCst)
    }

    /// Requests that have not ended.
    pub(crate) fn open(&self) -> usize {
        self.open.load(SeqCst)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, SeqCst);
    }
}
