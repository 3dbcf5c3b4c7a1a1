//! Retention, budgets and bounded space.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::budget::{FixedBudget, MemoryBudget};

fn open(options: StoreOptions) -> LearningStore {
    faults::open(&faults::Storage::default(), StoreOptions { cache_bytes: 1 << 20, ..options })
        .expect("a store")
}

fn requests(store: &LearningStore, tenant: &str) -> Vec<String> {
    let stored = store.trajectories(tenant, None, usize::MAX).expect("a store");
    stored.into_iter().map(|stored| stored.trajectory.request_id).collect()
}

#[test]
fn tenants_keep_their_latest_trajectories() {
    let count = |count| Retention { count: Some(count), ..Retention::default() };
    let tenant_retention = [("u".to_owned(), count(1))].into();
    let store = open(StoreOptions { retention: count(3), tenant_retention, ..StoreOptions::default() });
    for n in 0..5u64 {
        // The clock runs backward.
        add_at(&store, "t", &n.to_string(), 1000 - n);
        add_at(&store, "u", &n.to_string(), 1000 - n);
    }
    assert_eq!(
        (requests(&store, "t"), requests(&store, "u")),
        (vec!["2".to_owned(), "3".to_owned(), "4".to_owned()], vec!["4".to_owned()],)
    );
    let gone = store.attach_feedback("t", "0", &rated(1.0)).expect_err("removed");
    assert!(matches!(gone, Error::ForeignRequest { .. } | Error::UnknownRequest { .. }), "{gone}");
}

#[test]
fn bytes_and_ages_of_a_tenant_are_limited() {
    let now = retention::now_ms();
    let one = open(StoreOptions::default());
    add_at(&one, "t", "0", now);
    let bytes = one.tenants().expect("a store")[0].1.bytes;
    let retention = Retention { bytes: Some(2 * bytes), age: Some(Duration::from_secs(60)), count: None };
    let store = open(StoreOptions { retention, ..StoreOptions::default() });
    for n in 0..4 {
        add_at(&store, "t", &n.to_string(), now + n);
    }
    assert_eq!(requests(&store, "t"), ["2", "3"]);
    // Feedback counts.
    store.attach_feedback("t", "3", &rated(1.0)).expect("a request");
    assert_eq!(requests(&store, "t"), ["3"]);
    add_at(&store, "t", "old", now - 61_000);
    assert_eq!(requests(&store, "t"), ["3"]);
    assert_eq!(store.apply_retention(now + 60_000).expect("a store"), 0);
    assert_eq!(store.apply_retention(now + 60_100).expect("a store"), 1);
}

#[test]
fn largest_tenant_makes_room_first() {
    let one = open(StoreOptions::default());
    add(&one, "s", "0");
    let bytes = one.tenants().expect("a store")[0].1.bytes;
    let store = open(StoreOptions { trajectory_bytes: 5 * bytes, ..StoreOptions::default() });
    for n in 0..4 {
        add(&store, "a", &n.to_string());
    }
    for n in 0..2 {
        add(&store, "b", &n.to_string());
    }
    assert_eq!(requests(&store, "a"), ["1", "2", "3"]);
    assert_eq!(requests(&store, "b"), ["0", "1"]);
    // One that is larger than the budget is not kept.
    let large = Trajectory { prompt_tokens: vec![1; 10_000], ..trajectory("c", "large") };
    store.add(&[large]).expect("a store");
    assert_eq!(requests(&store, "c"), Vec::<String>::new());
    assert!(!requests(&store, "b").is_empty());
}

#[test]
fn log_is_bounded_and_trimmed_behind_a_clean_snapshot() {
    let store = open(StoreOptions { event_bytes: 5_000, ..StoreOptions::default() });
    let large = NewEvent { payload: vec![1; 1_500], ..event("t", &[]) };
    for sequence in 1..=3 {
        assert_eq!(store.append_events(std::slice::from_ref(&large)).expect("room"), [sequence]);
    }
    let full = store
        .append_events(&[event("u", &[]), large.clone()])
        .and_then(|_| store.append_events(std::slice::from_ref(&large)));
    assert!(matches!(full, Err(Error::EventLogFull { limit: 5_000, .. })), "{full:?}");
    let refused = store.trim_events("t", "a", 3).expect_err("no snapshot");
    assert!(matches!(refused, Error::Record { field: "through", .. }), "{refused}");
    save(&store, "t", SnapshotKind::Tentative, 2, b"state").expect("a store");
    assert!(store.trim_events("t", "a", 2).is_err(), "tentative");
    store.mark_clean("t", "a", 1).expect("a snapshot");
    assert_eq!(store.trim_events("t", "a", 2).expect("a snapshot"), 2);
    assert_eq!(store.trim_events("t", "a", 2).expect("a snapshot"), 0);
    assert_eq!(store.append_events(&[large]).expect("room"), [4]);
    let events = store.events("t", 0, 10).expect("a store");
    let trimmed: Vec<_> = events.iter().map(|event| (event.sequence, event.is_trimmed)).collect();
    assert_eq!(trimmed, [(1, true), (2, true), (3, false), (4, false)]);
}

#[test]
fn removed_pages_are_used_again_and_compacted() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = LearningStore::open(folder.path().join("store"), StoreOptions::default()).expect("a store");
    let mut sizes = Vec::new();
    for round in 0..4 {
        let new: Vec<_> = (0..200).map(|n| trajectory("t", &format!("{round}/{n}"))).collect();
        store.add(&new).expect("a store");
        save(&store, "t", SnapshotKind::Clean, 0, &vec![round; 300_000]).expect("a store");
        let forgotten = store.forget("t", ForgetScope::All).expect("a store");
        assert_eq!((forgotten.trajectories.len(), forgotten.snapshots.len()), (200, 1));
        sizes.push(store.file_bytes().expect("a file"));
    }
    assert!(sizes[3] <= sizes[1], "{sizes:?}");
    while store.compact().expect("a store") {}
    assert!(store.file_bytes().expect("a file") < sizes[3] / 4, "{sizes:?}");
    assert_eq!(contents(&store), "");
    add(&store, "t", "goes on");
}

#[test]
fn page_cache_is_charged_while_the_store_is_open() {
    let budget = Arc::new(FixedBudget::new(1 << 20));
    let shared: Arc<dyn MemoryBudget> = budget.clone();
    let options =
        |cache_bytes| StoreOptions { cache_bytes, budget: shared.clone(), ..StoreOptions::default() };
    let storage = faults::Storage::default();
    let refused = faults::open(&storage, options(2 << 20)).expect_err("no room");
    assert!(matches!(refused, Error::MemoryBudget { bytes: 0x20_0000, .. }), "{refused}");
    let store = faults::open(&storage, options(1 << 19)).expect("room");
    assert_eq!(budget.used(), 1 << 19);
    drop(store);
    assert_eq!(budget.used(), 0);
}
