//! Store in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::error::{Error, Result};
use crate::lexical::{hash, words};
use crate::model::{dot, normalize};

use super::entry::{Entry, Id, Kind};
use super::store::{Change, Hit, Limits, MemoryStore, Query, Usage};

/// Share of a budget that eviction leaves, so that it does not run at each put.
const EVICT_TO: f64 = 0.95;

/// Store in memory: a search compares every entry of the tenant, which is exact and takes
/// milliseconds for 10,000 entries (ADR-0081).
#[derive(Debug, Clone, Default)]
pub struct InMemory {
    limits: Limits,
    tenants: HashMap<String, Tenant>,
    bytes: usize,
}

#[derive(Debug, Clone, Default)]
struct Tenant {
    entries: BTreeMap<Id, Stored>,
    bytes: usize,
}

#[derive(Debug, Clone)]
struct Stored {
    entry: Entry,
    /// Hashes of its words, sorted.
    words: Box<[u64]>,
    bytes: usize,
}

impl Stored {
    fn new(mut entry: Entry, limits: &Limits) -> Result<Self> {
        entry.check()?;
        let (got, expected) = (entry.embedding.len(), limits.dimension);
        if got != 0 {
            if got != expected {
                return Err(Error::Dimension { what: "the embedding of an entry", expected, got });
            }
            let square = dot(&entry.embedding, &entry.embedding);
            // An embedding of length 1 keeps its bits, so that import restores what was exported.
            let is_unit = (0.999..1.001).contains(&square);
            if !is_unit {
                entry.embedding = normalize(entry.embedding, "the embedding of an entry")?;
            }
        }
        let words = word_set(&entry.text);
        let bytes = entry.bytes() + size_of_val(&*words);
        Ok(Self { entry, words, bytes })
    }

    fn is_working_of(&self, session: Option<&str>) -> bool {
        self.entry.kind() == Kind::Working && self.entry.session.as_deref() == session
    }
}

fn word_set(text: &str) -> Box<[u64]> {
    let mut words: Vec<u64> = words(text).map(hash).collect();
    words.sort_unstable();
    words.dedup();
    words.into()
}

/// Changes with the evictions that they cause.
pub(super) struct Plan {
    puts: BTreeMap<Id, Stored>,
    removes: BTreeSet<Id>,
    pub(super) evicted: usize,
}

impl Plan {
    /// Entries to write.
    #[cfg(feature = "store")]
    pub(super) fn puts(&self) -> impl Iterator<Item = (Id, &Entry)> {
        self.puts.iter().map(|(&id, stored)| (id, &stored.entry))
    }

    /// Entries to delete.
    #[cfg(feature = "store")]
    pub(super) fn removes(&self) -> impl Iterator<Item = Id> {
        self.removes.iter().copied()
    }
}

impl InMemory {
    /// Makes an empty store.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Checks changes and chooses the entries to evict; nothing is changed yet.
    pub(super) fn plan(&self, tenant: &str, changes: Vec<Change>, now_ms: u64) -> Result<Plan> {
        let mut plan = Plan { puts: BTreeMap::new(), removes: BTreeSet::new(), evicted: 0 };
        for change in changes {
            match change {
                Change::Put(entry) => {
                    let id = entry.id();
                    plan.puts.insert(id, Stored::new(entry, &self.limits)?);
                    plan.removes.remove(&id);
                }
                Change::Remove(id) => {
                    plan.puts.remove(&id);
                    plan.removes.insert(id);
                }
            }
        }
        let empty = Tenant::default();
        let existing = self.tenants.get(tenant).unwrap_or(&empty);
        plan.evict_working(existing, self.limits.working_entries, now_ms);
        let others = self.bytes - existing.bytes;
        let room = self.limits.tenant_bytes.min(self.limits.total_bytes.saturating_sub(others));
        plan.evict_bytes(existing, room, now_ms);
        // Changes that only remove are never refused.
        let need = plan.bytes_after(existing);
        if need > room && !plan.puts.is_empty() {
            return Err(Error::MemoryFull { tenant: tenant.to_owned(), need, room });
        }
        Ok(plan)
    }

    /// Applies a plan made by [`plan`](Self::plan) since the last change.
    pub(super) fn commit(&mut self, tenant: &str, plan: Plan) {
        let mut memory = self.tenants.remove(tenant).unwrap_or_default();
        self.bytes -= memory.bytes;
        memory.bytes = plan.bytes_after(&memory);
        for id in &plan.removes {
            memory.entries.remove(id);
        }
        memory.entries.extend(plan.puts);
        if !memory.entries.is_empty() {
            self.bytes += memory.bytes;
            self.tenants.insert(tenant.to_owned(), memory);
        }
    }
}

impl Plan {
    fn bytes_after(&self, existing: &Tenant) -> usize {
        let gone = self.removes.iter().chain(self.puts.keys());
        let freed: usize = gone.filter_map(|id| existing.entries.get(id)).map(|stored| stored.bytes).sum();
        existing.bytes - freed + self.puts.values().map(|stored| stored.bytes).sum::<usize>()
    }

