//! A registered adapter: the file that it is read from.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use ruvllm_memory::Tenant;

use super::tiers::{Id, Precision, Tier};
use crate::adapter::Adapter;

/// One version of a registered adapter. A replaced or unloaded version serves the requests that
/// began with it.
#[derive(Debug)]
pub struct AdapterVersion {
    pub(super) id: Id,
    pub(super) path: Box<Path>,
    pub(super) digest: [u8; 32],
    pub(super) tenant: Tenant,
    pub(super) precision: Precision,
    pub(super) name: Box<str>,
    pub(super) number: u64,
    /// Held while the file is read.
    pub(super) loading: Mutex<()>,
    is_removed: AtomicBool,
    /// Factors of a removed version, while a request has them: requests that still wait for it
    /// share them.
    last: Mutex<Weak<Adapter>>,
}

impl AdapterVersion {
    pub(crate) fn new(
        id: Id,
        (tenant, name, number): (Tenant, &str, u64),
        (path, digest): (&Path, [u8; 32]),
        precision: Precision,
    ) -> Self {
        Self {
            id,
            path: path.into(),
            digest,
            tenant,
            precision,
            name: name.into(),
            number,
            loading: Mutex::new(()),
            is_removed: AtomicBool::new(false),
            last: Mutex::new(Weak::new()),
        }
    }

    /// Name in the registry.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Tenant that registered it.
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Number of the version: later ones of a registry are larger.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Digest of its factors in F16.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// Formats in which it may serve.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The compact file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True once the version is replaced or unloaded.
    pub fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }

    /// Factors of the removed version that a request has.
    pub(super) fn last(&self) -> Option<Arc<Adapter>> {
        self.last.lock().upgrade()
    }

    pub(super) fn set_last(&self, adapter: &Arc<Adapter>) {
        *self.last.lock() = Arc::downgrade(adapter);
    }

    /// False if it was removed already. The caller holds the lock of the table.
    pub(super) fn set_removed(&self) -> bool {
        !self.is_removed.swap(true, Ordering::AcqRel)
    }
}

impl Precision {
    /// Tier whose format a removed version is read in.
    pub(super) fn of_removed(self) -> Tier {
        match self {
            Self::Tiered | Self::F16 => Tier::Hot,
            Self::I8 => Tier::Warm,
        }
    }
}
