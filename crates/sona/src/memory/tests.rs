//! Properties of stores, run on each implementation; consolidation; cache of tool results.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::lexical::HashedWords;
use crate::model::Embed;

use super::*;

const DIMENSION: usize = 64;
const HOUR: u64 = 3_600_000;

fn limits() -> Limits {
    Limits { dimension: DIMENSION, ..Limits::default() }
}

fn agent() -> AgentMemory<InMemory> {
    let embed = Arc::new(HashedWords { dimension: DIMENSION });
    AgentMemory::new(InMemory::new(limits()), Some(embed), Settings::default()).unwrap()
}

fn episode(session: &str, text: &str, importance: f32, at: u64) -> Entry {
    Entry::new(Detail::Episodic, Some(session), text, importance, at)
}

fn texts(store: &dyn MemoryStore, tenant: &str) -> Vec<String> {
    let mut texts = Vec::new();
    store.for_each(tenant, &mut |_, entry| texts.push(entry.text.clone())).unwrap();
    texts.sort();
    texts
}

/// Runs a test on each kind of store.
fn on_each_store(limits: Limits, test: impl Fn(&mut dyn MemoryStore)) {
    test(&mut InMemory::new(limits));
    #[cfg(feature = "store")]
    {
        let folder = tempfile::tempdir().unwrap();
        test(&mut DiskStore::open(&folder.path().join("memory"), limits, 0).unwrap());
    }
}

#[test]
fn tenants_never_meet() {
    on_each_store(limits(), |store| {
        let id = store.put("a", episode("s", "the secret", 1.0, 5), 5).unwrap();
        store.put("b", episode("s", "something else", 1.0, 5), 5).unwrap();
        assert_eq!(store.get("b", id, 5).unwrap(), None);
        let query = Query { keywords: "secret".into(), limit: 10, ..Query::default() };
        let found = |store: &dyn MemoryStore, tenant| store.search(tenant, &query, 5).unwrap().len();
        assert_eq!(found(store, "a"), 1);
        let other = store.search("b", &query, 5).unwrap();
        assert_eq!(other.iter().map(|hit| hit.relevance).collect::<Vec<_>>(), [0.0]);
        assert_eq!(found(store, "c"), 0);
        assert_eq!(store.forget("b", &Forget::Tenant, 5).unwrap(), 1);
        assert_eq!((texts(store, "a").len(), texts(store, "b").len()), (1, 0));
    });
}

#[test]
fn search_by_embedding_words_time_and_kind() {
    let mut agent = agent();
    agent.note("t", "s", "the printer is out of paper", 0.1, 100).unwrap();
    agent.record("t", "s", "paper was ordered for the printer", 0.5, 200).unwrap();
    agent.learn("t", "the printer stands in room 4", "manual", 0.9, 300).unwrap();
    agent.practise("t", "reset the router", true, 400).unwrap();
    let recall = |text: &str, query: Query| -> Vec<String> {
        let hits = agent.recall("t", text, Query { limit: 2, ..query }, 500).unwrap();
        hits.into_iter().map(|hit| hit.entry.text).collect()
    };
    assert_eq!(recall("in which room is the printer", Query::default())[0], "the printer stands in room 4");
    assert_eq!(recall("restart the router", Query::default())[0], "reset the router");
    let skills = Query { kinds: vec![Kind::Procedural], ..Query::default() };
    assert_eq!(recall("paper", skills), ["reset the router"]);
    let early = Query { created_ms: Some((0, 250)), min_relevance: 0.1, ..Query::default() };
    assert_eq!(recall("printer", early).len(), 2);
    let newest = agent.store().search("t", &Query { limit: 1, ..Query::default() }, 500).unwrap();
    assert_eq!(newest[0].entry.text, "reset the router");
    let wrong = Query { embedding: vec![1.0; 3], limit: 1, ..Query::default() };
    assert!(matches!(agent.store().search("t", &wrong, 500), Err(Error::Dimension { got: 3, .. })));
}

