//! Stored records are read again: after reopening, and through JSON lines.

use std::collections::BTreeMap;

use proptest::prelude::*;
use redb::{ReadableTableMetadata, TableHandle};

use super::*;
use crate::store::tables::{FEEDBACK, ORDER, REQUESTS, TIMES, TRAJECTORIES};

fn open(path: &Path) -> LearningStore {
    LearningStore::open(path, StoreOptions::default()).expect("a store")
}

#[test]
fn contents_survive_reopening() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store");
    let store = open(&path);
    let ids = [add(&store, "t", "1"), add(&store, "u", "1"), add(&store, "t", "2")];
    store.attach_feedback("t", "2", &rated(-1.0)).expect("a request");
    store.append_events(&[event("t", &[ids[2]])]).expect("a store");
    save(&store, "t", SnapshotKind::Clean, 1, b"learned").expect("a store");
    let before = contents(&store);
    assert!(matches!(LearningStore::open(&path, StoreOptions::default()), Err(Error::StoreInUse { .. })));
    drop(store);
    let store = open(&path);
    assert_eq!(contents(&store), before);
    let stored = store.trajectory("t", ids[2]).expect("a store").expect("a trajectory");
    assert_eq!((&stored.trajectory, &stored.feedback[..]), (&trajectory("t", "2"), &[rated(-1.0)][..]));
    assert_eq!(store.trajectory("u", ids[2]).expect("a store"), None);
    assert_eq!(store.snapshot("t", "a", 1).expect("a snapshot").bytes, b"learned");
    drop(store);

    let read_only = StoreOptions { read_only: true, ..StoreOptions::default() };
    let store = LearningStore::open(&path, read_only).expect("a store");
    assert_eq!(contents(&store), before);
    assert!(matches!(store.add(&[trajectory("t", "3")]), Err(Error::StoreIo { .. })));
    #[cfg(unix)]
    {
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).expect("a file").permissions());
        assert_eq!(mode & 0o777, 0o600);
    }
}

#[test]
fn requests_of_others_and_unknown_ones_are_refused() {
    let store = faults::open(&faults::Storage::default(), StoreOptions::default()).expect("a store");
    let id = add(&store, "t", "1");
    assert_eq!(store.attach_feedback("t", "1", &rated(1.0)).expect("a request"), id);
    let refused =
        |tenant, request, feedback| store.attach_feedback(tenant, request, &feedback).expect_err("bad");
    assert!(matches!(refused("u", "1", rated(1.0)), Error::ForeignRequest { .. }));
    assert!(matches!(refused("t", "2", rated(1.0)), Error::UnknownRequest { .. }));
    assert!(matches!(refused("t", "", rated(1.0)), Error::UnknownRequest { .. }));
    assert!(matches!(refused("t", "1", Feedback::default()), Error::Record { .. }));
    // The same id of another tenant is another request.
    assert_ne!(add(&store, "u", "1"), id);
    let again =
        store.add(&[trajectory("t", "1"), trajectory("", "3"), trajectory("t", "4")]).expect("a store");
    assert!(matches!(
        &again[..],
        [Err(Error::DuplicateRequest { .. }), Err(Error::Record { field: "tenant", .. }), Ok(_)]
    ));
}

#[test]
fn trajectories_are_read_in_pages_and_by_time() {
    let store = faults::open(&faults::Storage::default(), StoreOptions::default()).expect("a store");
    // The clock jumps back: the order of storing does not.
    let ids: Vec<_> = [50, 40, 60, 10].iter().map(|ms| add_at(&store, "t", &ms.to_string(), *ms)).collect();
    add_at(&store, "s", "0", 45);
    add_at(&store, "tt", "0", 45);
    let page = |after, limit| {
        let page = store.trajectories("t", after, limit).expect("a store");
        page.iter().map(|stored| stored.id).collect::<Vec<_>>()
    };
    assert_eq!(page(None, 3), ids[..3]);
    assert_eq!(page(Some(ids[2]), 3), ids[3..]);
    assert_eq!(page(Some(TrajectoryId(u64::MAX)), 3), []);
    assert_eq!(store.created_between("t", 40, 59).expect("a store"), [ids[1], ids[0]]);
}

