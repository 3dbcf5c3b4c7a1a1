//! Snapshots of learned state.

use redb::ReadableTable;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::LearningStore;
use super::failure::Failure;
use super::path::Path;
use super::retention::now_ms;
use super::tables::{BLOBS, ROLLBACKS, SNAPSHOTS, SnapshotKey, Tables, VERSIONS, decode, encode};
use crate::error::{Error, Result};
use crate::trajectory::check_name;

/// Standing of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotKind {
    /// Has passed the held-out gate.
    Clean,
    /// Has not passed it yet.
    Tentative,
}

/// Learned state to be saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSnapshot<'b> {
    /// Owner of the adapter.
    pub tenant: &'b str,
    /// Name of the adapter.
    pub adapter: &'b str,
    /// Standing.
    pub kind: SnapshotKind,
    /// Sequence number up to which the learning events are included.
    pub through: u64,
    /// The state.
    pub bytes: &'b [u8],
}

/// Description of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotInfo {
    /// Version, from 1, never used again within the adapter.
    pub version: u64,
    /// Version that the state was learned from; `None`: the base without learning.
    pub parent: Option<u64>,
    /// Standing.
    pub kind: SnapshotKind,
    /// Sequence number up to which the learning events are included.
    pub through: u64,
    /// Wall clock in milliseconds since 1970.
    pub created_ms: u64,
    /// SHA-256 of the state.
    pub digest: [u8; 32],
    /// Bytes of the state.
    pub bytes: u64,
}

/// Snapshot with its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Description.
    pub info: SnapshotInfo,
    /// The state.
    pub bytes: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct Record {
    parent: Option<u64>,
    kind: SnapshotKind,
    through: u64,
    created_ms: u64,
    digest: [u8; 32],
    bytes: u64,
}

impl SnapshotInfo {
    /// True if it has passed the held-out gate.
    pub fn is_clean(&self) -> bool {
        self.kind == SnapshotKind::Clean
    }

    fn new(version: u64, record: Record) -> Self {
        let Record { parent, kind, through, created_ms, digest, bytes } = record;
        Self { version, parent, kind, through, created_ms, digest, bytes }
    }

    fn record(&self) -> Record {
        let Self { version: _, parent, kind, through, created_ms, digest, bytes } = self.clone();
        Record { parent, kind, through, created_ms, digest, bytes }
    }
}

/// Latest snapshot of at least a kind that was not abandoned.
pub(super) fn latest<'s>(
    path: &Path,
    snapshots: &'s [SnapshotInfo],
    kind: SnapshotKind,
) -> Option<&'s SnapshotInfo> {
    let is_of_kind = |info: &&SnapshotInfo| kind == SnapshotKind::Tentative || info.is_clean();
    let in_effect = snapshots.iter().filter(|info| path.has_version(info.version));
    in_effect.filter(is_of_kind).max_by_key(|info| info.version)
}

impl LearningStore {
    /// Saves a snapshot under the next version and removes the oldest beyond
    /// [`StoreOptions::snapshots`](super::StoreOptions::snapshots), except the latest clean one.
    ///
    /// # Errors
    /// [`Error::Record`] for bad names and for a `through` before that of the parent or behind the
    /// end of the log; those of the file: earlier snapshots are as they were.
    pub fn save_snapshot(&self, new: &NewSnapshot<'_>) -> Result<SnapshotInfo> {
        check_name("tenant", new.tenant)?;
        check_name("adapter", new.adapter)?;
        let digest: [u8; 32] = Sha256::digest(new.bytes).into();
        self.write(|tables| {
            let (tenant, adapter) = (new.tenant, new.adapter);
            let path = Path::of_log(&tables.rollbacks, tenant, adapter)?;
            let mut snapshots = tables.snapshot_list(tenant, adapter)?;
            let parent = latest(&path, &snapshots, SnapshotKind::Tentative);
            let totals = tables.totals(tenant)?;
            let (first, last) = (parent.map_or(0, |info| info.through), totals.3);
            if new.through < first || new.through > last || (new.through > 0 && !path.contains(new.through)) {
                let reason = format!("{}; it must be in {first}..={last} and not rolled back", new.through);
                return Err(Error::Record { field: "through", reason }.into());
            }
            let version = tables.next_version(tenant, adapter)?;
            let info = SnapshotInfo {
                version,
                parent: parent.map(|info| info.version),
                kind: new.kind,
                through: new.through,
                created_ms: now_ms(),
                digest,
                bytes: new.bytes.len() as u64,
            };
            // A tenant with nothing else is listed too.
            tables.set_totals(tenant, totals)?;
            tables.versions.insert((tenant, adapter), version + 1)?;
            tables.insert_snapshot(tenant, adapter, &info)?;
            tables.blobs.insert((tenant, adapter, version), new.bytes)?;
            snapshots.push(info.clone());
            let clean = latest(&path, &snapshots, SnapshotKind::Clean).map(|info| info.version);
            let n_over = snapshots.len().saturating_sub(self.options().snapshots.max(1));
            let kept = |info: &&SnapshotInfo| Some(info.version) != clean && info.version != version;
            for info in snapshots.iter().filter(kept).take(n_over) {
                tables.remove_snapshot(tenant, adapter, info.version)?;
            }
            Ok(info)
        })
    }

