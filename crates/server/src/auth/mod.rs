//! Callers.

use std::sync::Arc;

use crate::limits::TenantLimits;

/// Who makes a request: an extension of it.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// Name of the key; `None` where keys are off.
    pub(crate) key: Option<Arc<str>>,
    pub(crate) tenant: Arc<str>,
    pub(crate) limits: Arc<TenantLimits>,
}
