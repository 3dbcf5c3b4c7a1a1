//! Trajectories and their feedback.

use std::collections::BTreeSet;

use redb::{ReadOnlyTable, ReadableTable};

use super::LearningStore;
use super::failure::Failure;
use super::retention::now_ms;
use super::tables::{
    EVENTS, FEEDBACK, NEXT_ID, ORDER, REQUESTS, TENANTS, TIMES, TRAJECTORIES, Tables, TenantKey, decode,
    encode, entry_bytes,
};
use crate::error::{Error, Result};
use crate::trajectory::{Feedback, StoredTrajectory, Trajectory, TrajectoryId};

/// Number of trajectories and bytes of a tenant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenantUsage {
    /// Trajectories.
    pub trajectories: u64,
    /// Bytes of their entries, keys included, in all tables.
    pub bytes: u64,
    /// Bytes of the feedback log's entries.
    pub event_bytes: u64,
    /// Sequence number of the last learning event; 0 before the first.
    pub last_sequence: u64,
}

impl LearningStore {
    /// Stores trajectories in one transaction, then applies the retention.
    ///
    /// Each has a result of its own: [`Error::DuplicateRequest`] or [`Error::Record`] for one does
    /// not concern the others.
    ///
    /// # Errors
    /// Errors of the file, with nothing stored.
    pub fn add(&self, trajectories: &[Trajectory]) -> Result<Vec<Result<TrajectoryId>>> {
        self.write(|tables| {
            let mut results = Vec::with_capacity(trajectories.len());
            let mut tenants = BTreeSet::new();
            for trajectory in trajectories {
                let result = match trajectory.check() {
                    Ok(()) => tables.insert(trajectory, &[]),
                    Err(error) => Err(error.into()),
                };
                match result {
                    Ok(id) => {
                        tenants.insert(trajectory.tenant.as_str());
                        results.push(Ok(id));
                    }
                    Err(Failure::Refused(error)) => results.push(Err(error)),
                    Err(failure) => return Err(failure),
                }
            }
            tables.apply_retention(tenants, self.options(), now_ms())?;
            Ok(results)
        })
    }

    /// Attaches feedback to the trajectory of a request; returns the trajectory's number.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], [`Error::ForeignRequest`], [`Error::Record`],
    /// [`Error::NotFinite`], and those of the file.
    pub fn attach_feedback(&self, tenant: &str, request: &str, feedback: &Feedback) -> Result<TrajectoryId> {
        feedback.check()?;
        self.write(|tables| {
            let id = find_request(&tables.requests, tenant, request)?;
            tables.insert_feedback(tenant, id, feedback)?;
            tables.apply_retention([tenant].into(), self.options(), now_ms())?;
            Ok(TrajectoryId(id))
        })
    }

    /// Finds the trajectory of a request.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], [`Error::ForeignRequest`], and those of the file.
    pub fn find(&self, tenant: &str, request: &str) -> Result<TrajectoryId> {
        self.read(|transaction| {
            find_request(&transaction.open_table(REQUESTS)?, tenant, request).map(TrajectoryId)
        })
    }

    /// Reads a trajectory; `None` if the tenant has none of this number.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn trajectory(&self, tenant: &str, id: TrajectoryId) -> Result<Option<StoredTrajectory>> {
        self.read(|transaction| {
            let order = transaction.open_table(ORDER)?;
            if order.get((tenant, id.0))?.is_none() {
                return Ok(None);
            }
            let trajectories = transaction.open_table(TRAJECTORIES)?;
            read_trajectory(&trajectories, &transaction.open_table(FEEDBACK)?, id.0).map(Some)
        })
    }

    /// Reads at most `limit` trajectories of a tenant after one of them, in the order of storing.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn trajectories(
        &self,
        tenant: &str,
        after: Option<TrajectoryId>,
        limit: usize,
    ) -> Result<Vec<StoredTrajectory>> {
        let Some(from) = after.map_or(Some(0), |after| after.0.checked_add(1)) else { return Ok(vec![]) };
        self.read(|transaction| {
            let trajectories = transaction.open_table(TRAJECTORIES)?;
            let feedback = transaction.open_table(FEEDBACK)?;
            let order = transaction.open_table(ORDER)?;
            let mut page = Vec::new();
            for entry in order.range((tenant, from)..=(tenant, u64::MAX))?.take(limit) {
                page.push(read_trajectory(&trajectories, &feedback, entry?.0.value().1)?);
            }
            Ok(page)
        })
    }

    /// Lists the numbers of a tenant's trajectories created in a range of time, by time.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn created_between(&self, tenant: &str, from_ms: u64, to_ms: u64) -> Result<Vec<TrajectoryId>> {
        self.read(|transaction| {
            let times = transaction.open_table(TIMES)?;
            let mut ids = Vec::new();
            for entry in times.range((tenant, from_ms, 0)..=(tenant, to_ms, u64::MAX))? {
                ids.push(TrajectoryId(entry?.0.value().2));
            }
            Ok(ids)
        })
    }

    /// Lists the tenants with what they use, by name.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn tenants(&self) -> Result<Vec<(String, TenantUsage)>> {
        self.read(|transaction| {
            let tenants = transaction.open_table(TENANTS)?;
            let mut list = Vec::new();
            for entry in tenants.iter()? {
                let (tenant, totals) = entry?;
                let (trajectories, bytes, event_bytes, last_sequence) = totals.value();
                let usage = TenantUsage { trajectories, bytes, event_bytes, last_sequence };
                list.push((tenant.value().to_owned(), usage));
            }
            Ok(list)
        })
    }

    /// Number of learning events in the store, of all tenants.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn event_count(&self) -> Result<u64> {
        use redb::ReadableTableMetadata;
        self.read(|transaction| Ok(transaction.open_table(EVENTS)?.len()?))
    }
}

