//! What a pool counts and knows.

use crate::{Content, OwnerId, PageRange};

/// The state of a pool, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes of a page.
    pub page_bytes: usize,
    /// Pages in the budget.
    pub capacity_pages: usize,
    /// Pages that somebody has or has reserved.
    pub used_pages: usize,
    /// The rest of the budget.
    pub free_pages: usize,
    /// Free pages that wait in the cache of a thread.
    pub cached_pages: usize,
    /// Pages, used or free, whose memory was not returned to the system. A used page counts even before it is written.
    pub resident_pages: usize,
    /// Pages whose memory was returned to the system since the pool was made, each time counted.
    pub returned_pages: u64,
    /// Largest request that can be had in one piece, caches not counted.
    pub largest_run_pages: usize,
    /// Requests for one page that a thread's cache served.
    pub cache_hits: u64,
    /// Requests for one page that it did not.
    pub cache_misses: u64,
    /// Work of eviction.
    pub eviction: EvictionStats,
}

/// What eviction has done since the pool was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictionStats {
    /// Times that owners were asked because of a watermark or a request that was short.
    pub rounds: u64,
    /// Pages that owners say they have given back.
    pub released_pages: u64,
    /// Calls of an owner that gave back nothing.
    pub refusals: u64,
}

/// A range of pages that somebody has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeInfo {
    /// Which pages.
    pub range: PageRange,
    /// What they are for.
    pub content: Content,
    /// Path of the tenant; empty for the root.
    pub tenant: String,
    /// Who may be asked for them.
    pub owner: Option<OwnerId>,
    /// Whether they are kept from being evicted.
    pub is_pinned: bool,
    /// Accesses to other ranges since the last one to this.
    pub idle_accesses: u64,
}

impl PoolStats {
    /// Free pages that cannot be had in one piece, as a fraction of all free pages; 0 when none is free.
    pub fn fragmentation(&self) -> f64 {
        if self.free_pages == 0 {
            return 0.0;
        }
        1.0 - self.largest_run_pages as f64 / self.free_pages as f64
    }
}
