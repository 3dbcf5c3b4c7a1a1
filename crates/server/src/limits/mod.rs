//! Limits of tenants and of the whole server (ADR-0064).

mod bucket;
mod duration;
mod headers;
mod json;
mod load;
mod tenant;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::RwLock;

pub(crate) use self::headers::insert;
pub(crate) use self::json::is_too_deep;
use self::load::Load;
pub(crate) use self::tenant::{Limited, Permit, TenantLimits};
use crate::config::{Config, Tenant};

/// Limits of all tenants, made as tenants appear.
#[derive(Debug)]
pub(crate) struct Tenants {
    load: Arc<Load>,
    table: RwLock<Table>,
}

#[derive(Debug)]
struct Table {
    config: Config,
    limits: HashMap<Arc<str>, Arc<TenantLimits>>,
}

impl Table {
    fn settings(&self, tenant: &str) -> Tenant {
        self.config.tenant(tenant)
    }
}

impl Tenants {
    /// Limits of a configuration.
    pub(crate) fn new(config: &Config) -> Self {
        let table = Table { config: config.clone(), limits: HashMap::new() };
        Self { load: Arc::new(Load::new(config.limits.requests)), table: RwLock::new(table) }
    }

    /// Replaces the settings of all tenants; what they have used stays used.
    pub(crate) fn reload(&self, config: &Config, now: Instant) {
        let mut table = self.table.write();
        table.config = config.clone();
        self.load.set_limit(config.limits.requests);
        for (name, limits) in &table.limits {
            limits.set(&table.settings(name), now);
        }
    }

    /// Limits of a tenant. Names come from the keys file, so that their number is bounded.
    pub(crate) fn get(&self, tenant: &str) -> Arc<TenantLimits> {
        if let Some(limits) = self.table.read().limits.get(tenant) {
            return Arc::clone(limits);
        }
        let mut table = self.table.write();
        let settings = table.settings(tenant);
        let make = || TenantLimits::new(&settings, Arc::clone(&self.load), Instant::now());
        Arc::clone(table.limits.entry(tenant.into()).or_insert_with(|| Arc::new(make())))
    }

    /// Requests of all tenants that are admitted and not over.
    #[cfg(test)]
    pub(crate) fn running(&self) -> usize {
        self.load.running()
    }
}
