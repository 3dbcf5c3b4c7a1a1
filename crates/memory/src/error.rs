//! The one error type of the crate.

use std::io;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason for a refused request or setting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting of the pool is out of its range.
    #[error("{field} is {value}; it must be {rule}")]
    Config {
        /// The field of `PoolConfig`.
        field: &'static str,
        /// Its value.
        value: String,
        /// The values it may have.
        rule: &'static str,
    },

    /// The system refuses the address range.
    #[error("cannot reserve {bytes} bytes of addresses: {source}; lower capacity_bytes or address_factor")]
    Reserve {
        /// Size of the range.
        bytes: usize,
        /// The system's reason.
        source: io::Error,
    },

    /// A request for no pages at all.
    #[error("a request for 0 pages; ask for at least one")]
    NoPages,

    /// The pool cannot give so many pages in one piece.
    #[error(
        "{wanted_pages} pages wanted, {free_pages} of {capacity_pages} free, {largest_run_pages} in one piece: {}",
        shortage(*wanted_pages, *free_pages, *capacity_pages)
    )]
    Exhausted {
        /// Pages asked for.
        wanted_pages: usize,
        /// Free pages.
        free_pages: usize,
        /// Largest request that could have been served.
        largest_run_pages: usize,
        /// Pages of the whole pool, or the root's quota if that is less.
        capacity_pages: usize,
    },

    /// A tenant or one of its ancestors would exceed its hard quota.
    #[error(
        "tenant {tenant:?} has {used_pages} of {quota_pages} pages; {wanted_pages} more exceed its quota"
    )]
    QuotaExceeded {
        /// The tenant whose quota it is: the one of the request or an ancestor.
        tenant: String,
        /// Pages asked for.
        wanted_pages: usize,
        /// Pages it and its descendants have.
        used_pages: usize,
        /// Its hard quota.
        quota_pages: usize,
    },

    /// A tenant's path is not one.
    #[error("{path:?} is no tenant: it must be one to eight names between slashes, 255 bytes at most")]
    TenantPath {
        /// The path.
        path: String,
    },

    /// A tenant or an owner of another pool.
    #[error("the {what} of the request belongs to another pool")]
    OtherPool {
        /// `tenant` or `owner`.
        what: &'static str,
    },

    /// A name that no pressure policy has.
    #[error(
        "unknown pressure policy {text:?}; use lower-precision, evict-prefixes, spill, reject or drop-oldest"
    )]
    UnknownPressurePolicy {
        /// The name as it was given.
        text: String,
    },

    /// A size of blocks that no slab can have.
    #[error("blocks of {block_bytes} bytes; they must have 1 to {max_bytes}, the size of the pool")]
    BlockBytes {
        /// Bytes asked for.
        block_bytes: usize,
        /// The most there could be.
        max_bytes: usize,
    },
}

impl Error {
    /// Path of the tenant whose quota was short, empty for the pool itself; `None` if memory was
    /// not what was missing.
    pub fn short_tenant(&self) -> Option<&str> {
        match self {
            Self::QuotaExceeded { tenant, .. } => Some(tenant),
            Self::Exhausted { wanted_pages, capacity_pages, .. } if wanted_pages <= capacity_pages => {
                Some("")
            }
            _ => None,
        }
    }
}

/// The shortage in words, and a remedy.
fn shortage(wanted: usize, free: usize, capacity: usize) -> &'static str {
    if wanted > capacity {
        "the pool is smaller than the request; make the pool larger"
    } else if wanted > free {
        "not enough is free; give something back, ask for less or make the pool larger"
    } else {
        "enough is free but not in one piece; ask for smaller pieces or raise address_factor"
    }
}
