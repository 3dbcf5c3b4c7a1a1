//! The settings of a pool.

use crate::{Error, Result};

/// Default of addresses per page of capacity: a million random requests at 90 % use then find all
/// free pages contiguous (`examples/fragmentation.rs`).
const ADDRESS_FACTOR: usize = 2;

/// The smallest page.
const MIN_PAGE_BYTES: usize = 512 << 10;

/// The largest page.
const MAX_PAGE_BYTES: usize = 4 << 20;

/// Settings of a pool. Start from [`PoolConfig::new`] and change fields.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolConfig {
    /// The budget: the pool never has more memory than this from the system. Rounded down to whole
    /// pages.
    pub capacity_bytes: usize,
    /// Bytes of a page: a power of two from 512 KiB to 4 MiB; 2 MiB by default, the size of a huge
    /// page. Smaller pages do without huge pages.
    pub page_bytes: usize,
    /// Choice of a contiguous range among the free runs.
    pub fit: Fit,
    /// Free memory that is kept for the next request instead of being returned to the system; an
    /// eighth of the capacity by default.
    pub reserve_bytes: usize,
    /// Addresses reserved per byte of capacity, at least 1; 2 by default. Addresses cost nothing
    /// until they are used, and spare ones let a contiguous range be found when the free pages lie
    /// apart.
    pub address_factor: usize,
}

/// Choice of a contiguous range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fit {
    /// The shortest run that is long enough.
    #[default]
    Best,
    /// The first run that is long enough.
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

    /// Pages in the budget.
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
        // Pages are counted in 32 bits.
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
