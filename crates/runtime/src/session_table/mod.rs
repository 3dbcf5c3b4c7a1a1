//! Index of sessions by tenant and id, in a sharded map: requests of different sessions do not
//! wait for each other.

mod error;
pub(crate) mod file;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use parking_lot::Mutex;
use ruvllm_kv_cache::prefix::PrefixKey;
use ruvllm_text::TokenId;

pub use self::error::SessionError;

/// Longest text of a last message that is kept, in bytes.
const MESSAGE_BYTES: usize = 4096;

/// Number of a session in the step loop: requests that go on from one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SessionId(pub(crate) u64);

/// Path of a tenant and id of a session of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) tenant: Box<str>,
    pub(crate) id: Box<str>,
}

impl Name {
    pub(crate) fn new(tenant: &str, id: &str) -> Self {
        Self { tenant: tenant.into(), id: id.into() }
    }
}

/// A session: shared by the index and the requests that run in it.
#[derive(Debug)]
pub(crate) struct Record {
    /// Number of the session in the step loop.
    pub(crate) number: SessionId,
    state: Mutex<State>,
}

/// State of a session after its last request.
#[derive(Debug, Clone)]
pub(crate) struct State {
    /// Token ids of the sequence: prompt and output of the last request.
    pub(crate) tokens: Arc<[TokenId]>,
    pub(crate) last_message: Arc<str>,
    pub(crate) last_used: SystemTime,
    /// Embedding of the last message, once it was asked for.
    pub(crate) embedding: Option<Arc<[f32]>>,
    /// Key of its prefix in the prefix cache; `None` without one.
    pub(crate) prefix: Option<PrefixKey>,
    /// True once it was removed: a request that still runs leaves nothing.
    is_removed: bool,
}

impl State {
    /// The same state, used at this time.
    pub(crate) fn used(mut self, now: SystemTime) -> Self {
        self.last_used = now;
        self
    }
}

impl Record {
    pub(crate) fn state(&self) -> State {
        self.state.lock().clone()
    }

    /// Notes the request that runs now.
    pub(crate) fn begin(&self, last_message: &str, now: SystemTime) {
        let mut state = self.state.lock();
        (state.last_message, state.embedding) = (message(last_message), None);
        state.last_used = now;
    }

    /// Notes the sequence of a request that has ended, and the key of its prefix. False if the
    /// session is gone.
    pub(crate) fn end(&self, tokens: &[TokenId], prefix: Option<PrefixKey>, now: SystemTime) -> bool {
        let mut state = self.state.lock();
        (state.tokens, state.prefix, state.last_used) = (tokens.into(), prefix, now);
        !state.is_removed
    }

    /// Keeps the embedding of a message, unless another one is the last by now.
    pub(crate) fn set_embedding(&self, of: &Arc<str>, embedding: Arc<[f32]>) {
        let mut state = self.state.lock();
        if Arc::ptr_eq(&state.last_message, of) {
            state.embedding = Some(embedding);
        }
    }
}

/// The text up to the longest that is kept.
fn message(text: &str) -> Arc<str> {
    let end = (0..=text.len().min(MESSAGE_BYTES)).rev().find(|&end| text.is_char_boundary(end));
    text[..end.unwrap_or(0)].into()
}

/// All sessions of an engine.
#[derive(Debug)]
pub(crate) struct SessionTable {
    records: DashMap<Name, Arc<Record>>,
    /// Number of sessions and quota of each tenant. Locked before `records`.
    tenants: DashMap<Box<str>, Share>,
    ttl: Option<Duration>,
    quota: usize,
}

/// Sessions of a tenant.
#[derive(Debug, Default)]
struct Share {
    sessions: usize,
    /// Largest number; `None` for that of the options.
    quota: Option<usize>,
}

impl SessionTable {
    pub(crate) fn new(ttl: Option<Duration>, quota: usize) -> Self {
        Self { records: DashMap::new(), tenants: DashMap::new(), ttl, quota }
    }

    /// The session of this name; a new one has the number that `number` gives.
    ///
    /// # Errors
    /// [`SessionError::Quota`].
    pub(crate) fn open(
        &self,
        name: Name,
        now: SystemTime,
        number: impl FnOnce() -> SessionId,
    ) -> Result<Arc<Record>, SessionError> {
        self.insert(name, now, number, |record| Ok(Arc::clone(record)))
    }

    /// Makes a session, or gives `found` the one of this name.
    pub(crate) fn insert(
        &self,
        name: Name,
        now: SystemTime,
        number: impl FnOnce() -> SessionId,
        found: impl FnOnce(&Arc<Record>) -> Result<Arc<Record>, SessionError>,
    ) -> Result<Arc<Record>, SessionError> {
        // The lock of the tenant makes counting and inserting one.
        let mut share = self.tenants.entry(name.tenant.clone()).or_default();
        let quota = share.quota.unwrap_or(self.quota);
        match self.records.entry(name) {
            Entry::Occupied(entry) => found(entry.get()),
            Entry::Vacant(entry) if share.sessions >= quota => {
                let tenant = entry.into_key().tenant.into();
                Err(SessionError::Quota { tenant, quota })
            }
            Entry::Vacant(entry) => {
                share.sessions += 1;
                let state = Self::state(Arc::default(), "", now, None);
                let record = Arc::new(Record { number: number(), state: Mutex::new(state) });
                entry.insert(Arc::clone(&record));
                Ok(record)
            }
        }
    }