#[test]
fn budgets_evict_the_weakest_of_the_same_tenant() {
    let limits = Limits { tenant_bytes: 4_000, total_bytes: 6_000, ..limits() };
    on_each_store(limits, |store| {
        store.put("b", episode("s", "of another tenant", 0.0, 0), 0).unwrap();
        store.put("a", episode("s", "very important", 1.0, 0), 0).unwrap();
        for i in 0..40 {
            store.put("a", episode("s", &format!("event {i}"), 0.2, i), i).unwrap();
            assert!(store.usage("a").unwrap().bytes <= 4_000);
        }
        let left = texts(store, "a");
        assert!(left.contains(&"very important".into()) && left.contains(&"event 39".into()));
        assert!(!left.contains(&"event 0".into()) && left.len() > 5);
        assert_eq!(texts(store, "b"), ["of another tenant"]);
        // An entry that does not fit alone is refused, and nothing changes.
        let large = episode("s", &"long ".repeat(1_000), 1.0, 50);
        let error = store.put("a", large, 50).unwrap_err();
        assert!(matches!(error, Error::MemoryFull { room: 4_000, .. }), "{error}");
        assert_eq!(texts(store, "a"), left);
    });
}

#[test]
fn working_memory_is_bounded_by_session_and_decays() {
    let limits = Limits { working_entries: 3, ..limits() };
    let embed: Arc<dyn Embed> = Arc::new(HashedWords { dimension: DIMENSION });
    let mut agent = AgentMemory::new(InMemory::new(limits), Some(embed), Settings::default()).unwrap();
    agent.note("t", "other", "note of another session", 0.1, 0).unwrap();
    agent.note("t", "s", "an old note of some importance", 0.4, 0).unwrap();
    for (i, note) in ["first", "second", "third"].into_iter().enumerate() {
        agent.note("t", "s", note, 0.3, 2 * HOUR + i as u64).unwrap();
    }
    // Two hours are four half-lives: 0.4 / 16 is less than 0.3.
    assert_eq!(texts(agent.store(), "t"), ["first", "note of another session", "second", "third"]);
    let query = || Query { limit: 9, ..Query::default() };
    assert_eq!(agent.recall("t", "note", query(), 4 * HOUR - 1).unwrap().len(), 4);
    assert_eq!(agent.recall("t", "note", query(), 7 * HOUR).unwrap().len(), 0);
    assert_eq!(agent.store_mut().forget("t", &Forget::Expired(7 * HOUR), 7 * HOUR).unwrap(), 4);
}

#[test]
fn bad_entries_are_refused_as_a_whole() {
    on_each_store(limits(), |store| {
        let good = episode("s", "good", 0.5, 0);
        let mut bad = vec![
            episode("s", " . ", 0.5, 0),
            episode("s", "x", f32::NAN, 0),
            episode("s", "x", -0.1, 0),
            Entry { embedding: vec![1.0; 3], ..good.clone() },
            Entry { embedding: vec![f32::NAN; DIMENSION], ..good.clone() },
            Entry { embedding: vec![0.0; DIMENSION], ..good.clone() },
        ];
        bad.push(Entry { detail: Detail::Semantic { sources: Vec::new() }, session: None, ..good.clone() });
        for bad in bad {
            let changes = vec![Change::Put(good.clone()), Change::Put(bad.clone())];
            assert!(store.apply("t", changes, 0).is_err(), "{bad:?}");
        }
        assert_eq!(store.usage("t").unwrap(), Usage::default());
    });
}

