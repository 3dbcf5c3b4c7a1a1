//! Number of requests in the whole server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Requests that run or wait, and their limit.
#[derive(Debug)]
pub(super) struct Load {
    running: AtomicUsize,
    limit: AtomicUsize,
}

impl Load {
    pub(super) fn new(limit: usize) -> Self {
        Self { running: AtomicUsize::new(0), limit: AtomicUsize::new(limit) }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    pub(super) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// A place for one request; `None` if all are taken.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Place> {
        let limit = self.limit();
        self.running
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |running| {
                (running < limit).then_some(running + 1)
            })
            .ok()
            .map(|_| Place(Arc::clone(self)))
    }
}

/// A place; dropping it frees it.
#[derive(Debug)]
pub(super) struct Place(Arc<Load>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}