/// Bytes of tables as the database counts them.
fn stored_bytes(store: &LearningStore) -> u64 {
    let tables = |transaction: &ReadTransaction| {
        let bytes = [
            transaction.open_table(TRAJECTORIES)?.stats()?.stored_bytes(),
            transaction.open_table(FEEDBACK)?.stats()?.stored_bytes(),
            transaction.open_table(REQUESTS)?.stats()?.stored_bytes(),
            transaction.open_table(ORDER)?.stats()?.stored_bytes(),
            transaction.open_table(TIMES)?.stats()?.stored_bytes(),
        ];
        Ok(bytes.iter().sum())
    };
    store.read(tables).expect("a store")
}

#[test]
fn bytes_are_those_that_the_database_counts() {
    assert_eq!(TRAJECTORIES.name(), "trajectories");
    let options = StoreOptions { trajectory_bytes: 9_000, ..StoreOptions::default() };
    let store = faults::open(&faults::Storage::default(), options).expect("a store");
    let check = || {
        let tenants: BTreeMap<_, _> = store.tenants().expect("a store").into_iter().collect();
        let counted: u64 = tenants.values().map(|usage| usage.bytes).sum();
        assert_eq!(counted, stored_bytes(&store));
        counted
    };
    for n in 0..20 {
        add(&store, ["t", "a longer tenant"][n % 2], &n.to_string());
        check();
    }
    store.attach_feedback("t", "18", &rated(0.5)).expect("a request");
    let before = check();
    assert!((5_000..=9_000).contains(&before), "{before}");
    store.forget("t", ForgetScope::Since(0)).expect("a store");
    assert!(check() < before);
    store.forget("a longer tenant", ForgetScope::All).expect("a store");
    assert_eq!(check(), 0);
}

#[test]
fn json_lines_have_the_documented_form() {
    let store = faults::open(&faults::Storage::default(), StoreOptions::default()).expect("a store");
    let small = Trajectory {
        embedding: Some(Embedding::quantize(&[127.0, -1.0]).expect("finite")),
        prompt_tokens: vec![1],
        timings: Timings::default(),
        session: None,
        prompt_text: None,
        ..trajectory("t", "r")
    };
    store.add(&[small]).expect("a store");
    store.attach_feedback("t", "r", &rated(0.5)).expect("a request");
    let mut lines = Vec::new();
    assert_eq!(store.export("t", &mut lines).expect("memory"), 1);
    let expected = concat!(
        r#"{"version":1,"id":1,"trajectory":{"request_id":"r","tenant":"t","session":null,"#,
        r#""model_digest":"digest","prompt_tokens":[1],"response_tokens":[4294967295,0,128000],"#,
        r#""prompt_text":null,"response_text":null,"embedding":{"scales":[1.0],"codes":[127,-1]},"#,
        r#""adapters":[{"name":"law","version":3}],"route":"base","kv_policy":"q8","#,
        r#""timings":{"queue_ms":null,"ttft_ms":null,"decode_ms":null,"tokens_per_second":null},"#,
        r#""created_ms":1000},"feedback":[{"rating":0.5,"correction":[1,2,3],"accepted":false,"#,
        r#""signals":{"regenerated":null,"copied":true,"abandoned":null,"edit_distance":3},"#,
        r#""step_rewards":[0.1,-2.0],"created_ms":2000}]}"#,
        "\n"
    );
    assert_eq!(String::from_utf8(lines).expect("text"), expected);
}

