//! Forgetting, rollbacks and replay.

use super::*;

fn open() -> LearningStore {
    let options = StoreOptions { cache_bytes: 1 << 20, ..StoreOptions::default() };
    faults::open(&faults::Storage::default(), options).expect("a store")
}

fn replayed(store: &LearningStore, after: u64) -> Vec<u64> {
    let events = store.replay_events("t", "a", after, 100).expect("a store");
    events.iter().map(|event| event.sequence).collect()
}

fn versions(store: &LearningStore) -> Vec<u64> {
    store.snapshots("t", "a").expect("a store").iter().map(|info| info.version).collect()
}

/// Four trajectories with an event each, and a snapshot after every event but the last.
fn learned(store: &LearningStore) -> Vec<TrajectoryId> {
    let mut ids = Vec::new();
    for n in 1..=4u64 {
        ids.push(add_at(store, "t", &n.to_string(), 100 * n));
        let event = NewEvent { created_ms: 100 * n, ..event("t", &[ids[n as usize - 1]]) };
        assert_eq!(store.append_events(&[event]).expect("a store"), [n]);
        if n < 4 {
            save(store, "t", SnapshotKind::Clean, n, &[n as u8]).expect("a store");
        }
    }
    ids
}

#[test]
fn forgetting_removes_events_and_the_snapshots_they_influenced() {
    let store = open();
    let ids = learned(&store);
    store.append_events(&[event("u", &[ids[1]])]).expect("a store");
    let other = NewEvent { adapter: "b".to_owned(), ..event("t", &[ids[0]]) };
    store.append_events(&[other]).expect("a store");

    let forgotten = store.forget("t", ForgetScope::Trajectory(ids[1])).expect("a store");
    assert_eq!((&forgotten.trajectories[..], forgotten.events), (&[ids[1]][..], 1));
    assert_eq!(forgotten.snapshots, [("a".to_owned(), 2), ("a".to_owned(), 3)]);
    let [Rebuild { adapter, start }] = &forgotten.rebuild[..] else { panic!("{forgotten:?}") };
    assert_eq!((adapter.as_str(), start.after, start.trimmed), ("a", 1, 0));
    assert_eq!(start.snapshot.as_ref().expect("a snapshot").version, 1);
    assert_eq!(replayed(&store, start.after), [3, 4]);
    assert_eq!(store.replay_start("t", "a", SnapshotKind::Clean).expect("a store"), *start);
    // Neither the numbers nor the versions are used again.
    assert_eq!(store.append_events(&[event("t", &[])]).expect("a store"), [6]);
    assert_eq!(save(&store, "t", SnapshotKind::Clean, 6, b"again").expect("a store").version, 4);
    // Other tenants and adapters are as they were.
    assert_eq!(store.events("u", 0, 10).expect("a store").len(), 1);
    assert_eq!(store.replay_events("t", "b", 0, 10).expect("a store").len(), 1);

    let nothing = store.forget("t", ForgetScope::Trajectory(ids[1])).expect("a store");
    assert_eq!(nothing, Forgotten::default());
    let foreign = store.forget("u", ForgetScope::Trajectory(ids[0])).expect("a store");
    assert_eq!(foreign, Forgotten::default());
}

#[test]
fn forgetting_since_a_time_keeps_what_was_before() {
    let store = open();
    let ids = learned(&store);
    let forgotten = store.forget("t", ForgetScope::Since(300)).expect("a store");
    assert_eq!((&forgotten.trajectories[..], forgotten.events), (&ids[2..], 2));
    assert_eq!((versions(&store), replayed(&store, 0)), (vec![1, 2], vec![1, 2]));
    assert_eq!(forgotten.rebuild[0].start.after, 2);
}

#[test]
fn forgetting_finds_trimmed_events_and_trajectories_that_retention_removed() {
    let retention = Retention { count: Some(2), ..Retention::default() };
    let options = StoreOptions { retention, cache_bytes: 1 << 20, ..StoreOptions::default() };
    let store = faults::open(&faults::Storage::default(), options).expect("a store");
    let ids = learned(&store);
    assert_eq!(store.trim_events("t", "a", 3).expect("a snapshot"), 3);
    let forgotten = store.forget("t", ForgetScope::Trajectory(ids[0])).expect("a store");
    assert_eq!((forgotten.trajectories.len(), forgotten.events, forgotten.snapshots.len()), (0, 1, 3));
    let start = &forgotten.rebuild[0].start;
    assert_eq!((start.after, &start.snapshot, start.trimmed), (0, &None, 2));
    assert_eq!(replayed(&store, 0), [2, 3, 4]);
}

