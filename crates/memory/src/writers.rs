//! The last tenant that wrote to each page, so that no tenant reads another's bytes.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Writer of a page without memory behind it, which is zero.
const NOBODY: u32 = 0;

/// Last tenant of each page plus one, or [`NOBODY`].
pub(crate) struct PageWriters(Box<[AtomicU32]>);

impl PageWriters {
    pub(crate) fn new(n_pages: usize) -> Self {
        Self((0..n_pages).map(|_| AtomicU32::new(NOBODY)).collect())
    }

    /// Makes pages without memory the tenant's; returns their number.
    pub(crate) fn back(&self, first: usize, n_pages: usize, tenant: u32) -> usize {
        let mut fresh = 0;
        for writer in &self.0[first..first + n_pages] {
            if writer.load(Relaxed) == NOBODY {
                writer.store(tenant + 1, Relaxed);
                fresh += 1;
            }
        }
        fresh
    }

    /// `true` for a page that may hold bytes of another tenant.
    #[inline]
    pub(crate) fn is_foreign(&self, page: usize, tenant: u32) -> bool {
        let writer = self.0[page].load(Relaxed);
        writer != NOBODY && writer != tenant + 1
    }

    /// Makes a zeroed page the tenant's.
    #[inline]
    pub(crate) fn hand_over(&self, page: usize, tenant: u32) {
        self.0[page].store(tenant + 1, Relaxed);
    }

    /// `true` for a page with memory behind it.
    pub(crate) fn is_backed(&self, page: usize) -> bool {
        self.0[page].load(Relaxed) != NOBODY
    }

    /// Marks a page as without memory.
    pub(crate) fn unback(&self, page: usize) {
        self.0[page].store(NOBODY, Relaxed);
    }
}
