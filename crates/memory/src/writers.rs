//! Last writer of each page, so that no tenant reads another's bytes.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Marks a page without physical memory, which reads as zero.
const NOBODY: u32 = 0;

/// Pages per part of the table.
const PART_PAGES: usize = 4096;

/// Last tenant of each page plus one, or [`NOBODY`].
///
/// A part of the table is allocated with its first used page: there are many more addresses than
/// pages in use, and a large budget must not take memory in advance.
pub(crate) struct PageWriters(Box<[OnceLock<Box<[AtomicU32]>>]>);

impl PageWriters {
    pub(crate) fn new(n_pages: usize) -> Self {
        Self((0..n_pages.div_ceil(PART_PAGES)).map(|_| OnceLock::new()).collect())
    }

    /// Last tenant of a page plus one, or [`NOBODY`].
    #[inline]
    fn last(&self, page: usize) -> u32 {
        self.0[page / PART_PAGES].get().map_or(NOBODY, |part| part[page % PART_PAGES].load(Relaxed))
    }

    fn entry(&self, page: usize) -> &AtomicU32 {
        let empty = || (0..PART_PAGES).map(|_| AtomicU32::new(NOBODY)).collect();
        &self.0[page / PART_PAGES].get_or_init(empty)[page % PART_PAGES]
    }

    /// Assigns pages without memory to the tenant; returns their number.
    pub(crate) fn back(&self, first: usize, n_pages: usize, tenant: u32) -> usize {
        let mut fresh = 0;
        for writer in (first..first + n_pages).map(|page| self.entry(page)) {
            if writer.load(Relaxed) == NOBODY {
                writer.store(tenant + 1, Relaxed);
                fresh += 1;
            }
        }
        fresh
    }

    /// True for a page that may hold bytes of another tenant.
    #[inline]
    pub(crate) fn is_foreign(&self, page: usize, tenant: u32) -> bool {
        let writer = self.last(page);
        writer != NOBODY && writer != tenant + 1
    }

    /// Assigns a zeroed page to the tenant.
    #[inline]
    pub(crate) fn hand_over(&self, page: usize, tenant: u32) {
        self.entry(page).store(tenant + 1, Relaxed);
    }

    /// True for a page with physical memory.
    pub(crate) fn is_backed(&self, page: usize) -> bool {
        self.last(page) != NOBODY
    }

    /// Marks a page as without memory.
    pub(crate) fn unback(&self, page: usize) {
        self.entry(page).store(NOBODY, Relaxed);
    }
}
