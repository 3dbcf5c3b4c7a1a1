//! Registered adapters by tenant and name: registered, replaced and unloaded while requests run.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use ruvllm_memory::Tenant;

use crate::compact::CompactFile;
use crate::error::{Error, Result};
use crate::name::check_name;
use crate::residency::{Acquired, AdapterVersion, Precision, Residency, Tier};
use crate::shortened::shortened;

/// Largest number of adapters of a tenant, unless [`Registry::set_quota`] sets another.
const QUOTA: usize = 100_000;

/// Path of a tenant and name of an adapter of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Name {
    tenant: Box<str>,
    name: Box<str>,
}

/// Adapters of a tenant.
#[derive(Debug, Default)]
struct Share {
    adapters: usize,
    /// Largest number; `None` for the default.
    quota: Option<usize>,
}

/// A registered adapter, as [`Registry::list`] gives it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RegisteredAdapter {
    /// The version that new requests get.
    pub version: Arc<AdapterVersion>,
    /// Its tier.
    pub tier: Tier,
}

/// Adapters of a model by tenant and name.
///
/// A name means a version; replacing it swaps the version, and requests that began with the former
/// one finish on it. Requests of a tenant find its own adapters and those of its ancestors, the
/// root's included, the nearest first. Adapters of other tenants do not exist for them: the errors
/// are those of absent names.
///
/// Memory is charged to the tenant that registered an adapter. A cold adapter takes less than 1 KiB
/// and no open file.
#[derive(Debug)]
pub struct Registry {
    residency: Arc<Residency>,
    versions: DashMap<Name, Arc<AdapterVersion>>,
    /// Locked before `versions`.
    shares: DashMap<Box<str>, Share>,
    next: AtomicU64,
}

impl Registry {
    /// An empty registry over the tiers of `residency`.
    pub fn new(residency: Arc<Residency>) -> Self {
        Self { residency, versions: DashMap::new(), shares: DashMap::new(), next: AtomicU64::new(1) }
    }

    /// Tiers of the adapters.
    pub fn residency(&self) -> &Arc<Residency> {
        &self.residency
    }

    /// Limits the number of adapters of a tenant, without its descendants. Registered ones stay.
    pub fn set_quota(&self, tenant: &Tenant, adapters: usize) {
        self.shares.entry(tenant.path().into()).or_default().quota = Some(adapters);
    }

    /// Registers the adapter of a compact file. Its header is read and checked; its factors are
    /// read when a request needs them.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::NameTaken`], [`Error::Quota`], and those of [`CompactFile::open`]
    /// and [`CompactFile::check_base`].
    pub fn register(
        &self,
        tenant: &Tenant,
        name: &str,
        path: &Path,
        precision: Precision,
    ) -> Result<Arc<AdapterVersion>> {
        let version = self.open(tenant, name, path, precision)?;
        self.insert(&version, |taken| Err(Error::NameTaken { name: taken.name().to_owned() }))
    }

    /// Registers an adapter, or replaces the one of this name: the next request gets the new
    /// version. On an error the former version stays.
    ///
    /// # Errors
    /// As [`register`](Self::register), without [`Error::NameTaken`].
    pub fn replace(
        &self,
        tenant: &Tenant,
        name: &str,
        path: &Path,
        precision: Precision,
    ) -> Result<Arc<AdapterVersion>> {
        let version = self.open(tenant, name, path, precision)?;
        self.insert(&version, |former| Ok(std::mem::replace(former, Arc::clone(&version))))
    }

    /// Removes a name of the tenant itself. Requests that began with it finish on it; its memory is
    /// released with the last of them.
    ///
    /// # Errors
    /// [`Error::UnknownAdapter`].
    pub fn unload(&self, tenant: &Tenant, name: &str) -> Result<()> {
        let unknown = || Error::UnknownAdapter { name: shortened(name) };
        check_name(name).map_err(|_| unknown())?;
        let key = Name { tenant: tenant.path().into(), name: name.into() };
        let mut share = self.shares.get_mut(&key.tenant).ok_or_else(unknown)?;
        let (_, version) = self.versions.remove(&key).ok_or_else(unknown)?;
        share.adapters -= 1;
        drop(share);
        self.residency.remove(&version);
        Ok(())
    }