#[test]
fn consolidation_is_idempotent_and_moves_up_by_rule() {
    let mut agent = agent();
    for session in 0..3u64 {
        let (name, at) = (format!("s{session}"), session * HOUR);
        agent.note("t", &name, "The user prefers metric units.", 0.2, at).unwrap();
        agent.note("t", &name, "the user prefers metric units", 0.2, at + 1).unwrap();
        agent.note("t", &name, "said hello", 0.1, at).unwrap();
        agent.note("t", &name, &format!("deploy of build {session} failed"), 0.9, at).unwrap();
    }
    let now = 3 * HOUR;
    let first = agent.consolidate("t", now).unwrap();
    // Per session the repeated and the important note; one fact, as the builds differ by number.
    assert_eq!(first, Consolidated { episodes: 6, facts: 1 });
    let after = texts(agent.store(), "t");
    for _ in 0..3 {
        assert_eq!(agent.consolidate("t", now).unwrap(), Consolidated::default());
    }
    assert_eq!(texts(agent.store(), "t"), after);
    let facts = || Query { kinds: vec![Kind::Semantic], limit: 9, ..Query::default() };
    let hits = agent.recall("t", "units", facts(), now).unwrap();
    assert_eq!(hits.len(), 1);
    assert!((hits[0].entry.confidence() - (1.0 - 0.7f32.powi(3))).abs() < 1e-6);
    // A fourth session adds a source to the fact; the end of a session clears its notes alone.
    agent.note("t", "s3", "The user prefers metric units!", 0.8, now).unwrap();
    assert_eq!(agent.end_session("t", "s3", now).unwrap(), Consolidated { episodes: 1, facts: 1 });
    assert_eq!(agent.consolidate("t", now).unwrap(), Consolidated::default());
    let hits = agent.recall("t", "units", facts(), now).unwrap();
    assert!(matches!(&hits[0].entry.detail, Detail::Semantic { sources } if sources.len() == 4));
    let working =
        Query { kinds: vec![Kind::Working], session: Some("s3".into()), limit: 9, ..Query::default() };
    assert_eq!(agent.store().search("t", &working, now).unwrap(), []);
}

#[test]
fn forgetting_a_session_reaches_the_facts_from_it() {
    let mut agent = agent();
    for session in ["a", "b", "c", "d"] {
        agent.record("t", session, "the office is closed on Friday", 0.5, 0).unwrap();
    }
    agent.learn("t", "the stove is hot", "cook", 0.5, 0).unwrap();
    agent.consolidate("t", 0).unwrap();
    let id = Id::of(Kind::Semantic, None, "The office is closed on Friday");
    assert!(agent.store().get("t", id, 0).unwrap().is_some());
    agent.store_mut().forget("t", &Forget::Session("a".into()), 0).unwrap();
    assert_eq!(agent.store().get("t", id, 0).unwrap(), None);
    // Three sessions are left, which suffice; of two they do not.
    assert_eq!(agent.consolidate("t", 0).unwrap().facts, 1);
    agent.store_mut().forget("t", &Forget::Session("b".into()), 0).unwrap();
    assert_eq!(agent.consolidate("t", 0).unwrap().facts, 0);
    // A stated fact stays without the session.
    agent.learn("t", "the office is closed on Friday", "handbook", 0.8, 0).unwrap();
    agent.record("t", "e", "the office is closed on Friday", 0.5, 0).unwrap();
    assert_eq!(agent.consolidate("t", 0).unwrap().facts, 1);
    agent.store_mut().forget("t", &Forget::Session("e".into()), 0).unwrap();
    assert!((agent.store().get("t", id, 0).unwrap().unwrap().confidence() - 0.8).abs() < 1e-6);
    assert_eq!(agent.store_mut().forget("t", &Forget::SeenBefore(1), 1).unwrap(), 4);
}

#[test]
fn facts_and_skills_count_sources_and_outcomes() {
    let mut agent = agent();
    let id = agent.learn("t", "water boils at 100 degrees", "book", 0.5, 0).unwrap();
    agent.learn("t", "Water boils at 100 degrees.", "teacher", 0.5, 0).unwrap();
    agent.learn("t", "Water boils at 100 degrees.", "teacher", 0.5, 0).unwrap();
    let fact = agent.store().get("t", id, 0).unwrap().unwrap();
    assert_eq!((fact.confidence(), fact.count), (0.75, 3));
    assert!(agent.learn("t", "water boils", "rumour", 1.5, 0).is_err());
    for is_success in [true, true, false] {
        agent.practise("t", "boil water", is_success, 0).unwrap();
    }
    let id = Id::of(Kind::Procedural, None, "boil water");
    let skill = agent.store().get("t", id, 0).unwrap().unwrap();
    assert_eq!(skill.detail, Detail::Procedural { successes: 2, failures: 1 });
    assert!((skill.confidence() - 0.6).abs() < 1e-6);
}