    /// Names of the adapters of a tenant that have or had snapshots, in alphabetical order.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn adapters(&self, tenant: &str) -> Result<Vec<String>> {
        self.read(|transaction| {
            let versions = transaction.open_table(VERSIONS)?;
            let mut names = Vec::new();
            for entry in versions.range((tenant, "")..)? {
                let (key, _) = entry?;
                let (owner, adapter) = key.value();
                if owner != tenant {
                    break;
                }
                names.push(adapter.to_owned());
            }
            Ok(names)
        })
    }

    /// Lists the snapshots of an adapter, the oldest first.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn snapshots(&self, tenant: &str, adapter: &str) -> Result<Vec<SnapshotInfo>> {
        self.read(|transaction| snapshot_list(&transaction.open_table(SNAPSHOTS)?, tenant, adapter))
    }

    /// Finds the latest snapshot that was not rolled back.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn current_snapshot(&self, tenant: &str, adapter: &str) -> Result<Option<SnapshotInfo>> {
        self.read(|transaction| {
            let path = Path::of_log(&transaction.open_table(ROLLBACKS)?, tenant, adapter)?;
            let snapshots = snapshot_list(&transaction.open_table(SNAPSHOTS)?, tenant, adapter)?;
            Ok(latest(&path, &snapshots, SnapshotKind::Tentative).cloned())
        })
    }

    /// Reads a snapshot and verifies its digest.
    ///
    /// # Errors
    /// [`Error::UnknownSnapshot`], [`Error::SnapshotDamaged`], and those of the file.
    pub fn snapshot(&self, tenant: &str, adapter: &str, version: u64) -> Result<Snapshot> {
        self.read(|transaction| {
            let key = (tenant, adapter, version);
            let info = find(&transaction.open_table(SNAPSHOTS)?, key)?;
            let blob = transaction.open_table(BLOBS)?.get(key)?.map(|blob| blob.value().to_vec());
            let bytes = blob.filter(|bytes| <[u8; 32]>::from(Sha256::digest(bytes)) == info.digest);
            let damaged = || Error::SnapshotDamaged { adapter: adapter.to_owned(), version };
            Ok(Snapshot { bytes: bytes.ok_or_else(damaged)?, info })
        })
    }

    /// Marks a snapshot as clean: it has passed the held-out gate.
    ///
    /// # Errors
    /// [`Error::UnknownSnapshot`], and those of the file.
    pub fn mark_clean(&self, tenant: &str, adapter: &str, version: u64) -> Result<()> {
        self.write(|tables| {
            let mut info = find(&tables.snapshots, (tenant, adapter, version))?;
            info.kind = SnapshotKind::Clean;
            tables.insert_snapshot(tenant, adapter, &info)
        })
    }

    /// Makes a snapshot the current one, `None`: the base without learning. Returns the sequence
    /// number of the rollback in the log.
    ///
    /// Events and snapshots after it are undone, not removed: a rollback to a later snapshot brings
    /// them back.
    ///
    /// # Errors
    /// [`Error::UnknownSnapshot`], and those of the file.
    pub fn roll_back(&self, tenant: &str, adapter: &str, version: Option<u64>) -> Result<u64> {
        check_name("tenant", tenant)?;
        check_name("adapter", adapter)?;
        self.write(|tables| {
            let through = match version {
                Some(version) => find(&tables.snapshots, (tenant, adapter, version))?.through,
                None => 0,
            };
            let next_version = tables.next_version(tenant, adapter)?;
            let (count, bytes, event_bytes, last) = tables.totals(tenant)?;
            let (sequence, target) = (last + 1, (version.unwrap_or(0), through, next_version));
            tables.rollbacks.insert((tenant, adapter, sequence), target)?;
            tables.versions.insert((tenant, adapter), next_version)?;
            tables.set_totals(tenant, (count, bytes, event_bytes, sequence))?;
            Ok(sequence)
        })
    }
}

impl Tables<'_> {
    pub(super) fn snapshot_list(&self, tenant: &str, adapter: &str) -> Result<Vec<SnapshotInfo>, Failure> {
        snapshot_list(&self.snapshots, tenant, adapter)
    }

    pub(super) fn remove_snapshot(
        &mut self,
        tenant: &str,
        adapter: &str,
        version: u64,
    ) -> Result<(), Failure> {
        self.snapshots.remove((tenant, adapter, version))?;
        self.blobs.remove((tenant, adapter, version))?;
        Ok(())
    }

    fn insert_snapshot(&mut self, tenant: &str, adapter: &str, info: &SnapshotInfo) -> Result<(), Failure> {
        let record = encode(&info.record())?;
        self.snapshots.insert((tenant, adapter, info.version), record.as_slice())?;
        Ok(())
    }

    fn next_version(&self, tenant: &str, adapter: &str) -> Result<u64, Failure> {
        Ok(self.versions.get((tenant, adapter))?.map_or(1, |version| version.value()))
    }
}

pub(super) fn snapshot_list(
    snapshots: &impl ReadableTable<SnapshotKey, &'static [u8]>,
    tenant: &str,
    adapter: &str,
) -> Result<Vec<SnapshotInfo>, Failure> {
    let mut list = Vec::new();
    for entry in snapshots.range((tenant, adapter, 0)..=(tenant, adapter, u64::MAX))? {
        let (key, record) = entry?;
        list.push(SnapshotInfo::new(key.value().2, decode(record.value())?));
    }
    Ok(list)
}

fn find(
    snapshots: &impl ReadableTable<SnapshotKey, &'static [u8]>,
    key: (&str, &str, u64),
) -> Result<SnapshotInfo, Failure> {
    let (tenant, adapter, version) = key;
    let Some(record) = snapshots.get(key)? else {
        let (tenant, adapter) = (tenant.to_owned(), adapter.to_owned());
        return Err(Error::UnknownSnapshot { tenant, adapter, version }.into());
    };
    Ok(SnapshotInfo::new(version, decode(record.value())?))
}
