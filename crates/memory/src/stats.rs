//! Counters of a pool.

/// Counters of a pool, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStats {
    /// Page size in bytes.
    pub page_bytes: usize,
    /// Size of the budget.
    pub capacity_pages: usize,
    /// Pages in use or reserved.
    pub used_pages: usize,
    /// Free pages of the budget.
    pub free_pages: usize,
    /// Free pages in thread caches.
    pub cached_pages: usize,
    /// Pages, used or free, with physical memory. A used page counts even before it is written.
    pub resident_pages: usize,
    /// Pages returned to the system since the pool was created, repeats included.
    pub returned_pages: u64,
    /// Longest contiguous run of free pages, caches not counted.
    pub largest_run_pages: usize,
    /// Single-page requests served from a thread's cache.
    pub cache_hits: u64,
    /// Single-page requests that missed the thread's cache.
    pub cache_misses: u64,
    /// Counters of the pressure ladder.
    pub pressure: PressureStats,
}

/// Counters of the pressure ladder since the pool was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PressureStats {
    /// Evicted units, parts of units included.
    pub evicted_units: u64,
    /// Refusals by owners ([`Release::Refused`](crate::Release::Refused)).
    pub refusals: u64,
}

impl PoolStats {
    /// External fragmentation: share of free pages outside of the longest run; 0 if none is free.
    pub fn fragmentation(&self) -> f64 {
        if self.free_pages == 0 {
            return 0.0;
        }
        1.0 - self.largest_run_pages as f64 / self.free_pages as f64
    }
}
