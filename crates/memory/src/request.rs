//! Requests for pages.

use crate::{PressurePolicy, Tenant};

/// Tenant and pressure policy of a request for pages.
///
/// Default: the root tenant and [`PressurePolicy::Reject`], for which only spare pages of slabs are
/// released.
///
/// ```
/// use ruvllm_memory::{PagePool, PoolConfig, Request};
///
/// let pool = PagePool::new(PoolConfig::new(64 << 20))?;
/// let request = Request::default().tenant(pool.tenant("acme/search")?);
/// let pages = pool.allocate(2, &request)?;
/// assert_eq!(pool.usage(&pool.tenant("acme")?)?.used_pages, 2);
/// # drop(pages);
/// # Ok::<(), ruvllm_memory::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Request {
    /// Tenant charged for the pages.
    pub tenant: Tenant,
    /// Pressure policy if memory is short.
    pub pressure: PressurePolicy,
}

impl Default for Request {
    fn default() -> Self {
        Self { tenant: Tenant::root(), pressure: PressurePolicy::Reject }
    }
}

impl Request {
    /// Charges the pages to a tenant.
    #[must_use]
    pub fn tenant(self, tenant: Tenant) -> Self {
        Self { tenant, ..self }
    }

    /// Sets the pressure policy.
    #[must_use]
    pub fn pressure(self, pressure: PressurePolicy) -> Self {
        Self { pressure, ..self }
    }
}