fn exported(store: &dyn MemoryStore, tenant: &str) -> Vec<u8> {
    let mut out = Vec::new();
    export(store, tenant, &mut out, 0).unwrap();
    out
}

#[test]
fn imports_of_foreign_or_damaged_lines_change_nothing() {
    let mut source = InMemory::new(limits());
    source.put("t", episode("s", "one", 0.5, 0), 0).unwrap();
    source.put("t", episode("s", "two", 0.5, 0), 0).unwrap();
    let good = String::from_utf8(exported(&source, "t")).unwrap();
    assert_eq!(good.lines().count(), 3);
    for (bad, line) in [
        (good.replace("\"tenant\":\"t\"", "\"tenant\":\"u\""), 1),
        (good.replace("\"version\":1", "\"version\":2"), 1),
        (good.replace("\"dimension\":64", "\"dimension\":32"), 1),
        (good.replace("episodic", "epic"), 2),
        (good[..good.len() - 10].to_owned(), 3),
        (String::new(), 1),
        (good.lines().skip(1).collect(), 1),
    ] {
        let mut store = InMemory::new(limits());
        let error = import(&mut store, "t", &mut bad.as_bytes(), 0).unwrap_err();
        assert!(matches!(error, Error::Line { line: at, .. } if at == line), "{error} in {bad}");
        assert_eq!(store.usage("t").unwrap(), Usage::default());
    }
}

