//! Damaged files: clear errors, no panic.

use std::fs::OpenOptions;
use std::ops::Bound;
use std::sync::LazyLock;

use proptest::prelude::*;
use redb::StorageBackend;

use super::*;

/// File of a store, and its contents.
static FILLED: LazyLock<(Vec<u8>, String)> = LazyLock::new(|| {
    let bytes = filled().bytes();
    let contents = contents(&open_bytes(bytes.clone()).expect("an intact store"));
    (bytes, contents)
});

fn filled() -> faults::Storage {
    let storage = faults::Storage::default();
    let store = faults::open(&storage, small()).expect("a store");
    for n in 0..8 {
        let id = add(&store, ["t", "u"][n % 2], &n.to_string());
        store.append_events(&[event("t", &[id])]).expect("a store");
    }
    store.attach_feedback("t", "2", &rated(0.0)).expect("a request");
    save(&store, "t", SnapshotKind::Clean, 3, &[7; 9000]).expect("a store");
    drop(store);
    storage
}

fn small() -> StoreOptions {
    StoreOptions { cache_bytes: 1 << 20, ..StoreOptions::default() }
}

fn open_bytes(bytes: Vec<u8>) -> Result<LearningStore> {
    faults::open(&faults::Storage::with(bytes), small())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn changed_and_cut_files_are_refused_or_read_as_they_were(
        place in 0.0f64..1.0, change in 1u8..=255, is_cut in any::<bool>(),
    ) {
        let (mut bytes, intact) = FILLED.clone();
        let place = (place * bytes.len() as f64) as usize;
        if is_cut {
            bytes.truncate(place);
        } else {
            // The bits before select the commit to open, and an older one is a valid state.
            bytes[place.max(64)] ^= change;
        }
        match open_bytes(bytes) {
            Ok(store) if is_cut && place == 0 => prop_assert_eq!(contents(&store), ""),
            Ok(store) => prop_assert_eq!(contents(&store), intact),
            Err(error) => {
                let is_clear = matches!(&error, Error::StoreDamaged { .. } | Error::StoreFormat { .. });
                prop_assert!(is_clear, "{:?}", error);
            }
        }
    }
}

#[test]
fn stores_without_a_header_are_not_taken_for_new_ones() {
    let is_damaged = |bytes: &[u8]| {
        let storage = faults::Storage::with(bytes.to_vec());
        let error = faults::open(&storage, small()).expect_err("no store");
        assert!(matches!(error, Error::StoreDamaged { .. }), "{error}");
        assert_eq!(storage.bytes(), bytes, "the file is left as it is");
    };
    for lost in [9, 512, 4096] {
        let mut bytes = FILLED.0.clone();
        bytes[..lost].fill(0);
        is_damaged(&bytes);
    }
    is_damaged(&vec![0; 4 << 20]);
    is_damaged(b"redb");
}

#[test]
fn interrupted_creations_begin_again_unless_another_holds_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    for len in [0, 5, 70_000] {
        let path = folder.path().join(len.to_string());
        std::fs::write(&path, vec![0; len]).expect("a file");
        let file = OpenOptions::new().read(true).write(true).open(&path).expect("a file");
        let other = FileBackend::new(file).expect("storage");
        assert!(other.try_lock_range(Bound::Unbounded, Bound::Unbounded).expect("a lock"));
        let error = LearningStore::open(&path, small()).expect_err("created by another");
        assert!(matches!(error, Error::StoreInUse { .. }), "{error}");
        assert_eq!(std::fs::read(&path).expect("a file"), vec![0; len]);
        drop(other);
        let store = LearningStore::open(&path, small()).expect("a new store");
        assert_eq!(contents(&store), "");
        add(&store, "t", "1");
        let before = contents(&store);
        drop(store);
        let store = LearningStore::open(&path, small()).expect("a store");
        assert_eq!(contents(&store), before);
    }
}

#[test]
fn other_files_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store");
    std::fs::write(&path, b"not a database, but longer than any header of one ".repeat(200)).expect("a file");
    let open = |path: &Path, read_only| LearningStore::open(path, StoreOptions { read_only, ..small() });
    for read_only in [false, true] {
        let error = open(&path, read_only).expect_err("no store").to_string();
        assert!(
            error.contains(path.to_str().expect("text")) && error.contains("move the file away"),
            "{error}"
        );
    }
    let error = open(folder.path(), false).expect_err("a folder");
    assert!(matches!(error, Error::StoreIo { action: "open", .. }), "{error}");
    let error = open(&folder.path().join("missing"), true).expect_err("nothing there");
    assert!(matches!(error, Error::StoreIo { action: "open", .. }), "{error}");

    let path = folder.path().join("other");
    let database = Database::create(&path).expect("a database");
    let transaction = database.begin_write().expect("a database");
    let definition = redb::TableDefinition::<&str, u64>::new("meta");
    transaction.open_table(definition).expect("a table").insert("format", 99).expect("a table");
    transaction.commit().expect("a database");
    drop(database);
    let error = open(&path, false).expect_err("another format");
    assert!(matches!(error, Error::StoreFormat { found: 99, .. }), "{error}");
}
