//! The page pool of `ruvllm-memory`.
#![cfg(loom)]

#[path = "../../crates/memory/src/config.rs"]
mod config;
#[path = "../../crates/memory/src/error.rs"]
mod error;
#[path = "../../crates/memory/src/model.rs"]
mod model;
#[path = "../../crates/memory/src/pages.rs"]
mod pages;
#[path = "../../crates/memory/src/pool.rs"]
mod pool;
#[path = "../../crates/memory/src/pressure/mod.rs"]
mod pressure;
#[path = "../../crates/memory/src/region.rs"]
mod region;
#[path = "../../crates/memory/src/request.rs"]
mod request;
#[path = "../../crates/memory/src/runs.rs"]
mod runs;
#[path = "../../crates/memory/src/shards.rs"]
mod shards;
#[path = "../../crates/memory/src/slab.rs"]
mod slab;
#[path = "../../crates/memory/src/spares.rs"]
mod spares;
#[path = "../../crates/memory/src/state.rs"]
mod state;
#[path = "../../crates/memory/src/stats.rs"]
mod stats;
#[path = "../../crates/memory/src/sync.rs"]
mod sync;
#[path = "../../crates/memory/src/tenant.rs"]
mod tenant;
#[path = "../../crates/memory/src/writers.rs"]
mod writers;

use config::{Fit, PoolConfig};
use error::{Error, Result};
use pages::{Pages, Reservation};
use pool::PagePool;
use pressure::{Claim, Demand, Offer, OwnerId, PressureOwner, PressurePolicy, Release, Rung, Use};
use request::Request;
use slab::{Slab, SlabBlock, SlabStats};
use stats::{PoolStats, PressureStats};
use tenant::{Quota, Tenant, TenantUsage};