    /// Entries that neither change nor go.
    fn unchanged<'a>(&self, existing: &'a Tenant) -> Vec<(Id, &'a Stored)> {
        let entries = existing.entries.iter().map(|(&id, stored)| (id, stored));
        entries.filter(|(id, _)| !self.puts.contains_key(id) && !self.removes.contains(id)).collect()
    }

    fn evict(&mut self, id: Id) {
        self.removes.insert(id);
        self.evicted += 1;
    }

    /// Bounds the working memory of the sessions that are put to.
    fn evict_working(&mut self, existing: &Tenant, limit: usize, now_ms: u64) {
        let working = self.puts.values().filter(|stored| stored.entry.kind() == Kind::Working);
        let sessions: BTreeSet<Option<String>> = working.map(|stored| stored.entry.session.clone()).collect();
        for session in sessions {
            let is_of = |stored: &Stored| stored.is_working_of(session.as_deref());
            let mut old = self.unchanged(existing);
            old.retain(|(_, stored)| is_of(stored));
            let n_new = self.puts.values().filter(|stored| is_of(stored)).count();
            let n_over = (old.len() + n_new).saturating_sub(limit);
            weakest_first(&mut old, now_ms);
            for &(id, _) in old.iter().take(n_over) {
                self.evict(id);
            }
        }
    }

    fn evict_bytes(&mut self, existing: &Tenant, room: usize, now_ms: u64) {
        let mut bytes = self.bytes_after(existing);
        if bytes <= room {
            return;
        }
        let mut old = self.unchanged(existing);
        weakest_first(&mut old, now_ms);
        for (id, stored) in old {
            if bytes as f64 <= room as f64 * EVICT_TO {
                break;
            }
            bytes -= stored.bytes;
            self.evict(id);
        }
    }
}

/// Sorts entries in the order of eviction: expired ones, then by strength.
fn weakest_first(entries: &mut [(Id, &Stored)], now_ms: u64) {
    entries.sort_by_cached_key(|(id, stored)| {
        let is_live = stored.entry.is_live(now_ms);
        // Strengths are finite and not negative, and such floats are ordered as their bits are.
        (is_live, stored.entry.strength(now_ms).to_bits(), *id)
    });
}

impl MemoryStore for InMemory {
    fn apply(&mut self, tenant: &str, changes: Vec<Change>, now_ms: u64) -> Result<usize> {
        let plan = self.plan(tenant, changes, now_ms)?;
        let evicted = plan.evicted;
        self.commit(tenant, plan);
        Ok(evicted)
    }

    fn get(&self, tenant: &str, id: Id, now_ms: u64) -> Result<Option<Entry>> {
        let stored = self.tenants.get(tenant).and_then(|tenant| tenant.entries.get(&id));
        Ok(stored.map(|stored| &stored.entry).filter(|entry| entry.is_live(now_ms)).cloned())
    }

    fn search(&self, tenant: &str, query: &Query, now_ms: u64) -> Result<Vec<Hit>> {
        let (got, expected) = (query.embedding.len(), self.limits.dimension);
        if got != 0 && got != expected {
            return Err(Error::Dimension { what: "the embedding of a query", expected, got });
        }
        let keywords = word_set(&query.keywords);
        let Some(tenant) = self.tenants.get(tenant) else { return Ok(Vec::new()) };
        let mut found: Vec<(f32, u64, Id)> = Vec::new();
        for (&id, stored) in &tenant.entries {
            let entry = &stored.entry;
            if !entry.is_live(now_ms) || !query.admits(entry) {
                continue;
            }
            let relevance = relevance(query, &keywords, stored);
            if relevance >= query.min_relevance {
                found.push((relevance, entry.created_ms, id));
            }
        }
        let best_first = |a: &(f32, u64, Id), b: &(f32, u64, Id)| {
            b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)).then(a.2.cmp(&b.2))
        };
        if found.len() > query.limit && query.limit > 0 {
            found.select_nth_unstable_by(query.limit - 1, best_first);
        }
        found.truncate(query.limit);
        found.sort_by(best_first);
        let hit = |(relevance, _, id): (f32, u64, Id)| Hit {
            id,
            entry: tenant.entries[&id].entry.clone(),
            relevance,
        };
        Ok(found.into_iter().map(hit).collect())
    }

    fn for_each(&self, tenant: &str, visit: &mut dyn FnMut(Id, &Entry)) -> Result<()> {
        for (&id, stored) in self.tenants.get(tenant).into_iter().flat_map(|tenant| &tenant.entries) {
            visit(id, &stored.entry);
        }
        Ok(())
    }

    fn usage(&self, tenant: &str) -> Result<Usage> {
        let usage = |tenant: &Tenant| Usage { entries: tenant.entries.len(), bytes: tenant.bytes };
        Ok(self.tenants.get(tenant).map(usage).unwrap_or_default())
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }
}

impl Query {
    /// True if the entry fulfils the conditions that are no matter of degree.
    fn admits(&self, entry: &Entry) -> bool {
        (self.kinds.is_empty() || self.kinds.contains(&entry.kind()))
            && (self.session.is_none() || self.session == entry.session)
            && self.created_ms.is_none_or(|(from, to)| (from..=to).contains(&entry.created_ms))
    }
}

fn relevance(query: &Query, keywords: &[u64], stored: &Stored) -> f32 {
    let (mut sum, mut parts) = (0.0, 0.0);
    if !query.embedding.is_empty() {
        parts += 1.0;
        if !stored.entry.embedding.is_empty() {
            sum += dot(&query.embedding, &stored.entry.embedding).max(0.0);
        }
    }
    if !keywords.is_empty() {
        parts += 1.0;
        let n_common = keywords.iter().filter(|word| stored.words.binary_search(word).is_ok()).count();
        sum += n_common as f32 / keywords.len() as f32;
    }
    if parts == 0.0 { 1.0 } else { sum / parts }
}