#[test]
fn forgetting_a_tenant_leaves_nothing_of_it() {
    let store = open();
    learned(&store);
    store.roll_back("t", "a", Some(1)).expect("a snapshot");
    // A name that begins with the other.
    add(&store, "tt", "1");
    store.append_events(&[event("tt", &[])]).expect("a store");
    save(&store, "tt", SnapshotKind::Clean, 1, b"kept").expect("a store");
    let forgotten = store.forget("t", ForgetScope::All).expect("a store");
    assert_eq!((forgotten.trajectories.len(), forgotten.events, forgotten.snapshots.len()), (4, 4, 3));
    let tenants = store.tenants().expect("a store");
    assert_eq!(tenants.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["tt"]);
    assert_eq!(store.snapshots("tt", "a").expect("a store").len(), 1);
    let adapters = |tenant: &str| store.adapters(tenant).expect("a store");
    assert_eq!((adapters("t"), adapters("tt")), (vec![], vec!["a".to_owned()]));
    assert_eq!((versions(&store), store.event_count().expect("a store")), (vec![], 1));
}

#[test]
fn rollbacks_undo_and_bring_back() {
    let store = open();
    learned(&store);
    let current = || store.current_snapshot("t", "a").expect("a store").map(|info| info.version);
    let start = || store.replay_start("t", "a", SnapshotKind::Clean).expect("a store").after;
    assert_eq!((current(), start(), replayed(&store, start())), (Some(3), 3, vec![4]));
    assert_eq!(store.roll_back("t", "a", Some(1)).expect("a snapshot"), 5);
    assert_eq!((current(), start(), replayed(&store, start())), (Some(1), 1, vec![]));
    store.append_events(&[event("t", &[])]).expect("a store");
    assert_eq!(replayed(&store, start()), [6]);
    let refused = save(&store, "t", SnapshotKind::Clean, 3, b"undone").expect_err("undone events");
    assert!(matches!(refused, Error::Record { field: "through", .. }), "{refused}");
    let saved = save(&store, "t", SnapshotKind::Tentative, 6, b"new").expect("a store");
    assert_eq!((saved.version, saved.parent, current(), start()), (4, Some(1), Some(4), 1));
    store.roll_back("t", "a", Some(3)).expect("a snapshot");
    assert_eq!((current(), start(), replayed(&store, 0)), (Some(3), 3, vec![1, 2, 3]));
    store.roll_back("t", "a", None).expect("the base");
    assert_eq!((current(), start(), replayed(&store, 0)), (None, 0, vec![]));
    let unknown = store.roll_back("t", "a", Some(9)).expect_err("unknown");
    assert!(matches!(unknown, Error::UnknownSnapshot { version: 9, .. }), "{unknown}");
    // Undone events have influenced no snapshot that follows the rollback.
    store.append_events(&[event("t", &[])]).expect("a store");
    let last = last_sequence(&store, "t").expect("a store");
    let fresh = save(&store, "t", SnapshotKind::Clean, last, b"fresh").expect("a store");
    store.forget("t", ForgetScope::Trajectory(TrajectoryId(1))).expect("a store");
    assert_eq!(versions(&store), [fresh.version]);
}

#[test]
fn oldest_snapshots_are_removed_but_not_the_latest_clean_one() {
    let options = StoreOptions { snapshots: 3, cache_bytes: 1 << 20, ..StoreOptions::default() };
    let store = faults::open(&faults::Storage::default(), options).expect("a store");
    for kind in [SnapshotKind::Clean, SnapshotKind::Clean] {
        save(&store, "t", kind, 0, b"clean").expect("a store");
    }
    for n in 0..5u8 {
        save(&store, "t", SnapshotKind::Tentative, 0, &[n]).expect("a store");
    }
    assert_eq!(versions(&store), [2, 6, 7]);
    assert_eq!(store.snapshot("t", "a", 7).expect("a snapshot").bytes, [4]);
    let removed = store.snapshot("t", "a", 5).expect_err("removed");
    assert!(matches!(removed, Error::UnknownSnapshot { version: 5, .. }), "{removed}");
}

#[test]
fn payloads_are_typed() {
    #[derive(Debug, PartialEq)]
    struct Observation(u32);
    impl EventPayload for Observation {
        const KIND: u16 = 7;

        fn encode(&self, out: &mut Vec<u8>) -> Result<()> {
            out.extend(self.0.to_le_bytes());
            Ok(())
        }

        fn decode(bytes: &[u8]) -> Result<Self> {
            let bytes = bytes.try_into().map_err(|_| Error::Dimension {
                what: "observation",
                expected: 4,
                got: bytes.len(),
            })?;
            Ok(Self(u32::from_le_bytes(bytes)))
        }
    }
    let store = open();
    let observed = NewEvent::new("t", "a", [1; 32], &Observation(5)).expect("an encoding");
    store.append_events(&[observed, event("t", &[])]).expect("a store");
    let events = store.events("t", 0, 10).expect("a store");
    assert_eq!(events[0].payload::<Observation>().expect("valid"), Some(Observation(5)));
    assert_eq!(events[1].payload::<Observation>().expect("another kind"), None);
    let bad = NewEvent { kind: 7, ..event("t", &[]) };
    store
        .append_events(&[bad, NewEvent { tenant: String::new(), ..event("t", &[]) }])
        .expect_err("no tenant");
    assert_eq!(store.event_count().expect("a store"), 2);
}
