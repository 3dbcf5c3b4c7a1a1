//! Store on disk, with the feature `store`.

use std::path::Path;

use redb::backends::FileBackend;
use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};

use crate::error::{Error, Result};
use crate::files;

use super::entry::{Entry, Id};
use super::in_memory::{InMemory, Plan};
use super::store::{Change, Hit, Limits, MemoryStore, Query, Usage};

/// Entries in JSON, by tenant and identity.
const ENTRIES: TableDefinition<'_, (&str, u128), &[u8]> = TableDefinition::new("memory");

/// Store in a file of redb. Every change is one transaction, which is on disk when the call
/// returns: a killed process loses nothing and never leaves half a change. Entries are kept in
/// memory too, where searches read them.
pub struct DiskStore {
    memory: InMemory,
    database: Database,
}

impl DiskStore {
    /// Opens a file or creates it, and reads all entries.
    ///
    /// # Errors
    /// [`Error::Store`] if the file is no store, is damaged or open in another process;
    /// [`Error::MemoryFull`] or [`Error::Dimension`] if its entries do not fit the limits.
    pub fn open(path: &Path, limits: Limits, now_ms: u64) -> Result<Self> {
        let file = files::open_private(path).map_err(|error| Error::File { path: path.to_owned(), error })?;
        let file = FileBackend::new(file).map_err(failed("open the memory store"))?;
        let database = Database::builder().create_with_backend(file);
        let database = database.map_err(failed("open the memory store"))?;
        let mut memory = InMemory::new(limits);
        let transaction = database.begin_write().map_err(failed("open the memory store"))?;
        // Creates the table, so that later reads find it.
        transaction.open_table(ENTRIES).map_err(failed("open the memory store"))?;
        transaction.commit().map_err(failed("open the memory store"))?;
        for (tenant, changes) in read_all(&database)? {
            let plan = memory.plan(&tenant, changes, now_ms)?;
            memory.commit(&tenant, plan);
        }
        Ok(Self { memory, database })
    }

    fn write(&self, tenant: &str, plan: &Plan) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        {
            let mut table = transaction.open_table(ENTRIES)?;
            for Id(id) in plan.removes() {
                table.remove((tenant, id))?;
            }
            for (Id(id), entry) in plan.puts() {
                let json = serde_json::to_vec(entry).map_err(|error| redb::Error::Io(error.into()))?;
                table.insert((tenant, id), json.as_slice())?;
            }
        }
        transaction.commit()?;
        Ok(())
    }
}

/// Makes a function that wraps an error of the database.
fn failed<E: Into<redb::Error>>(action: &'static str) -> impl Fn(E) -> Error {
    move |error| Error::Store { action, source: Box::new(error.into()) }
}

/// Entries of all tenants.
fn read_all(database: &Database) -> Result<Vec<(String, Vec<Change>)>> {
    let action = "read the memory store";
    let transaction = database.begin_read().map_err(failed(action))?;
    let table = transaction.open_table(ENTRIES).map_err(failed(action))?;
    let mut tenants: Vec<(String, Vec<Change>)> = Vec::new();
    for row in table.iter().map_err(failed(action))? {
        let (key, value) = row.map_err(failed(action))?;
        let (tenant, id) = key.value();
        let entry: Entry = serde_json::from_slice(value.value())
            .map_err(|error| Error::Store { action, source: Box::new(error) })?;
        if entry.id() != Id(id) {
            let text = format!("entry {} has the key {}", entry.id(), Id(id));
            return Err(Error::Store { action, source: text.into() });
        }
        if tenants.last().is_none_or(|(last, _)| last != tenant) {
            tenants.push((tenant.to_owned(), Vec::new()));
        }
        if let Some((_, changes)) = tenants.last_mut() {
            changes.push(Change::Put(entry));
        }
    }
    Ok(tenants)
}

impl MemoryStore for DiskStore {
    fn apply(&mut self, tenant: &str, changes: Vec<Change>, now_ms: u64) -> Result<usize> {
        let plan = self.memory.plan(tenant, changes, now_ms)?;
        self.write(tenant, &plan).map_err(failed("write the memory store"))?;
        let evicted = plan.evicted;
        self.memory.commit(tenant, plan);
        Ok(evicted)
    }

    fn get(&self, tenant: &str, id: Id, now_ms: u64) -> Result<Option<Entry>> {
        self.memory.get(tenant, id, now_ms)
    }

    fn search(&self, tenant: &str, query: &Query, now_ms: u64) -> Result<Vec<Hit>> {
        self.memory.search(tenant, query, now_ms)
    }

    fn for_each(&self, tenant: &str, visit: &mut dyn FnMut(Id, &Entry)) -> Result<()> {
        self.memory.for_each(tenant, visit)
    }

    fn usage(&self, tenant: &str) -> Result<Usage> {
        self.memory.usage(tenant)
    }

    fn limits(&self) -> &Limits {
        self.memory.limits()
    }
}
