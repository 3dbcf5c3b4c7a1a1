//! Guided schedule of [`ThreadPool::for_each_chunk`](super::ThreadPool::for_each_chunk).

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Work distributed in chunks of decreasing size; counted in grains.
pub(super) struct Chunks {
    grains: usize,
    /// Divisor of the remaining work that gives the chunk size.
    share: usize,
    next: AtomicUsize,
}

impl Chunks {
    pub(super) fn new(grains: usize, threads: usize) -> Self {
        Self { grains, share: 2 * threads, next: AtomicUsize::new(0) }
    }

    /// Takes the next chunk; never empty.
    pub(super) fn take(&self) -> Option<Range<usize>> {
        let mut start = self.next.load(Ordering::Relaxed);
        while start < self.grains {
            let end = start + ((self.grains - start) / self.share).max(1);
            match self.next.compare_exchange_weak(start, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(start..end),
                Err(current) => start = current,
            }
        }
        None
    }
}
