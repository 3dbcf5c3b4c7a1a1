//! Settings of a pool.

use crate::{Error, Result};

/// Default [`PoolConfig::address_factor`]: after a million random requests at 90 % use all free
/// pages are still contiguous (`examples/fragmentation.rs`).
const ADDRESS_FACTOR: usize = 2;

/// Smallest page size.
const MIN_PAGE_BYTES: usize = 512 << 10;

/// Largest page size.
const MAX_PAGE_BYTES: usize = 4 << 20;

/// Settings of a pool. Start from [`PoolConfig::new`] and change fields.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolConfig {
    /// Budget in bytes: upper bound of memory taken from the system. Rounded down to whole pages.
    pub capacity_bytes: usize,
    /// Page size in bytes: a power of two from 512 KiB to 4 MiB. Default 2 MiB, the size of a huge
    /// page; smaller pages use no huge pages.
    pub page_bytes: usize,
    /// Choice of a contiguous range among the free runs.
    pub fit: Fit,
    /// Free memory kept for later requests instead of being returned to the system. Default: an
    /// eighth of the capacity.
    pub reserve_bytes: usize,
    /// Reserved addresses per byte of capacity, at least 1. Default 2. Addresses take no memory;
    /// spare ones allow contiguous ranges when the free pages are scattered.
    pub address_factor: usize,
}

/// Fit strategy for contiguous ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fit {
    /// Best fit: shortest run that is long enough.
    #[default]
    Best,
    /// First fit: lowest run that is long enough.
    First,
}

impl PoolConfig {
    /// A pool of `capacity_bytes` with the defaults for everything else.
    pub fn new(capacity_bytes: usize) -> Self {
        Self {
            capacity_bytes,
            page_bytes: 2 << 20,
            fit: Fit::default(),
            reserve_bytes: capacity_bytes / 8,
            address_factor: ADDRESS_FACTOR,
        }
    }

    /// Size of the budget in pages.
    pub(crate) fn capacity_pages(&self) -> usize {
        self.capacity_bytes / self.page_bytes
    }

    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |field, value: String, rule| Err(Error::Config { field, value, rule });
        let page_bytes = self.page_bytes;
        if !page_bytes.is_power_of_two() || !(MIN_PAGE_BYTES..=MAX_PAGE_BYTES).contains(&page_bytes) {
            return refuse("page_bytes", page_bytes.to_string(), "a power of two from 512 KiB to 4 MiB");
        }
        if self.capacity_bytes < page_bytes {
            return refuse("capacity_bytes", self.capacity_bytes.to_string(), "at least one page");
        }
        if self.address_factor == 0 {
            return refuse("address_factor", "0".to_owned(), "at least 1");
        }
        // Page numbers have 32 bits.
        let addresses = self.capacity_pages().checked_mul(self.address_factor);
        if addresses.is_none_or(|pages| pages >= u32::MAX as usize) {
            return refuse(
                "capacity_bytes",
                self.capacity_bytes.to_string(),
                "fewer than 2^32 pages of addresses",
            );
        }
        Ok(())
    }
}
