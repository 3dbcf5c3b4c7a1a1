//! Options of a store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::budget::{FixedBudget, MemoryBudget};

/// Limits of a tenant's trajectories; the oldest are removed first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// Largest number of trajectories.
    pub count: Option<u64>,
    /// Largest number of bytes, counted as in [`TenantUsage::bytes`](super::TenantUsage::bytes).
    pub bytes: Option<u64>,
    /// Largest age by the wall clock.
    pub age: Option<Duration>,
}

/// Options of a [`LearningStore`](super::LearningStore).
#[derive(Clone)]
pub struct StoreOptions {
    /// Limits of tenants that are not in `tenant_retention`.
    pub retention: Retention,
    /// Limits of single tenants.
    pub tenant_retention: BTreeMap<String, Retention>,
    /// Bytes of all trajectories; beyond them the tenant with the most bytes loses its oldest.
    pub trajectory_bytes: u64,
    /// Bytes of a tenant's feedback log.
    pub event_bytes: u64,
    /// Snapshots kept of an adapter, beside its latest clean one.
    pub snapshots: usize,
    /// Bytes of the database's page cache, charged to `budget` while the store is open.
    pub cache_bytes: usize,
    /// Budget that is charged.
    pub budget: Arc<dyn MemoryBudget>,
    /// Opens an existing store without writing to it.
    pub read_only: bool,
    /// Verifies the checksum of every page on opening; without it, only after a crash.
    pub verify: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            retention: Retention::default(),
            tenant_retention: BTreeMap::new(),
            trajectory_bytes: 128 << 20,
            event_bytes: 64 << 20,
            snapshots: 8,
            cache_bytes: 16 << 20,
            budget: Arc::new(FixedBudget::default()),
            read_only: false,
            verify: true,
        }
    }
}

impl std::fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreOptions")
            .field("retention", &self.retention)
            .field("tenant_retention", &self.tenant_retention)
            .field("trajectory_bytes", &self.trajectory_bytes)
            .field("event_bytes", &self.event_bytes)
            .field("snapshots", &self.snapshots)
            .field("cache_bytes", &self.cache_bytes)
            .field("read_only", &self.read_only)
            .field("verify", &self.verify)
            .finish_non_exhaustive()
    }
}

impl StoreOptions {
    pub(super) fn retention_of(&self, tenant: &str) -> Retention {
        self.tenant_retention.get(tenant).copied().unwrap_or(self.retention)
    }
}
