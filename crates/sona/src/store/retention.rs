//! Limits of stored trajectories.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use redb::ReadableTable;

use super::LearningStore;
use super::failure::Failure;
use super::options::StoreOptions;
use super::tables::Tables;
use crate::error::Result;

/// Wall clock in milliseconds since 1970; 0 before.
pub(super) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

impl LearningStore {
    /// Removes what the limits of every tenant do not allow at a time; returns the number of
    /// trajectories removed.
    ///
    /// Storing applies the limits of the tenants concerned; this call reaches idle tenants.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn apply_retention(&self, now_ms: u64) -> Result<u64> {
        let tenants = self.tenants()?;
        let names = tenants.iter().map(|(name, _)| name.as_str()).collect();
        self.write(|tables| tables.apply_retention(names, self.options(), now_ms))
    }
}

impl Tables<'_> {
    /// Applies the limits of tenants, then that of the store. The order of storing decides, except
    /// for ages: the wall clock may jump.
    pub(super) fn apply_retention(
        &mut self,
        tenants: BTreeSet<&str>,
        options: &StoreOptions,
        now_ms: u64,
    ) -> Result<u64, Failure> {
        let mut removed = 0;
        for tenant in tenants {
            let limits = options.retention_of(tenant);
            if let Some(age) = limits.age {
                removed += self.remove_older(tenant, now_ms.saturating_sub(age.as_millis() as u64))?;
            }
            loop {
                let (count, bytes, ..) = self.totals(tenant)?;
                let is_over = limits.count.is_some_and(|max| count > max)
                    || limits.bytes.is_some_and(|max| bytes > max);
                if !is_over || !self.remove_oldest(tenant)? {
                    break;
                }
                removed += 1;
            }
        }
        Ok(removed + self.apply_budget(options.trajectory_bytes)?)
    }

    fn remove_older(&mut self, tenant: &str, before_ms: u64) -> Result<u64, Failure> {
        let mut ids = Vec::new();
        for entry in self.times.range((tenant, 0, 0)..(tenant, before_ms, 0))? {
            ids.push(entry?.0.value().2);
        }
        for id in &ids {
            self.remove(tenant, *id)?;
        }
        Ok(ids.len() as u64)
    }

    /// Removes the oldest trajectory of a tenant. False if it has none.
    fn remove_oldest(&mut self, tenant: &str) -> Result<bool, Failure> {
        let oldest = self.order.range((tenant, 0)..=(tenant, u64::MAX))?.next().transpose()?;
        let Some(id) = oldest.map(|entry| entry.0.value().1) else { return Ok(false) };
        Ok(self.remove(tenant, id)?.is_some())
    }

    fn apply_budget(&mut self, limit: u64) -> Result<u64, Failure> {
        let mut usage = Vec::new();
        for entry in self.tenants.iter()? {
            let (tenant, totals) = entry?;
            usage.push((totals.value().1, tenant.value().to_owned()));
        }
        let mut total: u64 = usage.iter().map(|(bytes, _)| bytes).sum();
        let mut removed = 0;
        while total > limit {
            let Some((bytes, tenant)) = usage.iter_mut().max() else { break };
            if !self.remove_oldest(tenant)? {
                break;
            }
            let left = self.totals(tenant)?.1;
            total -= *bytes - left;
            *bytes = left;
            removed += 1;
        }
        Ok(removed)
    }
}