    /// Makes a session beyond any quota; `None` if there is one.
    pub(crate) fn add(
        &self,
        name: Name,
        now: SystemTime,
        number: impl FnOnce() -> SessionId,
    ) -> Option<Arc<Record>> {
        let mut share = self.tenants.entry(name.tenant.clone()).or_default();
        match self.records.entry(name) {
            Entry::Occupied(_) => None,
            Entry::Vacant(entry) => {
                share.sessions += 1;
                let state = Self::state(Arc::default(), "", now, None);
                let record = Arc::new(Record { number: number(), state: Mutex::new(state) });
                entry.insert(Arc::clone(&record));
                Some(record)
            }
        }
    }

    pub(crate) fn get(&self, name: &Name) -> Option<Arc<Record>> {
        self.records.get(name).map(|record| Arc::clone(&record))
    }

    /// Removes a session if `is_due` says so.
    pub(crate) fn remove(&self, name: &Name, is_due: impl FnOnce(&State) -> bool) -> Option<Arc<Record>> {
        let mut share = self.tenants.get_mut(&name.tenant)?;
        let (_, record) = self.records.remove_if(name, |_, record| is_due(&record.state.lock()))?;
        share.sessions -= 1;
        record.state.lock().is_removed = true;
        Some(record)
    }

    /// All sessions, or those of a tenant, by name.
    pub(crate) fn all(&self, tenant: Option<&str>) -> Vec<(Name, Arc<Record>)> {
        let mut all: Vec<_> = (self.records.iter())
            .filter(|entry| tenant.is_none_or(|tenant| *entry.key().tenant == *tenant))
            .map(|entry| (entry.key().clone(), Arc::clone(entry.value())))
            .collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    pub(crate) fn set_quota(&self, tenant: &str, quota: usize) {
        self.tenants.entry(tenant.into()).or_default().quota = Some(quota);
    }

    /// True if a session was last used so long ago that its time to live is over.
    pub(crate) fn is_expired(&self, last_used: SystemTime, now: SystemTime) -> bool {
        // A clock that was set back makes no session older.
        let idle = now.duration_since(last_used).unwrap_or_default();
        self.ttl.is_some_and(|ttl| idle >= ttl)
    }

    /// Overwrites the state of a session with a saved one.
    pub(crate) fn fill(record: &Record, saved: State) {
        *record.state.lock() = saved;
    }

    /// A state with these values.
    pub(crate) fn state(
        tokens: Arc<[TokenId]>,
        last_message: &str,
        last_used: SystemTime,
        prefix: Option<PrefixKey>,
    ) -> State {
        State {
            tokens,
            last_message: message(last_message),
            last_used,
            embedding: None,
            prefix,
            is_removed: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(table: &SessionTable, tenant: &str, id: &str) -> Result<Arc<Record>, SessionError> {
        table.open(Name::new(tenant, id), SystemTime::UNIX_EPOCH, || SessionId(7))
    }

    #[test]
    fn quotas_count_the_sessions_of_a_tenant() {
        let table = SessionTable::new(None, 2);
        open(&table, "a", "1").expect("room");
        open(&table, "a", "2").expect("room");
        open(&table, "a", "1").expect("it exists");
        open(&table, "b", "1").expect("another tenant");
        let error = open(&table, "a", "3").expect_err("no room");
        assert!(matches!(error, SessionError::Quota { quota: 2, .. }), "{error:?}");
        assert!(table.remove(&Name::new("a", "2"), |_| true).is_some());
        assert!(table.remove(&Name::new("a", "2"), |_| true).is_none());
        open(&table, "a", "3").expect("room again");
        table.set_quota("a", 3);
        open(&table, "a", "4").expect("a larger quota");
        assert_eq!((table.all(Some("a")).len(), table.all(None).len()), (3, 4));
    }

    #[test]
    fn a_clock_that_is_set_back_ends_no_session() {
        let ttl = Duration::from_secs(60);
        let (table, now) = (SessionTable::new(Some(ttl), 2), SystemTime::UNIX_EPOCH + 10 * ttl);
        assert!(!table.is_expired(now, now - 5 * ttl));
        assert!(!table.is_expired(now, SystemTime::UNIX_EPOCH));
        // Time that passes after the jump counts from the last use, as before it.
        assert!(!table.is_expired(now, now + ttl / 2));
        assert!(table.is_expired(now, now + ttl));
    }

    #[test]
    fn many_threads_never_exceed_a_quota() {
        let table = SessionTable::new(None, 50);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let table = &table;
                scope.spawn(move || {
                    for round in 0..400 {
                        let id = ((round * 7 + thread * 13) % 90).to_string();
                        if open(table, "a", &id).is_err() {
                            table.remove(&Name::new("a", &id), |_| true);
                            table.remove(&Name::new("a", &((round * 3) % 90).to_string()), |_| true);
                        }
                        // A list may show a session that was replaced while it was made.
                        assert!(table.tenants.get("a").is_none_or(|tenant| tenant.sessions <= 50));
                    }
                });
            }
        });
        let count = table.tenants.get("a").expect("the tenant").sessions;
        assert_eq!(count, table.all(Some("a")).len());
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        assert_eq!(message("short").len(), 5);
        assert_eq!(message(&"é".repeat(4000)).len(), 4096);
        assert_eq!(message(&format!("x{}", "é".repeat(4000))).len(), 4095);
    }
}
