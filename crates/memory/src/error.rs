//! Error type of the crate.

use std::io;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason for a refused request or setting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting of the pool is out of range.
    #[error("{field} is {value}; it must be {rule}")]
    Config {
        /// The field of `PoolConfig`.
        field: &'static str,
        /// Its value.
        value: String,
        /// Allowed values.
        rule: &'static str,
    },

    /// The system refused to reserve the address range.
    #[error("cannot reserve {bytes} bytes of addresses: {source}; lower capacity_bytes or address_factor")]
    Reserve {
        /// Size of the range in bytes.
        bytes: usize,
        /// The system's reason.
        source: io::Error,
    },

    /// A request for 0 pages.
    #[error("a request for 0 pages; ask for at least one")]
    NoPages,

    /// Out of memory: too few free pages, or none contiguous enough.
    #[error(
        "{wanted_pages} pages wanted, {free_pages} of {capacity_pages} free, {largest_run_pages} in one piece: {}",
        shortage(*wanted_pages, *free_pages, *capacity_pages)
    )]
    Exhausted {
        /// Requested pages.
        wanted_pages: usize,
        /// Free pages.
        free_pages: usize,
        /// Longest contiguous run of free pages.
        largest_run_pages: usize,
        /// Capacity of the pool, or the root's quota if that is smaller.
        capacity_pages: usize,
    },

    /// A tenant or one of its ancestors would exceed its hard quota.
    #[error(
        "tenant {tenant:?} has {used_pages} of {quota_pages} pages; {wanted_pages} more exceed its quota"
    )]
    QuotaExceeded {
        /// Tenant whose quota is exceeded: the request's or an ancestor.
        tenant: String,
        /// Requested pages.
        wanted_pages: usize,
        /// Pages used by it and its descendants.
        used_pages: usize,
        /// Its hard quota.
        quota_pages: usize,
    },

    /// Invalid tenant path.
    #[error("{path:?} is no tenant: it must be one to eight names between slashes, 255 bytes at most")]
    TenantPath {
        /// The path.
        path: String,
    },

    /// Tenant or owner of another pool.
    #[error("the {what} of the request belongs to another pool")]
    OtherPool {
        /// `tenant` or `owner`.
        what: &'static str,
    },

    /// Unknown name of a pressure policy.
    #[error(
        "unknown pressure policy {text:?}; use lower-precision, evict-prefixes, spill, reject or drop-oldest"
    )]
    UnknownPressurePolicy {
        /// The given name.
        text: String,
    },

    /// Invalid block size of a slab.
    #[error("blocks of {block_bytes} bytes; they must have 1 to {max_bytes}, the size of the pool")]
    BlockBytes {
        /// Requested bytes.
        block_bytes: usize,
        /// Largest possible block.
        max_bytes: usize,
    },
}

impl Error {
    /// Path of the tenant whose quota was exceeded, empty for the pool; `None` if more memory would
    /// not help.
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

/// Description of the shortage, and a remedy.
fn shortage(wanted: usize, free: usize, capacity: usize) -> &'static str {
    if wanted > capacity {
        "the pool is smaller than the request; make the pool larger"
    } else if wanted > free {
        "not enough is free; give something back, ask for less or make the pool larger"
    } else {
        "enough is free but not in one piece; ask for smaller pieces or raise address_factor"
    }
}
