//! Counts of a pool.

/// The state of a pool, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes of a page.
    pub page_bytes: usize,
    /// Pages in the budget.
    pub capacity_pages: usize,
    /// Pages in use or reserved.
    pub used_pages: usize,
    /// The rest of the budget.
    pub free_pages: usize,
    /// Free pages in the caches of threads.
    pub cached_pages: usize,
    /// Pages, used or free, whose memory was not returned to the system. A used page counts even
    /// before it is written.
    pub resident_pages: usize,
    /// Pages whose memory was returned to the system since the pool was made, each time counted.
    pub returned_pages: u64,
    /// Largest request that could be served, caches not counted.
    pub largest_run_pages: usize,
    /// Requests for one page that a thread's cache served.
    pub cache_hits: u64,
    /// Requests for one page that it did not serve.
    pub cache_misses: u64,
    /// Work of the pressure ladder.
    pub pressure: PressureStats,
}

/// Work of the pressure ladder since the pool was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PressureStats {
    /// Units of owners that were evicted, parts of units included.
    pub evicted_units: u64,
    /// Times that an owner released nothing.
    pub refusals: u64,
}

impl PoolStats {
    /// Free pages that cannot be had in one piece, as a fraction of all free pages; 0 when none is
    /// free.
    pub fn fragmentation(&self) -> f64 {
        if self.free_pages == 0 {
            return 0.0;
        }
        1.0 - self.largest_run_pages as f64 / self.free_pages as f64
    }
}
