//! The last tenant that wrote to each page, so that no tenant reads another's bytes.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Writer of a page without memory behind it, which is zero.
const NOBODY: u32 = 0;

/// Pages of one part of the table.
const PART_PAGES: usize = 4096;

/// Last tenant of each page plus one, or [`NOBODY`].
///
/// A part of the table is allocated with the first page that is used in it: addresses are plenty,
/// and a large budget must not take memory before its pages do.
pub(crate) struct PageWriters(Box<[OnceLock<Box<[AtomicU32]>>]>);

impl PageWriters {
    pub(crate) fn new(n_pages: usize) -> Self {
        Self((0..n_pages.div_ceil(PART_PAGES)).map(|_| OnceLock::new()).collect())
    }

    /// The last tenant of a page plus one, or [`NOBODY`].
    #[inline]
    fn last(&self, page: usize) -> u32 {
        self.0[page / PART_PAGES].get().map_or(NOBODY, |part| part[page % PART_PAGES].load(Relaxed))
    }

    fn entry(&self, page: usize) -> &AtomicU32 {
        let empty = || (0..PART_PAGES).map(|_| AtomicU32::new(NOBODY)).collect();
        &self.0[page / PART_PAGES].get_or_init(empty)[page % PART_PAGES]
    }

    /// Makes pages without memory the tenant's; returns their number.
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

    /// `true` for a page that may hold bytes of another tenant.
    #[inline]
    pub(crate) fn is_foreign(&self, page: usize, tenant: u32) -> bool {
        let writer = self.last(page);
        writer != NOBODY && writer != tenant + 1
    }

    /// Makes a zeroed page the tenant's.
    #[inline]
    pub(crate) fn hand_over(&self, page: usize, tenant: u32) {
        self.entry(page).store(tenant + 1, Relaxed);
    }

    /// `true` for a page with memory behind it.
    pub(crate) fn is_backed(&self, page: usize) -> bool {
        self.last(page) != NOBODY
    }

    /// Marks a page as without memory.
    pub(crate) fn unback(&self, page: usize) {
        self.entry(page).store(NOBODY, Relaxed);
    }
}
