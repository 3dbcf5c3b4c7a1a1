//! Consolidation: working memory to episodes, episodes to facts.
//!
//! Every result has an identity that follows from its content, and every merged value is a maximum
//! or a union, so that repeating a consolidation cannot count anything twice.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::error::Result;
use crate::lexical::{guard, normalized};
use crate::model::dot;

use super::entry::{Detail, Entry, Id, Kind, MAX_SOURCES, Source};
use super::settings::Settings;
use super::store::{Change, MemoryStore};

/// Most episodes that are compared with each other.
const MAX_EPISODES: usize = 2_000;

/// Changes that a consolidation made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Consolidated {
    /// Episodes that are new or were seen more often.
    pub episodes: usize,
    /// Facts that are new or have more sources.
    pub facts: usize,
}

/// Computes the changes of a consolidation.
pub(super) fn consolidate(
    store: &dyn MemoryStore,
    settings: &Settings,
    tenant: &str,
    now_ms: u64,
) -> Result<(Vec<Change>, Consolidated)> {
    let (mut working, mut episodes, mut facts) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
    store.for_each(tenant, &mut |id, entry| {
        if entry.is_live(now_ms) {
            match entry.kind() {
                Kind::Working => working.push(entry.clone()),
                Kind::Episodic => drop(episodes.insert(id, entry.clone())),
                Kind::Semantic => drop(facts.insert(id, entry.clone())),
                Kind::Procedural => {}
            }
        }
    })?;
    let mut changes = Vec::new();
    for entry in working {
        if entry.count < settings.repeated && entry.importance < settings.important {
            continue;
        }
        let new = Entry { detail: Detail::Episodic, expires_ms: None, ..entry };
        let id = new.id();
        let merged = match episodes.get(&id) {
            Some(known) => Entry {
                count: known.count.max(new.count),
                importance: known.importance.max(new.importance),
                seen_ms: known.seen_ms.max(new.seen_ms),
                ..known.clone()
            },
            None => new,
        };
        if episodes.get(&id) != Some(&merged) {
            changes.push(Change::Put(merged.clone()));
            episodes.insert(id, merged);
        }
    }
    let n_episodes = changes.len();
    let mut latest: Vec<(Id, Entry)> = episodes.into_iter().collect();
    latest.sort_by_key(|(id, entry)| (std::cmp::Reverse(entry.created_ms), *id));
    latest.truncate(MAX_EPISODES);
    latest.reverse();
    changes.extend(new_facts(&latest, &facts, settings).into_iter().map(Change::Put));
    let n_facts = changes.len() - n_episodes;
    Ok((changes, Consolidated { episodes: n_episodes, facts: n_facts }))
}

/// Episodes that say the same; the first one gives the text.
struct Group<'a> {
    first: &'a Entry,
    sessions: BTreeSet<&'a str>,
    importance: f32,
    seen_ms: u64,
}

/// Facts that the episodes, oldest first, give or change.
fn new_facts(episodes: &[(Id, Entry)], facts: &BTreeMap<Id, Entry>, settings: &Settings) -> Vec<Entry> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut by_text: HashMap<String, usize> = HashMap::new();
    let mut by_guard: HashMap<String, Vec<usize>> = HashMap::new();
    for (_, episode) in episodes {
        let Some(session) = episode.session.as_deref() else { continue };
        let text = normalized(&episode.text);
        let peers = by_guard.entry(guard(&episode.text)).or_default();
        let is_same = |&at: &usize| says_the_same(groups[at].first, episode, settings);
        let at = by_text.get(&text).copied().or_else(|| peers.iter().copied().find(|at| is_same(at)));
        let at = at.unwrap_or_else(|| {
            groups.push(Group { first: episode, sessions: BTreeSet::new(), importance: 0.0, seen_ms: 0 });
            peers.push(groups.len() - 1);
            groups.len() - 1
        });
        by_text.insert(text, at);
        let group = &mut groups[at];
        group.sessions.insert(session);
        group.importance = group.importance.max(episode.importance);
        group.seen_ms = group.seen_ms.max(episode.seen_ms);
    }
    let mut facts_by_guard: HashMap<String, Vec<Id>> = HashMap::new();
    for (&id, fact) in facts {
        facts_by_guard.entry(guard(&fact.text)).or_default().push(id);
    }
    let mut changed: BTreeMap<Id, Entry> = BTreeMap::new();
    for group in groups.iter().filter(|group| group.sessions.len() >= settings.sessions) {
        let text = &group.first.text;
        let own = Id::of(Kind::Semantic, None, text);
        let mut peers = facts_by_guard.get(&guard(text)).into_iter().flatten().copied();
        let is_same = |id: &Id| says_the_same(&facts[id], group.first, settings);
        // The fact of the group's own text first: then repeated calls choose the same.
        let id = if facts.contains_key(&own) { Some(own) } else { peers.find(is_same) };
        let known = id.map(|id| changed.get(&id).unwrap_or(&facts[&id]));
        let fact = group.fact(known, settings.session_confidence);
        if known != Some(&fact) {
            changed.insert(fact.id(), fact);
        }
    }
    changed.into_values().collect()
}

fn says_the_same(a: &Entry, b: &Entry, settings: &Settings) -> bool {
    !a.embedding.is_empty()
        && a.embedding.len() == b.embedding.len()
        && dot(&a.embedding, &b.embedding) >= settings.same_cosine
}

impl Group<'_> {
    /// The fact with the sessions of this group among its sources.
    fn fact(&self, known: Option<&Entry>, confidence: f32) -> Entry {
        let mut fact = known.cloned().unwrap_or_else(|| Entry {
            session: None,
            count: 1,
            expires_ms: None,
            detail: Detail::Semantic { sources: Vec::new() },
            ..self.first.clone()
        });
        fact.importance = fact.importance.max(self.importance);
        fact.seen_ms = fact.seen_ms.max(self.seen_ms);
        if let Detail::Semantic { sources } = &mut fact.detail {
            for &session in &self.sessions {
                let is_known = sources.iter().any(|source| source.is_session && source.name == session);
                if !is_known && sources.len() < MAX_SOURCES {
                    sources.push(Source { name: session.to_owned(), is_session: true, confidence });
                }
            }
        }
        fact
    }
}