impl Tables<'_> {
    /// Stores a checked trajectory with its feedback under the next number.
    pub(super) fn insert(
        &mut self,
        trajectory: &Trajectory,
        feedback: &[Feedback],
    ) -> Result<TrajectoryId, Failure> {
        let (tenant, request) = (trajectory.tenant.as_str(), trajectory.request_id.as_str());
        if self.requests.get((request, tenant))?.is_some() {
            let (tenant, request) = (tenant.to_owned(), request.to_owned());
            return Err(Error::DuplicateRequest { tenant, request }.into());
        }
        let id = self.meta.get(NEXT_ID)?.map_or(1, |id| id.value());
        self.meta.insert(NEXT_ID, id + 1)?;
        let record = encode(trajectory)?;
        self.trajectories.insert(id, record.as_slice())?;
        self.requests.insert((request, tenant), id)?;
        self.times.insert((tenant, trajectory.created_ms, id), ())?;
        let bytes = trajectory_bytes(trajectory, id, record.len());
        self.order.insert((tenant, id), (trajectory.created_ms, bytes))?;
        let (count, total, events, sequence) = self.totals(tenant)?;
        self.set_totals(tenant, (count + 1, total + bytes, events, sequence))?;
        for feedback in feedback {
            self.insert_feedback(tenant, id, feedback)?;
        }
        Ok(TrajectoryId(id))
    }

    fn insert_feedback(&mut self, tenant: &str, id: u64, feedback: &Feedback) -> Result<(), Failure> {
        let last = self.feedback.range((id, 0)..=(id, u32::MAX))?.next_back();
        let number = last.transpose()?.map_or(0, |entry| entry.0.value().1.saturating_add(1));
        let record = encode(feedback)?;
        self.feedback.insert((id, number), record.as_slice())?;
        let added = entry_bytes::<(u64, u32), &[u8]>(&(id, number), &record.as_slice());
        let entry = self.order.get((tenant, id))?.map(|entry| entry.value());
        let (created_ms, bytes) =
            entry.ok_or_else(|| Failure::Damaged(format!("trajectory {id} has no owner")))?;
        self.order.insert((tenant, id), (created_ms, bytes + added))?;
        let (count, total, events, sequence) = self.totals(tenant)?;
        self.set_totals(tenant, (count, total + added, events, sequence))
    }

    /// Removes a trajectory from all tables; returns its bytes, `None` if the tenant has none.
    pub(super) fn remove(&mut self, tenant: &str, id: u64) -> Result<Option<u64>, Failure> {
        let Some((created_ms, bytes)) = self.order.remove((tenant, id))?.map(|entry| entry.value()) else {
            return Ok(None);
        };
        let record = self.trajectories.remove(id)?.map(|record| decode::<Trajectory>(record.value()));
        let request = record.transpose()?.map(|trajectory| trajectory.request_id);
        let request = request.ok_or_else(|| Failure::Damaged(format!("no trajectory {id}")))?;
        self.requests.remove((request.as_str(), tenant))?;
        self.times.remove((tenant, created_ms, id))?;
        self.feedback.retain_in((id, 0)..=(id, u32::MAX), |_, _| false)?;
        let (count, total, events, sequence) = self.totals(tenant)?;
        self.set_totals(tenant, (count - 1, total - bytes, events, sequence))?;
        Ok(Some(bytes))
    }
}

/// Bytes of a trajectory's entries in all tables, without feedback.
fn trajectory_bytes(trajectory: &Trajectory, id: u64, record_len: usize) -> u64 {
    let (tenant, request) = (trajectory.tenant.as_str(), trajectory.request_id.as_str());
    let key = size_of::<u64>() as u64;
    key + record_len as u64
        + entry_bytes::<(&str, &str), u64>(&(request, tenant), &id)
        + entry_bytes::<(&str, u64, u64), ()>(&(tenant, trajectory.created_ms, id), &())
        + entry_bytes::<TenantKey, (u64, u64)>(&(tenant, id), &(0, 0))
}

fn find_request(
    requests: &impl ReadableTable<(&'static str, &'static str), u64>,
    tenant: &str,
    request: &str,
) -> Result<u64, Failure> {
    if let Some(id) = requests.get((request, tenant))? {
        return Ok(id.value());
    }
    let next = requests.range((request, "")..)?.next().transpose()?;
    let request = request.to_owned();
    let is_foreign = next.is_some_and(|entry| entry.0.value().0 == request);
    let error =
        if is_foreign { Error::ForeignRequest { request } } else { Error::UnknownRequest { request } };
    Err(error.into())
}

/// Reads a trajectory that is known to exist.
pub(super) fn read_trajectory(
    trajectories: &ReadOnlyTable<u64, &'static [u8]>,
    feedback: &ReadOnlyTable<(u64, u32), &'static [u8]>,
    id: u64,
) -> Result<StoredTrajectory, Failure> {
    let record = trajectories.get(id)?.ok_or_else(|| Failure::Damaged(format!("no trajectory {id}")))?;
    let mut list = Vec::new();
    for entry in feedback.range((id, 0)..=(id, u32::MAX))? {
        list.push(decode(entry?.1.value())?);
    }
    Ok(StoredTrajectory { id: TrajectoryId(id), trajectory: decode(record.value())?, feedback: list })
}
