//! Tables of the bank in a `redb` database; every key begins with the tenant.

use std::path::Path;
use std::sync::Arc;

use redb::backends::FileBackend;
use redb::{
    Database, ReadTransaction, ReadableDatabase as _, ReadableTable, TableDefinition, WriteTransaction,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::item::{Counts, Item};
use crate::error::{Error, Result};
use crate::files;

/// Version of the records.
const FORMAT: u64 = 1;

/// Tenant and id.
type ItemKey = (&'static str, u64);

/// `format`, `dim`, `next_id`.
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("bank_meta");
/// Items in JSON.
const ITEMS: TableDefinition<'_, ItemKey, &[u8]> = TableDefinition::new("bank_items");
/// Embeddings of queries, little-endian f32.
const QUERIES: TableDefinition<'_, ItemKey, &[u8]> = TableDefinition::new("bank_queries");
/// Embeddings of the items' own texts.
const CONTENTS: TableDefinition<'_, ItemKey, &[u8]> = TableDefinition::new("bank_contents");
/// Trajectories that were learned from, with the time.
const TRAJECTORIES: TableDefinition<'_, (&str, &str), u64> = TableDefinition::new("bank_trajectories");
/// Trajectories of each item.
const PROVENANCE: TableDefinition<'_, (&str, u64, &str), ()> = TableDefinition::new("bank_provenance");
/// Requests whose outcome is recorded, with the time.
const OUTCOMES: TableDefinition<'_, (&str, &str), u64> = TableDefinition::new("bank_outcomes");
/// Counts of a tenant's arms in JSON.
const ARMS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("bank_arms");

/// Outcomes of a tenant's requests for which an item matched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Arms {
    pub(super) with: Counts,
    pub(super) without: Counts,
}

/// Item with its embedding, as an index takes it.
pub(super) struct Stored {
    pub(super) item: Item,
    pub(super) query: Vec<f32>,
}

pub(super) struct Store {
    database: Arc<Database>,
}

fn db<E: Into<redb::Error>>(error: E) -> Error {
    Error::Database(Box::new(error.into()))
}

impl Store {
    /// Opens or creates the database and checks its format and dimension.
    pub(super) fn open(path: &Path, dim: usize) -> Result<Self> {
        let failed = |error| Error::File { path: path.to_owned(), error };
        let file = FileBackend::new(files::open_private(path).map_err(failed)?).map_err(db)?;
        Self::with(Arc::new(Database::builder().create_with_backend(file).map_err(db)?), dim)
    }

    /// Uses tables of a database that others use too.
    pub(super) fn with(database: Arc<Database>, dim: usize) -> Result<Self> {
        let store = Self { database };
        store.write(|tables| {
            tables.meta_or("format", FORMAT)?;
            tables.meta_or("dim", dim as u64)?;
            tables.meta_or("next_id", 1)?;
            // Every table exists before the first read.
            tables.create()
        })?;
        let read = store.read()?;
        let meta = read.0.open_table(META).map_err(db)?;
        for (name, expected) in [("format", FORMAT), ("dim", dim as u64)] {
            let found = meta.get(name).map_err(db)?.map(|value| value.value());
            if found != Some(expected) {
                return Err(Error::BankRecord {
                    what: format!("its {name}"),
                    reason: format!("it is {found:?}, this bank needs {expected}"),
                });
            }
        }
        Ok(store)
    }

    /// Runs one transaction; an error leaves the database as it was.
    pub(super) fn write<T>(&self, run: impl FnOnce(&Tables) -> Result<T>) -> Result<T> {
        let tables = Tables(self.database.begin_write().map_err(db)?);
        match run(&tables) {
            Ok(value) => tables.0.commit().map_err(db).map(|()| value),
            Err(error) => {
                // The first error is the one to report; a transaction that is not committed is
                // void.
                let _ = tables.0.abort();
                Err(error)
            }
        }
    }

    pub(super) fn read(&self) -> Result<View> {
        self.database.begin_read().map(View).map_err(db)
    }
}

/// Snapshot for reading.
pub(super) struct View(ReadTransaction);

impl View {
    pub(super) fn item(&self, tenant: &str, id: u64) -> Result<Option<Item>> {
        let table = self.0.open_table(ITEMS).map_err(db)?;
        get_json(&table, (tenant, id), || format!("item {id} of tenant {tenant:?}"))
    }

    /// Items of a tenant with the embeddings of their queries, ascending by id.
    pub(super) fn items(&self, tenant: &str) -> Result<Vec<Stored>> {
        let items = self.0.open_table(ITEMS).map_err(db)?;
        let queries = self.0.open_table(QUERIES).map_err(db)?;
        let mut found = Vec::new();
        for entry in items.range((tenant, 0)..=(tenant, u64::MAX)).map_err(db)? {
            let (key, bytes) = entry.map_err(db)?;
            let id = key.value().1;
            let what = || format!("item {id} of tenant {tenant:?}");
            let item: Item = from_json(bytes.value(), what)?;
            let vector = queries.get((tenant, id)).map_err(db)?;
            let query = vector.and_then(|bytes| from_bytes(bytes.value()));
            let query =
                query.ok_or_else(|| Error::BankRecord { what: what(), reason: "no embedding".into() })?;
            found.push(Stored { item, query });
        }
        Ok(found)
    }

    /// Embedding of an item's text.
    pub(super) fn content(&self, tenant: &str, id: u64) -> Result<Vec<f32>> {
        let table = self.0.open_table(CONTENTS).map_err(db)?;
        let bytes = table.get((tenant, id)).map_err(db)?;
        bytes.and_then(|bytes| from_bytes(bytes.value())).ok_or_else(|| Error::BankRecord {
            what: format!("item {id} of tenant {tenant:?}"),
            reason: "no embedding of its text".to_owned(),
        })
    }

    pub(super) fn provenance(&self, tenant: &str, id: u64) -> Result<Vec<String>> {
        let table = self.0.open_table(PROVENANCE).map_err(db)?;
        range_of_item(&table, tenant, id)
    }

    pub(super) fn is_known(&self, tenant: &str, trajectory: &str) -> Result<bool> {
        let table = self.0.open_table(TRAJECTORIES).map_err(db)?;
        Ok(table.get((tenant, trajectory)).map_err(db)?.is_some())
    }

    pub(super) fn arms(&self, tenant: &str) -> Result<Arms> {
        let table = self.0.open_table(ARMS).map_err(db)?;
        Ok(get_json(&table, tenant, || format!("counts of tenant {tenant:?}"))?.unwrap_or_default())
    }

    /// Tenants that have items, ascending.
    pub(super) fn tenants(&self) -> Result<Vec<String>> {
        let table = self.0.open_table(ITEMS).map_err(db)?;
        let mut tenants = Vec::new();
        let mut next = table.first().map_err(db)?.map(|(key, _)| key.value().0.to_owned());
        while let Some(tenant) = next {
            let mut after = table.range((tenant.as_str(), u64::MAX)..).map_err(db)?;
            next = None;
            for entry in after.by_ref().take(2) {
                let found = entry.map_err(db)?.0.value().0.to_owned();
                if found != tenant {
                    next = Some(found);
                    break;
                }
            }
            tenants.push(tenant);
        }
        Ok(tenants)
    }
}

/// Tables of one write transaction.
pub(super) struct Tables(WriteTransaction);

impl Tables {
    fn create(&self) -> Result<()> {
        self.0.open_table(ITEMS).map_err(db)?;
        self.0.open_table(QUERIES).map_err(db)?;
        self.0.open_table(CONTENTS).map_err(db)?;
        self.0.open_table(TRAJECTORIES).map_err(db)?;
        self.0.open_table(PROVENANCE).map_err(db)?;
        self.0.open_table(OUTCOMES).map_err(db)?;
        self.0.open_table(ARMS).map_err(db)?;
        Ok(())
    }

    /// Value of a name, set if absent.
    fn meta_or(&self, name: &str, value: u64) -> Result<u64> {
        let mut table = self.0.open_table(META).map_err(db)?;
        let found = table.get(name).map_err(db)?.map(|value| value.value());
        if found.is_none() {
            table.insert(name, value).map_err(db)?;
        }
        Ok(found.unwrap_or(value))
    }

    /// An id that was never used.
    pub(super) fn next_id(&self) -> Result<u64> {
        let id = self.meta_or("next_id", 1)?;
        let mut table = self.0.open_table(META).map_err(db)?;
        table.insert("next_id", id + 1).map_err(db)?;
        Ok(id)
    }

    pub(super) fn item(&self, tenant: &str, id: u64) -> Result<Option<Item>> {
        let table = self.0.open_table(ITEMS).map_err(db)?;
        get_json(&table, (tenant, id), || format!("item {id} of tenant {tenant:?}"))
    }

    pub(super) fn put_item(&self, tenant: &str, item: &Item) -> Result<()> {
        let bytes = to_json(item)?;
        let mut table = self.0.open_table(ITEMS).map_err(db)?;
        table.insert((tenant, item.id), bytes.as_slice()).map_err(db)?;
        Ok(())
    }

    pub(super) fn put_query(&self, tenant: &str, id: u64, vector: &[f32]) -> Result<()> {
        let mut table = self.0.open_table(QUERIES).map_err(db)?;
        table.insert((tenant, id), to_bytes(vector).as_slice()).map_err(db)?;
        Ok(())
    }

    pub(super) fn put_content(&self, tenant: &str, id: u64, vector: &[f32]) -> Result<()> {
        let mut table = self.0.open_table(CONTENTS).map_err(db)?;
        table.insert((tenant, id), to_bytes(vector).as_slice()).map_err(db)?;
        Ok(())
    }

    /// Removes an item with its embeddings and provenance; false if there is none.
    pub(super) fn remove_item(&self, tenant: &str, id: u64) -> Result<bool> {
        for trajectory in self.provenance(tenant, id)? {
            let mut table = self.0.open_table(PROVENANCE).map_err(db)?;
            table.remove((tenant, id, trajectory.as_str())).map_err(db)?;
        }
        self.0.open_table(QUERIES).map_err(db)?.remove((tenant, id)).map_err(db)?;
        self.0.open_table(CONTENTS).map_err(db)?.remove((tenant, id)).map_err(db)?;
        let mut table = self.0.open_table(ITEMS).map_err(db)?;
        Ok(table.remove((tenant, id)).map_err(db)?.is_some())
    }

    fn provenance(&self, tenant: &str, id: u64) -> Result<Vec<String>> {
        let table = self.0.open_table(PROVENANCE).map_err(db)?;
        range_of_item(&table, tenant, id)
    }

    /// Adds a trajectory to an item; false if it is there already.
    pub(super) fn add_source(&self, tenant: &str, id: u64, trajectory: &str) -> Result<bool> {
        let mut table = self.0.open_table(PROVENANCE).map_err(db)?;
        Ok(table.insert((tenant, id, trajectory), ()).map_err(db)?.is_none())
    }

    /// Adds the trajectories of one item to another; returns the number of new ones.
    pub(super) fn copy_sources(&self, tenant: &str, from: u64, to: u64) -> Result<u64> {
        let mut added = 0;
        for trajectory in self.provenance(tenant, from)? {
            added += u64::from(self.add_source(tenant, to, &trajectory)?);
        }
        Ok(added)
    }

    /// Items of a tenant that were learned from a trajectory.
    pub(super) fn items_of(&self, tenant: &str, trajectory: &str) -> Result<Vec<u64>> {
        let table = self.0.open_table(PROVENANCE).map_err(db)?;
        let mut ids = Vec::new();
        for entry in table.range((tenant, 0, "")..).map_err(db)? {
            let (key, _) = entry.map_err(db)?;
            let (owner, id, source) = key.value();
            if owner != tenant {
                break;
            }
            if source == trajectory {
                ids.push(id);
            }
        }
        Ok(ids)
    }

    /// Marks a trajectory as learned from; false if it was before.
    pub(super) fn mark_trajectory(&self, tenant: &str, trajectory: &str, now: u64) -> Result<bool> {
        mark(self.0.open_table(TRAJECTORIES).map_err(db)?, (tenant, trajectory), now)
    }

    /// Marks a request's outcome as recorded; false if it was before.
    pub(super) fn mark_outcome(&self, tenant: &str, request: &str, now: u64) -> Result<bool> {
        mark(self.0.open_table(OUTCOMES).map_err(db)?, (tenant, request), now)
    }

    pub(super) fn arms(&self, tenant: &str) -> Result<Arms> {
        let table = self.0.open_table(ARMS).map_err(db)?;
        Ok(get_json(&table, tenant, || format!("counts of tenant {tenant:?}"))?.unwrap_or_default())
    }

    pub(super) fn put_arms(&self, tenant: &str, arms: Arms) -> Result<()> {
        let bytes = to_json(&arms)?;
        self.0.open_table(ARMS).map_err(db)?.insert(tenant, bytes.as_slice()).map_err(db)?;
        Ok(())
    }

    /// Forgets that outcomes before `time` were recorded.
    pub(super) fn drop_outcomes(&self, tenant: &str, time: u64) -> Result<()> {
        let mut table = self.0.open_table(OUTCOMES).map_err(db)?;
        table.retain(|(owner, _), at| owner != tenant || at >= time).map_err(db)
    }

    /// Removes everything of a tenant but its items.
    pub(super) fn drop_marks(&self, tenant: &str) -> Result<()> {
        let mut table = self.0.open_table(TRAJECTORIES).map_err(db)?;
        table.retain(|(owner, _), _| owner != tenant).map_err(db)?;
        let mut table = self.0.open_table(OUTCOMES).map_err(db)?;
        table.retain(|(owner, _), _| owner != tenant).map_err(db)?;
        self.0.open_table(ARMS).map_err(db)?.remove(tenant).map_err(db)?;
        Ok(())
    }
}

fn mark(mut table: redb::Table<'_, (&str, &str), u64>, key: (&str, &str), now: u64) -> Result<bool> {
    let is_new = table.get(key).map_err(db)?.is_none();
    if is_new {
        table.insert(key, now).map_err(db)?;
    }
    Ok(is_new)
}

fn range_of_item(
    table: &impl ReadableTable<(&'static str, u64, &'static str), ()>,
    tenant: &str,
    id: u64,
) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in table.range((tenant, id, "")..).map_err(db)? {
        let (key, _) = entry.map_err(db)?;
        let (owner, of, trajectory) = key.value();
        if (owner, of) != (tenant, id) {
            break;
        }
        found.push(trajectory.to_owned());
    }
    Ok(found)
}

fn get_json<'k, K: redb::Key + 'static, T: DeserializeOwned>(
    table: &impl ReadableTable<K, &'static [u8]>,
    key: impl std::borrow::Borrow<K::SelfType<'k>>,
    what: impl Fn() -> String,
) -> Result<Option<T>> {
    let bytes = table.get(key).map_err(db)?;
    bytes.map(|bytes| from_json(bytes.value(), what)).transpose()
}

fn from_json<T: DeserializeOwned>(bytes: &[u8], what: impl Fn() -> String) -> Result<T> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::BankRecord { what: what(), reason: error.to_string() })
}

fn to_json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value)
        .map_err(|error| Error::BankRecord { what: "a new record".to_owned(), reason: error.to_string() })
}

fn to_bytes(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn from_bytes(bytes: &[u8]) -> Option<Vec<f32>> {
    let (chunks, rest) = bytes.as_chunks();
    rest.is_empty().then(|| chunks.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
}
