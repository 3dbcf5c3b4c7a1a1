//! Removal of trajectories with everything that was learned from them.

use std::collections::{BTreeMap, BTreeSet};

use redb::ReadableTable;

use super::LearningStore;
use super::events::Header;
use super::failure::Failure;
use super::path::{Path, read_rollbacks};
use super::replay::{ReplayStart, start};
use super::snapshots::{SnapshotInfo, SnapshotKind, latest};
use super::tables::{Tables, decode};
use crate::error::Result;
use crate::trajectory::TrajectoryId;

/// Data of a tenant to forget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForgetScope {
    /// Everything, the tenant's name included.
    All,
    /// Trajectories and learning events created at or after a wall-clock time, in milliseconds
    /// since 1970.
    Since(u64),
    /// One trajectory and the events that learned from it, also if retention has removed it.
    Trajectory(TrajectoryId),
}

/// Data that was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Forgotten {
    /// Trajectories, with their feedback.
    pub trajectories: Vec<TrajectoryId>,
    /// Bytes of their entries.
    pub bytes: u64,
    /// Learning events.
    pub events: u64,
    /// Snapshots that included one of these events: adapter and version.
    pub snapshots: Vec<(String, u64)>,
    /// Adapters to build again. Until then their latest snapshot is one without the influence.
    pub rebuild: Vec<Rebuild>,
}

/// Adapter to build again by replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebuild {
    /// Name of the adapter.
    pub adapter: String,
    /// Beginning of the replay.
    pub start: ReplayStart,
}

impl LearningStore {
    /// Removes data of a tenant and the snapshots that it has influenced, in one transaction.
    ///
    /// Records that are still in a [`Recorder`](crate::Recorder)'s queue are not reached: flush it
    /// before. Freed pages are used again; [`compact`](Self::compact) returns them to the file
    /// system.
    ///
    /// # Errors
    /// Errors of the file, with nothing removed.
    pub fn forget(&self, tenant: &str, scope: ForgetScope) -> Result<Forgotten> {
        self.write(|tables| {
            let mut forgotten = Forgotten::default();
            for id in tables.trajectories_in(tenant, scope)? {
                if let Some(bytes) = tables.remove(tenant, id)? {
                    forgotten.trajectories.push(TrajectoryId(id));
                    forgotten.bytes += bytes;
                }
            }
            let events = tables.events_in(tenant, scope, &forgotten.trajectories)?;
            if scope == ForgetScope::All {
                forgotten.events = events.values().map(|sequences| sequences.len() as u64).sum();
                forgotten.snapshots = tables.remove_learning(tenant)?;
                return Ok(forgotten);
            }
            for (adapter, sequences) in &events {
                for version in tables.influenced(tenant, adapter, sequences)? {
                    tables.remove_snapshot(tenant, adapter, version)?;
                    forgotten.snapshots.push((adapter.clone(), version));
                }
                for sequence in sequences {
                    tables.remove_event(tenant, *sequence)?;
                }
                forgotten.events += sequences.len() as u64;
                let path = Path::of_log(&tables.rollbacks, tenant, adapter)?;
                let snapshots = tables.snapshot_list(tenant, adapter)?;
                let latest = latest(&path, &snapshots, SnapshotKind::Clean);
                let start = start(&path, latest, (tenant, adapter), &tables.events, &tables.payloads)?;
                forgotten.rebuild.push(Rebuild { adapter: adapter.clone(), start });
            }
            Ok(forgotten)
        })
    }
}

impl Tables<'_> {
    fn trajectories_in(&self, tenant: &str, scope: ForgetScope) -> Result<Vec<u64>, Failure> {
        let from_ms = match scope {
            ForgetScope::Trajectory(id) => return Ok(vec![id.0]),
            ForgetScope::All => 0,
            ForgetScope::Since(from_ms) => from_ms,
        };
        let mut ids = Vec::new();
        for entry in self.times.range((tenant, from_ms, 0)..=(tenant, u64::MAX, u64::MAX))? {
            ids.push(entry?.0.value().2);
        }
        Ok(ids)
    }

    /// Sequence numbers of the events in a scope, by adapter.
    fn events_in(
        &self,
        tenant: &str,
        scope: ForgetScope,
        removed: &[TrajectoryId],
    ) -> Result<BTreeMap<String, Vec<u64>>, Failure> {
        let mut removed: BTreeSet<u64> = removed.iter().map(|id| id.0).collect();
        if let ForgetScope::Trajectory(id) = scope {
            removed.insert(id.0);
        }
        let mut events = BTreeMap::<String, Vec<u64>>::new();
        for entry in self.events.range((tenant, 0)..=(tenant, u64::MAX))? {
            let (key, record) = entry?;
            let header: Header = decode(record.value())?;
            let is_in = match scope {
                ForgetScope::All => true,
                ForgetScope::Since(from_ms) if header.created_ms >= from_ms => true,
                _ => header.trajectories.iter().any(|id| removed.contains(id)),
            };
            if is_in {
                events.entry(header.adapter).or_default().push(key.value().1);
            }
        }
        Ok(events)
    }

    /// Versions of the snapshots that include one of the events.
    fn influenced(&self, tenant: &str, adapter: &str, sequences: &[u64]) -> Result<Vec<u64>, Failure> {
        let rollbacks = read_rollbacks(&self.rollbacks, tenant, adapter)?;
        let snapshots = self.snapshot_list(tenant, adapter)?;
        let includes = |info: &SnapshotInfo| {
            let path = Path::new(info.through, &rollbacks);
            sequences.iter().any(|sequence| path.contains(*sequence))
        };
        Ok(snapshots.iter().filter(|info| includes(info)).map(|info| info.version).collect())
    }

    /// Removes the log, the snapshots and the totals of a tenant; returns the snapshots.
    fn remove_learning(&mut self, tenant: &str) -> Result<Vec<(String, u64)>, Failure> {
        let all = (tenant, 0)..=(tenant, u64::MAX);
        self.events.retain_in(all.clone(), |_, _| false)?;
        self.payloads.retain_in(all, |_, _| false)?;
        let mut adapters = Vec::new();
        for entry in self.versions.range((tenant, "")..)? {
            let key = entry?.0;
            let (owner, adapter) = key.value();
            if owner != tenant {
                break;
            }
            adapters.push(adapter.to_owned());
        }
        let mut snapshots = Vec::new();
        for adapter in adapters {
            for info in self.snapshot_list(tenant, &adapter)? {
                self.remove_snapshot(tenant, &adapter, info.version)?;
                snapshots.push((adapter.clone(), info.version));
            }
            let adapter = adapter.as_str();
            self.rollbacks.retain_in((tenant, adapter, 0)..=(tenant, adapter, u64::MAX), |_, _| false)?;
            self.versions.remove((tenant, adapter))?;
        }
        self.tenants.remove(tenant)?;
        Ok(snapshots)
    }
}