#[test]
fn bad_lines_are_refused_and_nothing_is_imported() {
    let store = faults::open(&faults::Storage::default(), StoreOptions::default()).expect("a store");
    add(&store, "t", "1");
    store.attach_feedback("t", "1", &rated(0.5)).expect("a request");
    let mut good = Vec::new();
    store.export("t", &mut good).expect("memory");
    let good = String::from_utf8(good).expect("text");
    for (from, to, part) in [
        (r#""rating":0.5"#, r#""rating":1.5"#, "must be in [-1, 1]"),
        (r#""rating":0.5"#, r#""rating":1e30"#, "must be in [-1, 1]"),
        (r#""version":1,"#, r#""version":2,"#, "version 2"),
        (r#""version":1,"#, "", "version"),
        (r#""tenant":"t""#, r#""tenant":"""#, "tenant: it is empty"),
        (r#""id":1"#, r#""id":1,"more":2"#, "more"),
        (r#""correction":[1,2,3]"#, r#""correction":[]"#, "no tokens"),
        (r#""correction":[1,2,3]"#, r#""correction":[-1]"#, "-1"),
        ("}", "", "EOF"),
    ] {
        let bad = if from == "}" {
            good.trim_end().trim_end_matches('}').to_owned()
        } else {
            good.replacen(from, to, 1)
        };
        let text = format!("{}{bad}\n", good.replacen(r#""request_id":"1""#, r#""request_id":"2""#, 1));
        let error = store.import(text.as_bytes(), None).expect_err(part);
        assert!(matches!(error, Error::ImportLine { line: 2, .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains(part) && !error.contains("line 1"), "{error}");
    }
    let not_text = store.import(&b"\xff\n"[..], None).expect_err("bytes");
    assert!(matches!(not_text, Error::ImportLine { line: 1, .. }), "{not_text}");
    assert_eq!(store.tenants().expect("a store")[0].1.trajectories, 1);
    let again = store.import(format!("\n{good}\n\n").as_bytes(), None).expect("valid");
    assert_eq!((again.stored, again.duplicates), (0, 1));
    let moved = store.import(good.as_bytes(), Some("u")).expect("valid");
    assert_eq!((moved.stored, moved.duplicates), (1, 0));
}

fn any_trajectory() -> impl Strategy<Value = Trajectory> {
    let time = || prop::option::of(0.0f32..1e9);
    let text = || prop::option::of("\\PC{1,20}");
    let tokens = || prop::collection::vec(any::<u32>(), 0..50);
    let embedding = prop::option::of(prop::collection::vec(-1e3f32..1e3, 1..200));
    let times = (time(), time(), time(), time(), any::<u64>());
    (tokens(), tokens(), text(), text(), text(), embedding, times).prop_map(
        |(prompt_tokens, response_tokens, prompt_text, session, route, embedding, times)| Trajectory {
            prompt_tokens,
            response_tokens,
            prompt_text,
            session,
            route,
            embedding: embedding.map(|values| Embedding::quantize(&values).expect("finite")),
            timings: Timings {
                queue_ms: times.0,
                ttft_ms: times.1,
                decode_ms: times.2,
                tokens_per_second: times.3,
            },
            created_ms: times.4,
            ..trajectory("t", "")
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn exports_are_imported_bit_for_bit(mut trajectories in prop::collection::vec(any_trajectory(), 1..5)) {
        let options = || StoreOptions { cache_bytes: 1 << 20, ..StoreOptions::default() };
        let store = faults::open(&faults::Storage::default(), options()).expect("a store");
        for (n, trajectory) in trajectories.iter_mut().enumerate() {
            trajectory.request_id = n.to_string();
        }
        store.add(&trajectories).expect("a store");
        store.attach_feedback("t", "0", &rated(-0.3)).expect("a request");
        let mut lines = Vec::new();
        store.export("t", &mut lines).expect("memory");
        let copy = faults::open(&faults::Storage::default(), options()).expect("a store");
        copy.import(&lines[..], None).expect("valid lines");
        prop_assert_eq!(contents(&copy), contents(&store));
        let read = copy.trajectories("t", None, 100).expect("a store");
        prop_assert!(read.iter().map(|stored| &stored.trajectory).eq(&trajectories));
    }
}
