//! API keys: who calls, for which tenant, and what the caller may do (ADR-0064).

mod file;
mod keys;
mod scope;
mod secret;
#[cfg(test)]
mod tests;
mod time;

use std::sync::Arc;
use std::time::SystemTime;

use axum::http::HeaderMap;
use thiserror::Error;

pub use self::file::{KeyEntry, KeyFile, KeysError, PreviousKey, permission_warning};
pub(crate) use self::keys::{Identity, Keys, Unauthorized};
pub use self::scope::{Scope, Scopes};
pub use self::secret::{KeyHash, Secret};
pub use self::time::Moment;
use crate::limits::{TenantLimits, Tenants};

/// The caller of a request.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// Name of the key; `None` on a server without keys.
    pub(crate) key: Option<Arc<str>>,
    /// Tenant whose limits and quotas hold.
    pub(crate) tenant: Arc<str>,
    /// Groups of endpoints.
    pub(crate) scopes: Scopes,
    /// Limits of the tenant.
    pub(crate) limits: Arc<TenantLimits>,
}

/// A caller without a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("this API key has no scope \"{scope}\"; `ruvllm key new NAME --scope {scope}` makes one that has")]
pub(crate) struct Forbidden {
    /// The scope that is needed.
    pub(crate) scope: Scope,
}

impl Caller {
    /// Identifies the caller of a request.
    ///
    /// # Errors
    /// [`Unauthorized`].
    pub(crate) fn of(
        headers: &HeaderMap,
        keys: &Keys,
        tenants: &Tenants,
        now: SystemTime,
    ) -> Result<Self, Unauthorized> {
        let Identity { key, tenant, scopes } = keys.identify(headers, now)?;
        let limits = tenants.get(&tenant);
        Ok(Self { key, tenant, scopes, limits })
    }

    /// Refuses a caller whose key lacks a scope.
    ///
    /// # Errors
    /// [`Forbidden`].
    pub(crate) fn require(&self, scope: Scope) -> Result<(), Forbidden> {
        if self.scopes.allow(scope) { Ok(()) } else { Err(Forbidden { scope }) }
    }
}
