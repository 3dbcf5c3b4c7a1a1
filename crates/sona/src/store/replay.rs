//! Beginning of a replay: the snapshot to load and the events behind it.

use redb::ReadableTable;

use super::LearningStore;
use super::events::Header;
use super::failure::Failure;
use super::path::Path;
use super::snapshots::{SnapshotInfo, SnapshotKind, latest, snapshot_list};
use super::tables::{EVENTS, PAYLOADS, ROLLBACKS, SNAPSHOTS, TenantKey, decode};
use crate::error::Result;

/// Beginning of a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayStart {
    /// Snapshot to load; `None`: the base without learning.
    pub snapshot: Option<SnapshotInfo>,
    /// Sequence number after which events are replayed.
    pub after: u64,
    /// Events that cannot be replayed, because their payloads were trimmed.
    pub trimmed: u64,
}

impl LearningStore {
    /// Finds the beginning of a replay: the latest snapshot that was not rolled back, clean, or
    /// with [`SnapshotKind::Tentative`] of either kind.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn replay_start(&self, tenant: &str, adapter: &str, kind: SnapshotKind) -> Result<ReplayStart> {
        self.read(|transaction| {
            let path = Path::of_log(&transaction.open_table(ROLLBACKS)?, tenant, adapter)?;
            let snapshots = snapshot_list(&transaction.open_table(SNAPSHOTS)?, tenant, adapter)?;
            let (events, payloads) = (transaction.open_table(EVENTS)?, transaction.open_table(PAYLOADS)?);
            start(&path, latest(&path, &snapshots, kind), (tenant, adapter), &events, &payloads)
        })
    }
}

/// Beginning of a replay from a snapshot, with the number of trimmed events behind it.
pub(super) fn start(
    path: &Path,
    snapshot: Option<&SnapshotInfo>,
    (tenant, adapter): (&str, &str),
    events: &impl ReadableTable<TenantKey, &'static [u8]>,
    payloads: &impl ReadableTable<TenantKey, &'static [u8]>,
) -> Result<ReplayStart, Failure> {
    let after = snapshot.map_or(0, |info| info.through);
    let mut trimmed = 0;
    for entry in events.range((tenant, after.saturating_add(1))..=(tenant, u64::MAX))? {
        let (key, record) = entry?;
        let sequence = key.value().1;
        let is_trimmed = path.contains(sequence) && payloads.get((tenant, sequence))?.is_none();
        if is_trimmed && decode::<Header>(record.value())?.adapter == adapter {
            trimmed += 1;
        }
    }
    Ok(ReplayStart { snapshot: snapshot.cloned(), after, trimmed })
}
