//! Writing, recalling and consolidating memories.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::model::{Embed, embed_unit};

use super::consolidate::{Consolidated, consolidate};
use super::entry::{Detail, Entry, Id, Kind, MAX_SOURCES, Source};
use super::settings::Settings;
use super::store::{Forget, Hit, MemoryStore, Query};

/// Memory of agents over a store.
pub struct AgentMemory<S> {
    store: S,
    embed: Option<Arc<dyn Embed>>,
    settings: Settings,
}

impl<S: MemoryStore> AgentMemory<S> {
    /// Makes a memory. Without an embedding model, entries are found by keywords and time.
    ///
    /// # Errors
    /// [`Error::Setting`] for a rule outside its range, or if only one of model and
    /// [`Limits::dimension`](super::Limits::dimension) is given.
    pub fn new(store: S, embed: Option<Arc<dyn Embed>>, settings: Settings) -> Result<Self> {
        let parts = [("important", settings.important), ("session_confidence", settings.session_confidence)];
        for (name, value) in parts.into_iter().chain([("same_cosine", settings.same_cosine)]) {
            if !(0.0..=1.0).contains(&value) {
                return Err(Error::Setting { name, value: value.to_string(), range: "from 0 to 1" });
            }
        }
        if !(1..=MAX_SOURCES).contains(&settings.sessions) {
            let value = settings.sessions.to_string();
            return Err(Error::Setting { name: "sessions", value, range: "from 1 to 32" });
        }
        let dimension = store.limits().dimension;
        if embed.is_some() != (dimension > 0) {
            let range = "the dimension of the embedding model, 0 without one";
            return Err(Error::Setting { name: "dimension", value: dimension.to_string(), range });
        }
        Ok(Self { store, embed, settings })
    }

    /// The store: for lookups, export and forgetting.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The store, to change it.
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }

    /// Notes something in the working memory of a session. The same text again adds a sighting.
    ///
    /// # Errors
    /// Errors of the embedding model and of [`MemoryStore::apply`].
    pub fn note(
        &mut self,
        tenant: &str,
        session: &str,
        text: &str,
        importance: f32,
        now_ms: u64,
    ) -> Result<Id> {
        let new = Entry::new(Detail::Working, Some(session), text, importance, now_ms);
        let expires_ms = Some(now_ms.saturating_add(self.settings.working_ms));
        self.see(tenant, new, now_ms, |entry| entry.expires_ms = expires_ms)
    }

    /// Records an event of a session, at the time at which it happened.
    ///
    /// # Errors
    /// Errors of the embedding model and of [`MemoryStore::apply`].
    pub fn record(
        &mut self,
        tenant: &str,
        session: &str,
        text: &str,
        importance: f32,
        now_ms: u64,
    ) -> Result<Id> {
        self.see(
            tenant,
            Entry::new(Detail::Episodic, Some(session), text, importance, now_ms),
            now_ms,
            |_| {},
        )
    }

    /// Learns a fact from a named source, or adds the source to a known fact. A source that is
    /// named again replaces its former confidence.
    ///
    /// # Errors
    /// [`Error::Setting`] for a confidence outside 0 to 1 or more than 32 sources; those of the
    /// embedding model and of [`MemoryStore::apply`].
    pub fn learn(
        &mut self,
        tenant: &str,
        text: &str,
        source: &str,
        confidence: f32,
        now_ms: u64,
    ) -> Result<Id> {
        let source = Source { name: source.to_owned(), is_session: false, confidence };
        let detail = Detail::Semantic { sources: vec![source.clone()] };
        self.see(tenant, Entry::new(detail, None, text, 1.0, now_ms), now_ms, |known| {
            if let Detail::Semantic { sources } = &mut known.detail {
                sources.retain(|other| other.is_session || other.name != source.name);
                sources.push(source);
            }
        })
    }

    /// Counts a use of a skill, which is described by its text.
    ///
    /// # Errors
    /// Errors of the embedding model and of [`MemoryStore::apply`].
    pub fn practise(&mut self, tenant: &str, skill: &str, is_success: bool, now_ms: u64) -> Result<Id> {
        let detail = Detail::Procedural { successes: 0, failures: 0 };
        self.see(tenant, Entry::new(detail, None, skill, 1.0, now_ms), now_ms, |known| {
            if let Detail::Procedural { successes, failures } = &mut known.detail {
                let count = if is_success { successes } else { failures };
                *count = count.saturating_add(1);
            }
        })
    }

    /// Puts an entry, or adds a sighting to the one with its identity; then changes it.
    fn see(&mut self, tenant: &str, new: Entry, now_ms: u64, change: impl FnOnce(&mut Entry)) -> Result<Id> {
        new.check()?;
        let mut entry = match self.store.get(tenant, new.id(), now_ms)? {
            Some(known) => Entry {
                count: known.count.saturating_add(1),
                importance: known.importance.max(new.importance),
                seen_ms: known.seen_ms.max(now_ms),
                ..known
            },
            None => Entry { embedding: self.embedding(&new.text)?, ..new },
        };
        change(&mut entry);
        self.store.put(tenant, entry, now_ms)
    }

    fn embedding(&self, text: &str) -> Result<Vec<f32>> {
        self.embed.as_ref().map_or_else(|| Ok(Vec::new()), |embed| embed_unit(embed.as_ref(), text))
    }

    /// Finds entries by a text: by its embedding, if there is a model, and its words. The query's
    /// own embedding and keywords are replaced.
    ///
    /// # Errors
    /// Errors of the embedding model and of [`MemoryStore::search`].
    pub fn recall(&self, tenant: &str, text: &str, query: Query, now_ms: u64) -> Result<Vec<Hit>> {
        let query = Query { embedding: self.embedding(text)?, keywords: text.to_owned(), ..query };
        self.store.search(tenant, &query, now_ms)
    }

    /// Moves knowledge up by rule: working entries that were repeated or important become episodes,
    /// and what the episodes of several sessions agree on becomes a fact. A second call without
    /// news changes nothing. Of more than 2,000 episodes the latest are compared.
    ///
    /// # Errors
    /// Errors of [`MemoryStore::apply`].
    pub fn consolidate(&mut self, tenant: &str, now_ms: u64) -> Result<Consolidated> {
        let (changes, result) = consolidate(&self.store, &self.settings, tenant, now_ms)?;
        if !changes.is_empty() {
            self.store.apply(tenant, changes, now_ms)?;
        }
        Ok(result)
    }

    /// Ends a session: consolidates, then forgets the session's working memory.
    ///
    /// # Errors
    /// Errors of [`MemoryStore::apply`].
    pub fn end_session(&mut self, tenant: &str, session: &str, now_ms: u64) -> Result<Consolidated> {
        let result = self.consolidate(tenant, now_ms)?;
        let mut working = Vec::new();
        self.store.for_each(tenant, &mut |id, entry| {
            if entry.kind() == Kind::Working && entry.session.as_deref() == Some(session) {
                working.push(super::Change::Remove(id));
            }
        })?;
        self.store.apply(tenant, working, now_ms)?;
        self.store.forget(tenant, &Forget::Expired(now_ms), now_ms)?;
        Ok(result)
    }
}
