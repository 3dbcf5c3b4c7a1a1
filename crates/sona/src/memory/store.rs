//! Interface of stores.

use crate::error::Result;

use super::entry::{Detail, Entry, Id, Kind};

/// Limits of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Values per embedding; 0 if entries have none.
    pub dimension: usize,
    /// Bytes of entries per tenant; over it, the tenant's weakest entries are evicted.
    pub tenant_bytes: usize,
    /// Bytes of all entries; over it, puts are refused: no tenant evicts another's entries.
    pub total_bytes: usize,
    /// Entries of working memory per session; over it, the session's weakest are evicted.
    pub working_entries: usize,
}

impl Default for Limits {
    /// Makes limits of 16 MiB per tenant, 256 MiB in all and 64 working entries, without
    /// embeddings.
    fn default() -> Self {
        Self { dimension: 0, tenant_bytes: 16 << 20, total_bytes: 256 << 20, working_entries: 64 }
    }
}

/// Change of a store.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Inserts an entry or replaces the one with its identity.
    Put(Entry),
    /// Removes an entry, if it exists.
    Remove(Id),
}

/// Condition of a search. Empty fields restrict nothing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Query {
    /// Embedding of length 1 to compare with.
    pub embedding: Vec<f32>,
    /// Words to compare with.
    pub keywords: String,
    /// Kinds of entries.
    pub kinds: Vec<Kind>,
    /// Session of the entries.
    pub session: Option<String>,
    /// Earliest and latest [`Entry::created_ms`].
    pub created_ms: Option<(u64, u64)>,
    /// Least relevance of a hit.
    pub min_relevance: f32,
    /// Maximum number of hits.
    pub limit: usize,
}

/// Entry that a search found.
#[derive(Debug, Clone, PartialEq)]
pub struct Hit {
    /// Identity of the entry.
    pub id: Id,
    /// The entry.
    pub entry: Entry,
    /// Mean of the cosine (at least 0) and the share of keywords that the entry has, of those that
    /// the query gives; 1 if it gives neither. Equal hits are ordered by age, the newest first.
    pub relevance: f32,
}

/// Choice of entries to forget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Forget {
    /// All entries of the tenant.
    Tenant,
    /// Entries of a session, and facts that were consolidated from it. Consolidation derives a fact
    /// again if other sessions suffice.
    Session(String),
    /// Entries last seen before this time.
    SeenBefore(u64),
    /// Entries expired at this time.
    Expired(u64),
    /// One entry.
    Entry(Id),
}

impl Forget {
    /// Change that forgets the entry; `None` if it stays as it is.
    fn change(&self, id: Id, entry: &Entry) -> Option<Change> {
        let is_chosen = match self {
            Self::Tenant => true,
            Self::Session(session) => {
                if let Detail::Semantic { sources } = &entry.detail {
                    return forget_source(session, id, entry, sources);
                }
                entry.session.as_ref() == Some(session)
            }
            Self::SeenBefore(time) => entry.seen_ms < *time,
            Self::Expired(now) => !entry.is_live(*now),
            Self::Entry(chosen) => id == *chosen,
        };
        is_chosen.then_some(Change::Remove(id))
    }
}

/// Removes a session from the sources of a fact, and the fact itself unless somebody stated it.
fn forget_source(session: &str, id: Id, entry: &Entry, sources: &[super::Source]) -> Option<Change> {
    if !sources.iter().any(|source| source.is_session && source.name == session) {
        return None;
    }
    let stated: Vec<_> = sources.iter().filter(|source| !source.is_session).cloned().collect();
    if stated.is_empty() {
        return Some(Change::Remove(id));
    }
    Some(Change::Put(Entry { detail: Detail::Semantic { sources: stated }, ..entry.clone() }))
}

/// Size of a tenant's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Entries, expired ones that were not yet removed included.
    pub entries: usize,
    /// Their bytes.
    pub bytes: usize,
}

/// Store of entries. All methods act on one tenant; an unknown tenant has no entries.
pub trait MemoryStore {
    /// Applies all changes or none, and evicts over the limits. Returns the number of evicted
    /// entries.
    ///
    /// # Errors
    /// [`Error::Setting`](crate::Error::Setting), [`Error::Dimension`](crate::Error::Dimension) and
    /// [`Error::NotFinite`](crate::Error::NotFinite) for a bad entry,
    /// [`Error::MemoryFull`](crate::Error::MemoryFull) if the entries do not fit, and
    /// [`Error::Store`](crate::Error::Store) if they cannot be written.
    fn apply(&mut self, tenant: &str, changes: Vec<Change>, now_ms: u64) -> Result<usize>;

    /// Reads an entry; `None` if there is none or it has expired.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store).
    fn get(&self, tenant: &str, id: Id, now_ms: u64) -> Result<Option<Entry>>;

    /// Finds entries, the most relevant first.
    ///
    /// # Errors
    /// [`Error::Dimension`](crate::Error::Dimension), [`Error::Store`](crate::Error::Store).
    fn search(&self, tenant: &str, query: &Query, now_ms: u64) -> Result<Vec<Hit>>;

    /// Visits all entries in the order of their identities, expired ones too.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store).
    fn for_each(&self, tenant: &str, visit: &mut dyn FnMut(Id, &Entry)) -> Result<()>;

    /// Size of the tenant's memory.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store).
    fn usage(&self, tenant: &str) -> Result<Usage>;

    /// Limits of the store.
    fn limits(&self) -> &Limits;

    /// Inserts or replaces one entry. Returns its identity.
    ///
    /// # Errors
    /// Errors of [`apply`](Self::apply).
    fn put(&mut self, tenant: &str, entry: Entry, now_ms: u64) -> Result<Id> {
        let id = entry.id();
        self.apply(tenant, vec![Change::Put(entry)], now_ms)?;
        Ok(id)
    }

    /// Forgets entries for good. Returns the number of entries that were removed or lost a source.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store).
    fn forget(&mut self, tenant: &str, what: &Forget, now_ms: u64) -> Result<usize> {
        let mut changes = Vec::new();
        self.for_each(tenant, &mut |id, entry| changes.extend(what.change(id, entry)))?;
        let n_changes = changes.len();
        self.apply(tenant, changes, now_ms)?;
        Ok(n_changes)
    }
}
