//! One memory budget for KV cache, prefix cache and adapters of an engine, in pages of 2 MiB.
//!
//! A [`PagePool`] allocates ranges of pages from one reserved address range. Physical memory is
//! taken from the system when a page is first written, is returned above a small reserve, and never
//! exceeds the capacity. [`Pages`] and the blocks of a [`Slab`] are freed on drop; double
//! allocation and use after free do not compile. A [`Tenant`] has quotas and never reads another's
//! bytes. Under memory pressure the pool decides what is evicted ([`PressurePolicy`]); a cache
//! offers its units as a [`PressureOwner`].
//!
//! Limits: no general allocator (the unit is a page or a block of a slab), no scratch memory (a
//! decoder's workspace is bounded by batch and model width, and stays in `Vec`s), no cache (the
//! owners know the content worth keeping). It moves no data.
//!
//! # Example
//!
//! ```
//! use ruvllm_memory::{PagePool, PoolConfig, Quota, Request, Slab};
//!
//! # fn main() -> ruvllm_memory::Result<()> {
//! let pool = PagePool::new(PoolConfig::new(256 << 20))?;
//! let team = pool.tenant("acme/search")?;
//! pool.set_quota(&team, Quota { hard_pages: 64, soft_pages: 48 })?;
//!
//! // An adapter: four pages in one piece.
//! let mut adapter = pool.allocate(4, &Request::default().tenant(team.clone()))?;
//! adapter.bytes_mut()[..4].copy_from_slice(b"lora");
//!
//! // Blocks of keys and values: many to a page.
//! let slab = Slab::new(&pool, 64 << 10, Request::default().tenant(team.clone()))?;
//! let block = slab.allocate()?;
//!
//! assert_eq!(pool.usage(&team)?.used_pages, 5);
//! drop((adapter, block, slab));
//! assert_eq!(pool.stats().used_pages, 0);
//! # Ok(())
//! # }
//! ```
//!
//! # Main types
//!
//! ```text
//! PoolConfig ── PagePool ─┬─ Reservation ── Pages     Request { tenant, pressure }
//!                         ├─ Tenant, Quota
//!                         ├─ Offer, Claim ── PressureOwner, PressurePolicy
//!                         └─ PoolStats
//! Slab ── SlabBlock
//! ```
//!
//! # Order of a request
//!
//! 1. The pages are charged to the tenant and its ancestors. If a quota or the pool is short, spare
//!    pages of slabs are released, then units of owners are evicted if the request's policy allows
//!    it, and the charge is retried.
//! 2. A single page comes from the calling thread's cache, longer ranges from the free runs, by
//!    best fit. If no run is long enough, all caches are drained into the runs before the request
//!    fails.
//! 3. Pages last written by another tenant are zeroed.
//!
//! There are more addresses than pages ([`PoolConfig::address_factor`]), so a contiguous range can
//! be found although the free pages are scattered. If its memory would exceed the capacity, memory
//! of free pages elsewhere is returned to the system first.
//!
//! # Locks
//!
//! No lock is held while an owner is called. Tenant counts are atomic; caches and runs have locks
//! that are taken in one order. An implementation of [`PressureOwner`] must not wait for a lock
//! that is held during requests.

#![deny(unsafe_code)]

mod config;
mod error;
#[cfg(all(test, loom))]
mod model;
mod pages;
mod pool;
mod pressure;
#[allow(unsafe_code, reason = "views of mapped memory cannot be had without")]
mod region;
mod request;
mod runs;
mod shards;
mod slab;
mod spares;
mod state;
mod stats;
mod sync;
mod tenant;
mod writers;

pub use config::{Fit, PoolConfig};
pub use error::{Error, Result};
pub use pages::{Pages, Reservation};
pub use pool::PagePool;
pub use pressure::{Claim, Demand, Offer, OwnerId, PressureOwner, PressurePolicy, Release, Rung, Use};
pub use request::Request;
pub use slab::{Slab, SlabBlock, SlabStats};
pub use stats::{PoolStats, PressureStats};
pub use tenant::{Quota, Tenant, TenantUsage};
