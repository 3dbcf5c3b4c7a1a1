//! Tenants of callers in the memory pools of engines.

use ruvllm::{Engine, Quota, Tenant};

use crate::api_error::ApiError;
use crate::auth::Caller;

/// The tenant of a caller in an engine's pool, within its share of the KV budget: the root for
/// callers without a key.
///
/// # Errors
/// 500 for a name that the pool refuses.
pub(crate) fn tenant_of(engine: &Engine, caller: &Caller) -> Result<Tenant, ApiError> {
    if caller.key.is_none() {
        return Ok(Tenant::root());
    }
    let pool = engine.kv_store().pool();
    let tenant = pool.tenant(&caller.tenant).map_err(|error| ApiError::internal(&error))?;
    if let Some(share) = caller.limits.kv_share() {
        let pages = (pool.capacity_pages() as f64 * share) as usize;
        let quota = Quota { hard_pages: pages.max(1), soft_pages: pages.max(1) };
        pool.set_quota(&tenant, quota).map_err(|error| ApiError::internal(&error))?;
    }
    Ok(tenant)
}