    /// The current version of a name, for a request of `tenant`.
    ///
    /// # Errors
    /// [`Error::UnknownAdapter`], also for names of tenants that are not ancestors.
    pub fn resolve(&self, tenant: &Tenant, name: &str) -> Result<Arc<AdapterVersion>> {
        let unknown = || Error::UnknownAdapter { name: shortened(name) };
        check_name(name).map_err(|_| unknown())?;
        let mut path = tenant.path();
        loop {
            let key = Name { tenant: path.into(), name: name.into() };
            if let Some(version) = self.versions.get(&key) {
                return Ok(Arc::clone(&version));
            }
            if path.is_empty() {
                return Err(unknown());
            }
            path = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        }
    }

    /// Factors of a version, as [`Residency::acquire`].
    ///
    /// # Errors
    /// As [`Residency::acquire`].
    pub fn acquire(&self, version: &Arc<AdapterVersion>) -> Result<Acquired> {
        self.residency.acquire(version)
    }

    /// Loads a version in the background, as [`Residency::prefetch`].
    pub fn prefetch(&self, version: &Arc<AdapterVersion>) {
        self.residency.prefetch(version);
    }

    /// Adapters that a tenant has registered itself, by name.
    pub fn list(&self, tenant: &Tenant) -> Vec<RegisteredAdapter> {
        let is_own = |version: &Arc<AdapterVersion>| version.tenant().path() == tenant.path();
        let versions = self.versions.iter().map(|entry| Arc::clone(entry.value()));
        let mut versions: Vec<Arc<AdapterVersion>> = versions.filter(is_own).collect();
        versions.sort_by(|a, b| a.name().cmp(b.name()));
        let registered = |version: Arc<AdapterVersion>| {
            let tier = self.residency.tier(&version);
            RegisteredAdapter { version, tier }
        };
        versions.into_iter().map(registered).collect()
    }

    /// Number of registered adapters of all tenants.
    pub fn len(&self) -> usize {
        self.versions.len()
    }

    /// True if no adapter is registered.
    pub fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    /// Checks name and file, and gives the version a place among the cold ones.
    fn open(
        &self,
        tenant: &Tenant,
        name: &str,
        path: &Path,
        precision: Precision,
    ) -> Result<Arc<AdapterVersion>> {
        check_name(name)?;
        let file = CompactFile::open(path)?;
        let id = self.residency.insert(&file, precision)?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let version =
            AdapterVersion::new(id, (tenant.clone(), name, number), (path, *file.digest()), precision);
        Ok(Arc::new(version))
    }

    /// Inserts a version, or gives `taken` the one of its name, which returns the one to remove.
    fn insert(
        &self,
        version: &Arc<AdapterVersion>,
        taken: impl FnOnce(&mut Arc<AdapterVersion>) -> Result<Arc<AdapterVersion>>,
    ) -> Result<Arc<AdapterVersion>> {
        let name = Name { tenant: version.tenant().path().into(), name: version.name().into() };
        // The lock of the tenant makes counting and inserting one.
        let mut share = self.shares.entry(name.tenant.clone()).or_default();
        let quota = share.quota.unwrap_or(QUOTA);
        let former = match self.versions.entry(name) {
            Entry::Occupied(mut entry) => taken(entry.get_mut()).map(Some),
            Entry::Vacant(_) if share.adapters >= quota => {
                Err(Error::Quota { tenant: version.tenant().path().to_owned(), quota })
            }
            Entry::Vacant(entry) => {
                share.adapters += 1;
                entry.insert(Arc::clone(version));
                Ok(None)
            }
        };
        drop(share);
        match former {
            Ok(former) => {
                if let Some(former) = former {
                    self.residency.remove(&former);
                }
                Ok(Arc::clone(version))
            }
            Err(error) => {
                self.residency.remove(version);
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests;
