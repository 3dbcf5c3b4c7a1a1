//! History of an adapter that is in effect, given its rollbacks.

use redb::ReadableTable;

use super::failure::Failure;
use super::tables::{SnapshotKey, Target};
use crate::error::Result;

/// History of an adapter that is in effect: ranges of the log and of snapshot versions.
///
/// A rollback at sequence number r to a snapshot whose position is t makes the state after r equal
/// to the state after t. Walked backward from the end, the path jumps from each rollback that it
/// meets to its target; what it passes over is undone, and a later rollback can bring it back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Path {
    /// First and last position of each range, the latest range first.
    positions: Vec<(u64, u64)>,
    /// First and last version of snapshots of each range.
    versions: Vec<(u64, u64)>,
}

/// Rollback of an adapter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rollback {
    /// Its position in the log.
    pub(super) sequence: u64,
    /// Version of the target; 0: the base without learning.
    pub(super) version: u64,
    /// Position of the target.
    pub(super) through: u64,
    /// Version of the next snapshot: those between `version` and it are abandoned.
    pub(super) next_version: u64,
}

impl Path {
    /// Walks back from a position; `rollbacks` are in the order of the log.
    pub(super) fn new(end: u64, rollbacks: &[Rollback]) -> Self {
        let (mut path, mut position, mut version) = (Self::default(), end, u64::MAX);
        for rollback in rollbacks.iter().rev() {
            if rollback.sequence > position {
                continue;
            }
            path.positions.push((rollback.sequence, position));
            path.versions.push((rollback.next_version, version));
            // The target lies before the rollback, so that positions fall from jump to jump.
            (position, version) = (rollback.through, rollback.version);
        }
        path.positions.push((0, position));
        path.versions.push((1, version));
        path
    }

    /// Reads the rollbacks of an adapter and walks back from the end of the log.
    pub(super) fn of_log(
        rollbacks: &impl ReadableTable<SnapshotKey, Target>,
        tenant: &str,
        adapter: &str,
    ) -> Result<Self, Failure> {
        Ok(Self::new(u64::MAX, &read_rollbacks(rollbacks, tenant, adapter)?))
    }

    /// True if the state includes the event.
    pub(super) fn contains(&self, sequence: u64) -> bool {
        self.positions.iter().any(|(first, last)| (*first..=*last).contains(&sequence))
    }

    /// True if the snapshot of a version was not abandoned.
    pub(super) fn has_version(&self, version: u64) -> bool {
        self.versions.iter().any(|(first, last)| (*first..=*last).contains(&version))
    }
}

/// Rollbacks of an adapter, in the order of the log.
pub(super) fn read_rollbacks(
    rollbacks: &impl ReadableTable<SnapshotKey, Target>,
    tenant: &str,
    adapter: &str,
) -> Result<Vec<Rollback>, Failure> {
    let mut list = Vec::new();
    for entry in rollbacks.range((tenant, adapter, 0)..=(tenant, adapter, u64::MAX))? {
        let (key, target) = entry?;
        let (version, through, next_version) = target.value();
        list.push(Rollback { sequence: key.value().2, version, through, next_version });
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(end: u64, rollbacks: &[(u64, u64, u64, u64)]) -> Path {
        let rollback = |&(sequence, version, through, next_version): &(u64, u64, u64, u64)| Rollback {
            sequence,
            version,
            through,
            next_version,
        };
        Path::new(end, &rollbacks.iter().map(rollback).collect::<Vec<_>>())
    }

    fn positions(path: &Path, end: u64) -> Vec<u64> {
        (1..=end).filter(|sequence| path.contains(*sequence)).collect()
    }

    #[test]
    fn rollbacks_undo_events_and_later_ones_bring_them_back() {
        // Snapshot 1 after event 2, snapshot 2 after event 4; event 5 returns to 1; event 6 learns.
        let back = (5, 1, 2, 3);
        assert_eq!(positions(&path(4, &[back]), 6), [1, 2, 3, 4]);
        assert_eq!(positions(&path(6, &[back]), 6), [1, 2, 5, 6]);
        // Event 7 returns to snapshot 2.
        let forward = (7, 2, 4, 3);
        assert_eq!(positions(&path(8, &[back, forward]), 8), [1, 2, 3, 4, 7, 8]);
        // Event 9 returns to the base.
        let base = (9, 0, 0, 3);
        let path = path(10, &[back, forward, base]);
        assert_eq!(positions(&path, 10), [9, 10]);
        assert_eq!(path.versions, [(3, u64::MAX), (1, 0)]);
    }
}