fn entries() -> impl Strategy<Value = Entry> {
    let detail = prop_oneof![
        Just(Detail::Working),
        Just(Detail::Episodic),
        ("[a-z]{1,4}", any::<bool>(), 0.0f32..=1.0).prop_map(|(name, is_session, confidence)| {
            Detail::Semantic { sources: vec![Source { name, is_session, confidence }] }
        }),
        any::<(u32, u32)>().prop_map(|(successes, failures)| Detail::Procedural { successes, failures }),
    ];
    let text = "[a-z0-9\"\\\\é日 ]{0,20}x";
    (detail, prop::option::of("[ab]"), text, 0.0f32..=1.0, any::<u64>(), any::<bool>()).prop_map(
        |(detail, session, text, importance, at, has_embedding)| {
            let embed = HashedWords { dimension: DIMENSION };
            let mut entry = Entry::new(detail, session.as_deref(), &text, importance, at);
            if has_embedding {
                entry.embedding = crate::model::embed_unit(&embed, &text).unwrap();
            }
            entry
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn export_and_import_keep_every_bit(entries in prop::collection::vec(entries(), 0..12)) {
        let mut source = InMemory::new(limits());
        for entry in entries {
            source.put("t", entry, 0).unwrap();
        }
        let lines = exported(&source, "t");
        let mut copy = InMemory::new(limits());
        let n_entries = import(&mut copy, "t", &mut lines.as_slice(), 0).unwrap();
        prop_assert_eq!(n_entries, source.usage("t").unwrap().entries);
        prop_assert_eq!(copy.usage("t").unwrap(), source.usage("t").unwrap());
        prop_assert_eq!(exported(&copy, "t"), lines);
    }

    #[test]
    fn bytes_are_the_sum_of_the_entries(
        steps in prop::collection::vec((entries(), any::<bool>(), "[tu]"), 0..20),
    ) {
        let limits = Limits { tenant_bytes: 3_000, total_bytes: 5_000, working_entries: 2, ..limits() };
        let mut store = InMemory::new(limits);
        for (entry, is_put, tenant) in steps {
            let id = entry.id();
            let change = if is_put { Change::Put(entry) } else { Change::Remove(id) };
            match store.apply(&tenant, vec![change], 0) {
                Ok(_) if is_put => prop_assert!(store.get(&tenant, id, 0).unwrap().is_some()),
                Ok(_) | Err(Error::MemoryFull { .. }) => {}
                Err(error) => return Err(TestCaseError::fail(error.to_string())),
            }
            let usages = ["t", "u"].map(|tenant| store.usage(tenant).unwrap());
            prop_assert!(usages.iter().all(|usage| usage.bytes <= 3_000));
            prop_assert!(usages.iter().map(|usage| usage.bytes).sum::<usize>() <= 5_000);
            for (tenant, usage) in ["t", "u"].into_iter().zip(usages) {
                // Putting everything again into an empty store gives the same bytes.
                let mut copy = InMemory::new(limits);
                import(&mut copy, tenant, &mut exported(&store, tenant).as_slice(), 0).unwrap();
                prop_assert_eq!(copy.usage(tenant).unwrap(), usage);
            }
        }
    }
}

#[cfg(feature = "store")]
mod on_disk {
    use super::*;

    #[test]
    fn a_store_is_the_same_after_it_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory");
        let embed: Arc<dyn Embed> = Arc::new(HashedWords { dimension: DIMENSION });
        let store = DiskStore::open(&path, limits(), 0).unwrap();
        let mut agent = AgentMemory::new(store, Some(embed), Settings::default()).unwrap();
        for i in 0..20 {
            agent.record("t", "s", &format!("event {i}"), 0.5, i).unwrap();
        }
        agent.learn("u", "a fact", "source", 0.5, 0).unwrap();
        agent.store_mut().forget("t", &Forget::SeenBefore(5), 20).unwrap();
        let before = ["t", "u"].map(|tenant| exported(agent.store(), tenant));
        assert!(matches!(DiskStore::open(&path, limits(), 0), Err(Error::Store { .. })), "in use");
        drop(agent);
        let store = DiskStore::open(&path, limits(), 0).unwrap();
        assert_eq!(["t", "u"].map(|tenant| exported(&store, tenant)), before);
        assert_eq!(store.usage("t").unwrap().entries, 15);
        drop(store);
        let small = Limits { tenant_bytes: 1_000, ..limits() };
        assert!(matches!(DiskStore::open(&path, small, 0), Err(Error::MemoryFull { .. })));
        std::fs::write(&path, b"no store").unwrap();
        assert!(matches!(DiskStore::open(&path, limits(), 0), Err(Error::Store { .. })));
    }
}

fn cache(policy: ToolPolicy) -> ToolCache {
    let embed: Arc<dyn Embed> = Arc::new(HashedWords { dimension: 256 });
    let mut cache = ToolCache::new(Some(embed), CacheLimits::default());
    cache.declare("find", policy).unwrap();
    cache
}

const EXACT: ToolPolicy = ToolPolicy { is_pure: true, ttl_ms: 100, min_cosine: None };
const SIMILAR: ToolPolicy = ToolPolicy { min_cosine: Some(0.8), ..EXACT };

#[test]
fn canonical_arguments() {
    let a: Value = serde_json::from_str(r#"{"b": [1.0, "x\u0079"], "a": {"d": null, "c": 2.5}}"#).unwrap();
    assert_eq!(canonical_json(&a), r#"{"a":{"c":2.5,"d":null},"b":[1,"xy"]}"#);
    assert_ne!(
        canonical_json(&json!(9_007_199_254_740_993u64)),
        canonical_json(&json!(9_007_199_254_740_992u64))
    );
    assert_ne!(canonical_json(&json!("1")), canonical_json(&json!(1)));
}

#[test]
fn exact_hits_are_per_tenant_and_expire() {
    let mut cache = cache(EXACT);
    let arguments = json!({"q": "x", "n": 1});
    let look = |cache: &mut ToolCache, tenant, at| -> Option<Cached> {
        cache.lookup(tenant, "find", &json!({"n": 1.0, "q": "x"}), at).unwrap()
    };
    assert_eq!(look(&mut cache, "a", 0), None);
    assert!(cache.insert("a", "find", &arguments, json!("found"), 0).unwrap());
    assert_eq!(look(&mut cache, "a", 99), Some(Cached::Exact(json!("found"))));
    assert_eq!(look(&mut cache, "b", 0), None);
    assert_eq!(look(&mut cache, "a", 100), None);
    let stats = cache.stats("a");
    assert_eq!((stats.exact, stats.semantic, stats.misses, stats.expired), (1, 0, 2, 1));
    assert_eq!((stats.entries, stats.bytes), (0, 0));
    assert_eq!(cache.stats("b").misses, 1);
}

#[test]
fn tools_with_side_effects_are_not_cached() {
    let mut cache = cache(EXACT);
    cache.declare("send", ToolPolicy { is_pure: false, ..SIMILAR }).unwrap();
    for tool in ["send", "unknown"] {
        assert!(!cache.insert("t", tool, &json!({}), json!(1), 0).unwrap());
        assert_eq!(cache.lookup("t", tool, &json!({}), 0).unwrap(), None);
    }
    assert_eq!(cache.stats("t"), CacheStats::default());
    assert!(cache.declare("x", ToolPolicy { min_cosine: Some(f32::NAN), ..EXACT }).is_err());
}

#[test]
fn similar_arguments_hit_unless_a_number_negation_or_name_differs() {
    let known = json!({"query": "cheap flights with one stop to Rome on 5 May", "limit": 3});
    let asked = |query: &str, limit: u32| json!({"query": query, "limit": limit});
    let look = |policy, arguments: &Value| -> Result<Option<Cached>> {
        let mut cache = cache(policy);
        cache.insert("t", "find", &known, json!("result"), 0)?;
        let found = cache.lookup("t", "find", arguments, 0)?;
        let stats = cache.stats("t");
        assert_eq!(stats.exact + stats.semantic + stats.misses, 1);
        assert_eq!(stats.semantic == 1, matches!(found, Some(Cached::Semantic { .. })));
        Ok(found)
    };
    let same = asked("the cheap flights with one stop to Rome on 5 May", 3);
    assert!(matches!(look(SIMILAR, &same).unwrap(), Some(Cached::Semantic { cosine, .. }) if cosine < 1.0));
    assert_eq!(look(EXACT, &same).unwrap(), None, "not opted in");
    for other in [
        asked("cheap flights with one stop to Rome on 6 May", 3),
        asked("cheap flights with two stop to Rome on 5 May", 3),
        asked("cheap flights with no stop to Rome on 5 May", 3),
        asked("cheap flights without one stop to Rome on 5 May", 3),
        asked("cheap flights with one stop to Riga on 5 May", 3),
        asked("cheap flights with one stop to Rome on 5 May", 4),
        asked("old hotels near one lake of Rome on 5 May", 3),
        json!({"query": ["cheap flights with one stop to Rome on 5 May"], "limit": 3}),
    ] {
        assert_eq!(look(SIMILAR, &other).unwrap(), None, "{other}");
    }
}

#[test]
fn strings_are_compared_each_with_its_own() {
    let mut cache = cache(SIMILAR);
    let call = |from: &str, to: &str| json!({"from": from, "to": to});
    cache.insert("t", "find", &call("north harbour", "south station"), json!(1), 0).unwrap();
    assert_eq!(cache.lookup("t", "find", &call("south station", "north harbour"), 0).unwrap(), None);
    let near = cache.lookup("t", "find", &call("north harbour", "the south station"), 0).unwrap();
    assert!(matches!(near, Some(Cached::Semantic { .. })), "{near:?}");
}

#[test]
fn full_caches_evict_what_was_not_used_and_nobody_elses() {
    let mut cache = ToolCache::new(None, CacheLimits { tenant_bytes: 3_000, total_bytes: 4_000 });
    cache.declare("find", EXACT).unwrap();
    cache.insert("b", "find", &json!(0), json!("b"), 0).unwrap();
    for i in 0..50 {
        assert!(cache.insert("a", "find", &json!(i), json!("x".repeat(100)), 0).unwrap());
        assert!(cache.lookup("a", "find", &json!(0), 0).unwrap().is_some(), "used each time");
        assert!(cache.stats("a").bytes <= 3_000);
    }
    let stats = cache.stats("a");
    assert_eq!(stats.evicted + stats.entries as u64, 50);
    assert!(cache.lookup("b", "find", &json!(0), 0).unwrap().is_some());
    assert!(!cache.insert("a", "find", &json!(0), json!("x".repeat(5_000)), 0).unwrap(), "too large");
    assert_eq!(cache.lookup("a", "find", &json!(0), 0).unwrap(), None, "the former result is void");
    cache.forget("a");
    assert_eq!(cache.stats("a"), CacheStats::default());
}
