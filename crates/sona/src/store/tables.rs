//! Tables of the database and the encoding of their records.

use redb::{ReadableTable, Table, TableDefinition, Value, WriteTransaction};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::failure::Failure;

/// Version of the tables and of their records, in `META` under `FORMAT`.
pub(super) const FORMAT_VERSION: u64 = 1;
pub(super) const FORMAT: &str = "format";
/// Key of the number of the next trajectory in `META`.
pub(super) const NEXT_ID: &str = "next_id";

type Definition<K, V> = TableDefinition<'static, K, V>;

/// Tenant and number.
pub(super) type TenantKey = (&'static str, u64);
/// Tenant, adapter and version.
pub(super) type SnapshotKey = (&'static str, &'static str, u64);
/// Columns of `ROLLBACKS`: version and position of the target, version of the next snapshot.
pub(super) type Target = (u64, u64, u64);
/// Columns of `TENANTS`: trajectories, their bytes, bytes of events, last sequence number.
pub(super) type Totals = (u64, u64, u64, u64);

pub(super) const META: Definition<&str, u64> = TableDefinition::new("meta");
/// Number to trajectory.
pub(super) const TRAJECTORIES: Definition<u64, &[u8]> = TableDefinition::new("trajectories");
/// Number of the trajectory and of its feedback to feedback.
pub(super) const FEEDBACK: Definition<(u64, u32), &[u8]> = TableDefinition::new("feedback");
/// Request and tenant to number of the trajectory.
pub(super) const REQUESTS: Definition<(&str, &str), u64> = TableDefinition::new("requests");
/// Trajectories of a tenant in the order of storing, with creation time and bytes in all tables.
pub(super) const ORDER: Definition<TenantKey, (u64, u64)> = TableDefinition::new("order");
/// Tenant, creation time and number of the trajectory.
pub(super) const TIMES: Definition<(&str, u64, u64), ()> = TableDefinition::new("times");
pub(super) const TENANTS: Definition<&str, Totals> = TableDefinition::new("tenants");
/// Headers of learning events.
pub(super) const EVENTS: Definition<TenantKey, &[u8]> = TableDefinition::new("events");
/// Payloads of learning events.
pub(super) const PAYLOADS: Definition<TenantKey, &[u8]> = TableDefinition::new("payloads");
/// Headers of snapshots.
pub(super) const SNAPSHOTS: Definition<SnapshotKey, &[u8]> = TableDefinition::new("snapshots");
/// Bytes of snapshots.
pub(super) const BLOBS: Definition<SnapshotKey, &[u8]> = TableDefinition::new("blobs");
/// Rollbacks by tenant, adapter and sequence number.
pub(super) const ROLLBACKS: Definition<SnapshotKey, Target> = TableDefinition::new("rollbacks");
/// Tenant and adapter to the version of the next snapshot.
pub(super) const VERSIONS: Definition<(&str, &str), u64> = TableDefinition::new("versions");

/// All tables of a write transaction.
pub(super) struct Tables<'t> {
    pub(super) meta: Table<'t, &'static str, u64>,
    pub(super) trajectories: Table<'t, u64, &'static [u8]>,
    pub(super) feedback: Table<'t, (u64, u32), &'static [u8]>,
    pub(super) requests: Table<'t, (&'static str, &'static str), u64>,
    pub(super) order: Table<'t, TenantKey, (u64, u64)>,
    pub(super) times: Table<'t, (&'static str, u64, u64), ()>,
    pub(super) tenants: Table<'t, &'static str, Totals>,
    pub(super) events: Table<'t, TenantKey, &'static [u8]>,
    pub(super) payloads: Table<'t, TenantKey, &'static [u8]>,
    pub(super) snapshots: Table<'t, SnapshotKey, &'static [u8]>,
    pub(super) blobs: Table<'t, SnapshotKey, &'static [u8]>,
    pub(super) rollbacks: Table<'t, SnapshotKey, Target>,
    pub(super) versions: Table<'t, (&'static str, &'static str), u64>,
}

impl<'t> Tables<'t> {
    /// Opens the tables, creating those that are missing.
    pub(super) fn open(transaction: &'t WriteTransaction) -> Result<Self, Failure> {
        Ok(Self {
            meta: transaction.open_table(META)?,
            trajectories: transaction.open_table(TRAJECTORIES)?,
            feedback: transaction.open_table(FEEDBACK)?,
            requests: transaction.open_table(REQUESTS)?,
            order: transaction.open_table(ORDER)?,
            times: transaction.open_table(TIMES)?,
            tenants: transaction.open_table(TENANTS)?,
            events: transaction.open_table(EVENTS)?,
            payloads: transaction.open_table(PAYLOADS)?,
            snapshots: transaction.open_table(SNAPSHOTS)?,
            blobs: transaction.open_table(BLOBS)?,
            rollbacks: transaction.open_table(ROLLBACKS)?,
            versions: transaction.open_table(VERSIONS)?,
        })
    }

    pub(super) fn totals(&self, tenant: &str) -> Result<Totals, Failure> {
        Ok(self.tenants.get(tenant)?.map_or((0, 0, 0, 0), |totals| totals.value()))
    }

    /// Stores the totals of a tenant.
    pub(super) fn set_totals(&mut self, tenant: &str, totals: Totals) -> Result<(), Failure> {
        self.tenants.insert(tenant, totals)?;
        Ok(())
    }
}

/// Bytes of an entry as redb counts them in a table's `stored_bytes`.
pub(super) fn entry_bytes<'a, K, V>(key: &K::SelfType<'a>, value: &V::SelfType<'a>) -> u64
where
    K: Value + 'a,
    V: Value + 'a,
{
    (K::as_bytes(key).as_ref().len() + V::as_bytes(value).as_ref().len()) as u64
}

/// Encodes a record: the format's version, then postcard.
pub(super) fn encode(record: &impl Serialize) -> Result<Vec<u8>, Failure> {
    let bytes = postcard::to_extend(record, vec![FORMAT_VERSION as u8]);
    bytes.map_err(|error| Failure::Damaged(format!("record: {error}")))
}

/// Decodes a record of [`encode`].
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    let damaged = |reason: String| Failure::Damaged(format!("record: {reason}"));
    let Some((&version, rest)) = bytes.split_first() else { return Err(damaged("empty".to_owned())) };
    if u64::from(version) != FORMAT_VERSION {
        return Err(damaged(format!("version {version}")));
    }
    postcard::from_bytes(rest).map_err(|error| damaged(error.to_string()))
}
