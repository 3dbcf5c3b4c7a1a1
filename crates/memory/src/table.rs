//! What is known about each page: who has it, since when it was not touched, whether it is pinned.
//!
//! The facts of a range stand at its first page. They are advice for eviction and people; that a page has one holder is
//! the business of [`Span`](crate::region::Span) alone.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::Content;
use crate::owner::OwnerId;

/// Who last wrote to a page that has memory behind it; pages without are zero.
const NOBODY: u32 = 0;

pub(crate) struct PageTable {
    /// Length of the range that starts at a page, 0 where none does. Apart from the rest, because eviction looks at all.
    n_pages: Box<[AtomicU32]>,
    /// Last tenant of each page plus one, or [`NOBODY`].
    writer: Box<[AtomicU32]>,
    entries: Box<[Entry]>,
    /// Time in accesses. Increments of several threads at once may count once.
    clock: AtomicU64,
}

#[derive(Default)]
struct Entry {
    last_access: AtomicU64,
    tenant: AtomicU32,
    /// Index of the owner plus one, 0 without.
    owner: AtomicU32,
    pins: AtomicU32,
    content: AtomicU8,
}

/// Facts about a range of pages that somebody has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holding {
    pub(crate) first_page: usize,
    pub(crate) n_pages: usize,
    pub(crate) content: Content,
    pub(crate) tenant: u32,
    pub(crate) owner: Option<u32>,
    pub(crate) is_pinned: bool,
    /// Accesses elsewhere since the last one here.
    pub(crate) idle: u64,
}

impl PageTable {
    pub(crate) fn new(n_pages: usize) -> Self {
        let zeros = || (0..n_pages).map(|_| AtomicU32::new(0)).collect();
        let entries = (0..n_pages).map(|_| Entry::default()).collect();
        Self { n_pages: zeros(), writer: zeros(), entries, clock: AtomicU64::new(0) }
    }

    /// Notes that a range is in use from now on.
    #[inline]
    pub(crate) fn publish(
        &self,
        first: usize,
        n_pages: usize,
        content: Content,
        tenant: u32,
        owner: Option<OwnerId>,
    ) {
        let entry = &self.entries[first];
        entry.tenant.store(tenant, Relaxed);
        entry.owner.store(owner.map_or(0, |owner| owner.index + 1), Relaxed);
        entry.content.store(content as u8, Relaxed);
        // A guard that was forgotten instead of dropped does not pin the next holder's pages.
        entry.pins.store(0, Relaxed);
        self.touch(first);
        self.n_pages[first].store(n_pages as u32, Relaxed);
    }

    /// Notes that it is free.
    #[inline]
    pub(crate) fn retire(&self, first: usize) {
        self.n_pages[first].store(0, Relaxed);
    }

    #[inline]
    pub(crate) fn touch(&self, first: usize) {
        let now = self.clock.load(Relaxed) + 1;
        self.clock.store(now, Relaxed);
        self.entries[first].last_access.store(now, Relaxed);
    }

    #[inline]
    pub(crate) fn pin(&self, first: usize) {
        self.entries[first].pins.fetch_add(1, Relaxed);
        self.touch(first);
    }

    #[inline]
    pub(crate) fn unpin(&self, first: usize) {
        self.entries[first].pins.fetch_sub(1, Relaxed);
    }

    #[inline]
    pub(crate) fn is_pinned(&self, first: usize) -> bool {
        self.entries[first].pins.load(Relaxed) > 0
    }

    /// Makes pages that have no memory yet the tenant's; how many there were.
    pub(crate) fn back(&self, first: usize, n_pages: usize, tenant: u32) -> usize {
        let mut fresh = 0;
        for writer in &self.writer[first..first + n_pages] {
            if writer.load(Relaxed) == NOBODY {
                writer.store(tenant + 1, Relaxed);
                fresh += 1;
            }
        }
        fresh
    }

    /// Whether a page may hold what another tenant wrote.
    #[inline]
    pub(crate) fn is_foreign(&self, page: usize, tenant: u32) -> bool {
        let writer = self.writer[page].load(Relaxed);
        writer != NOBODY && writer != tenant + 1
    }

    /// Makes a page the tenant's, who finds it zeroed.
    #[inline]
    pub(crate) fn hand_over(&self, page: usize, tenant: u32) {
        self.writer[page].store(tenant + 1, Relaxed);
    }

    /// Whether a page has memory behind it.
    pub(crate) fn is_backed(&self, page: usize) -> bool {
        self.writer[page].load(Relaxed) != NOBODY
    }

    /// Notes that a page has no memory any more.
    pub(crate) fn unback(&self, page: usize) {
        self.writer[page].store(NOBODY, Relaxed);
    }

    /// The ranges in use by address. Those that come and go meanwhile may be missing.
    pub(crate) fn holdings(&self) -> impl Iterator<Item = Holding> {
        let now = self.clock.load(Relaxed);
        let mut page = 0;
        std::iter::from_fn(move || {
            let skipped = self.n_pages[page..].iter().position(|n_pages| n_pages.load(Relaxed) != 0)?;
            let holding = self.holding(page + skipped, now);
            page = (page + skipped + holding.n_pages.max(1)).min(self.n_pages.len());
            Some(holding)
        })
    }

    fn holding(&self, first_page: usize, now: u64) -> Holding {
        let entry = &self.entries[first_page];
        Holding {
            first_page,
            n_pages: self.n_pages[first_page].load(Relaxed) as usize,
            content: Content::ALL[usize::from(entry.content.load(Relaxed))],
            tenant: entry.tenant.load(Relaxed),
            owner: entry.owner.load(Relaxed).checked_sub(1),
            is_pinned: entry.pins.load(Relaxed) > 0,
            idle: now.saturating_sub(entry.last_access.load(Relaxed)),
        }
    }
}
