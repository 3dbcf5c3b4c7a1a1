//! Registered adapters by tenant and name: registered, replaced and unloaded while requests run.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use ruvllm_memory::Tenant;

use crate::adapter::Adapter;
use crate::compact::CompactFile;
use crate::error::{Error, Result};
use crate::micro::MicroLora;
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

/// Adapter that a name means for a request from now to its end.
#[derive(Debug, Clone)]
pub enum Resolved {
    /// Version of a compact file.
    Version(Arc<AdapterVersion>),
    /// Current version of an adapter that changes.
    Current(crate::sync::Arc<Adapter>),
}

impl Resolved {
    /// The version of a file; `None` for an adapter that changes.
    pub fn version(&self) -> Option<&Arc<AdapterVersion>> {
        match self {
            Self::Version(version) => Some(version),
            Self::Current(_) => None,
        }
    }
}

/// Adapter under a name.
#[derive(Debug, Clone)]
enum Registered {
    Version(Arc<AdapterVersion>),
    Changing(Arc<MicroLora>),
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
    adapters: DashMap<Name, Registered>,
    /// Locked before `adapters`.
    shares: DashMap<Box<str>, Share>,
    next: AtomicU64,
}

impl Registry {
    /// An empty registry over the tiers of `residency`.
    pub fn new(residency: Arc<Residency>) -> Self {
        Self { residency, adapters: DashMap::new(), shares: DashMap::new(), next: AtomicU64::new(1) }
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
        let taken = |_: &mut Registered| Err(Error::NameTaken { name: name.to_owned() });
        self.insert(tenant, name, Registered::Version(Arc::clone(&version)), taken)?;
        Ok(version)
    }

    /// Registers an adapter that changes while requests run: each gets the version that is current
    /// when it resolves the name. Its memory is that of the [`MicroLora`].
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::NameTaken`] and [`Error::Quota`].
    pub fn register_changing(&self, tenant: &Tenant, name: &str, adapter: &Arc<MicroLora>) -> Result<()> {
        check_name(name)?;
        let taken = |_: &mut Registered| Err(Error::NameTaken { name: name.to_owned() });
        self.insert(tenant, name, Registered::Changing(Arc::clone(adapter)), taken)
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
        let new = Registered::Version(Arc::clone(&version));
        self.insert(tenant, name, new.clone(), |former| Ok(std::mem::replace(former, new)))?;
        Ok(version)
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
        let (_, adapter) = self.adapters.remove(&key).ok_or_else(unknown)?;
        share.adapters -= 1;
        drop(share);
        self.remove(&adapter);
        Ok(())
    }

    /// The current version of a name, for a request of `tenant`.
    ///
    /// # Errors
    /// [`Error::UnknownAdapter`], also for names of tenants that are not ancestors.
    pub fn resolve(&self, tenant: &Tenant, name: &str) -> Result<Resolved> {
        let unknown = || Error::UnknownAdapter { name: shortened(name) };
        check_name(name).map_err(|_| unknown())?;
        let mut path = tenant.path();
        loop {
            let key = Name { tenant: path.into(), name: name.into() };
            if let Some(adapter) = self.adapters.get(&key) {
                return Ok(match &*adapter {
                    Registered::Version(version) => Resolved::Version(Arc::clone(version)),
                    Registered::Changing(adapter) => Resolved::Current(adapter.current()),
                });
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

    /// Adapters that a tenant has registered itself, by name, without those that change.
    pub fn list(&self, tenant: &Tenant) -> Vec<RegisteredAdapter> {
        let is_own = |version: &Arc<AdapterVersion>| version.tenant().path() == tenant.path();
        let versions = self.adapters.iter().filter_map(|entry| match entry.value() {
            Registered::Version(version) => Some(Arc::clone(version)),
            Registered::Changing(_) => None,
        });
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
        self.adapters.len()
    }

    /// True if no adapter is registered.
    pub fn is_empty(&self) -> bool {
        self.adapters.is_empty()
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

    /// Inserts an adapter, or gives `taken` the one of its name, which returns the one to remove.
    fn insert(
        &self,
        tenant: &Tenant,
        name: &str,
        new: Registered,
        taken: impl FnOnce(&mut Registered) -> Result<Registered>,
    ) -> Result<()> {
        let name = Name { tenant: tenant.path().into(), name: name.into() };
        // The lock of the tenant makes counting and inserting one.
        let mut share = self.shares.entry(name.tenant.clone()).or_default();
        let quota = share.quota.unwrap_or(QUOTA);
        let former = match self.adapters.entry(name) {
            Entry::Occupied(mut entry) => taken(entry.get_mut()).map(Some),
            Entry::Vacant(_) if share.adapters >= quota => {
                Err(Error::Quota { tenant: tenant.path().to_owned(), quota })
            }
            Entry::Vacant(entry) => {
                share.adapters += 1;
                entry.insert(new.clone());
                Ok(None)
            }
        };
        drop(share);
        match former {
            Ok(former) => {
                former.iter().for_each(|former| self.remove(former));
                Ok(())
            }
            Err(error) => {
                self.remove(&new);
                Err(error)
            }
        }
    }

    /// Ends the residency of an adapter without a name.
    fn remove(&self, adapter: &Registered) {
        if let Registered::Version(version) = adapter {
            self.residency.remove(version);
        }
    }
}

#[cfg(test)]
mod tests;
