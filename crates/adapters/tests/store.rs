//! The store of adapters: adding, listing, removing and verifying.

mod common;

use std::fs;

use ruvllm_adapters::{Adapter, AdapterStore, CompactFile, Error, FactorFormat, LoraFile, Part};
use ruvllm_memory::Request;

use common::{add, base, peft, pool};

#[test]
fn an_added_adapter_has_the_factors_of_its_files() {
    for interleaved in [false, true] {
        let (root, source) = (tempfile::tempdir().unwrap(), peft(1));
        let store = AdapterStore::new(root.path().join("adapters"));
        let file = LoraFile::open(source.path()).unwrap();
        let parts = [Part { file: &file, scale: 0.5 }];
        let base = base(interleaved);
        let stored = store.add("poet", &base, &parts, "poet-lora", false).unwrap();
        assert_eq!((stored.name.as_str(), stored.rank(), stored.file.source()), ("poet", 4, "poet-lora"));
        let (pool, request) = (pool(), Request::default());
        let expected = Adapter::new(&base, &parts, FactorFormat::F16, &pool, &request).unwrap();
        let loaded = stored.file.load(&base, FactorFormat::F16, &pool, &request).unwrap();
        assert_eq!((loaded.factors(), loaded.digest()), (expected.factors(), expected.digest()));
        // As a source of sums: rows are not reordered twice.
        let again = LoraFile::open(stored.file.path()).unwrap();
        let parts = [Part { file: &again, scale: 1.0 }];
        let again = Adapter::new(&base, &parts, FactorFormat::F16, &pool, &request).unwrap();
        let site = ruvllm_adapters::Site::AttentionInput;
        let values = |adapter: &Adapter| {
            let factors = adapter.at(1, site).unwrap();
            let b = |index| factors.b(index).values().into_owned();
            (factors.a().values().into_owned(), b(0), b(1))
        };
        assert_eq!(values(&again), values(&expected), "interleaved: {interleaved}");
    }
}

#[test]
fn names_are_kept_replaced_and_removed() {
    let (root, source) = (tempfile::tempdir().unwrap(), peft(1));
    let store = AdapterStore::new(root.path().join("adapters"));
    assert!(store.list().unwrap().0.is_empty(), "no folder yet");
    add(&store, "poet", source.path(), false).unwrap();
    assert!(matches!(add(&store, "poet", source.path(), false), Err(Error::NameTaken { .. })));
    let digest = *store.get("poet").unwrap().file.digest();
    add(&store, "poet", peft(0).path(), true).unwrap();
    assert_ne!(*store.get("poet").unwrap().file.digest(), digest);
    add(&store, "facts", source.path(), false).unwrap();
    let names = |store: &AdapterStore| {
        let (adapters, damaged) = store.list().unwrap();
        let names: Vec<_> = adapters.into_iter().map(|adapter| adapter.name).collect();
        (names, damaged.into_iter().map(|damaged| damaged.name).collect::<Vec<_>>())
    };
    assert_eq!(names(&store), (vec!["facts".to_owned(), "poet".to_owned()], vec![]));
    // Other files are not its business.
    fs::write(store.root().join("poet.1-2.new"), "half").unwrap();
    fs::write(store.root().join("notes.txt"), "x").unwrap();
    fs::write(store.root().join("broken.ruvlora"), "ruvlora\0").unwrap();
    assert_eq!(names(&store).1, ["broken"]);
    assert!(store.remove("broken").unwrap() > 0 && store.remove("facts").unwrap() > 100);
    assert_eq!(names(&store), (vec!["poet".to_owned()], vec![]));
    for gone in ["facts", "../poet", "", "a/b", &"x".repeat(10 << 20)] {
        assert!(matches!(store.get(gone), Err(Error::UnknownAdapter { .. })));
        assert!(matches!(store.remove(gone), Err(Error::UnknownAdapter { .. })));
    }
    for name in ["../poet", "", "a/b", "con", &"x".repeat(10 << 20)] {
        let error = add(&store, name, source.path(), true).unwrap_err();
        assert!(matches!(error, Error::Name { .. }) && error.to_string().len() < 300);
    }
    assert!(!root.path().join("poet.ruvlora").exists());
}

#[test]
fn a_failed_addition_leaves_what_was_there() {
    let (root, source) = (tempfile::tempdir().unwrap(), peft(1));
    let store = AdapterStore::new(root.path().join("adapters"));
    add(&store, "poet", source.path(), false).unwrap();
    let before = fs::read(store.get("poet").unwrap().file.path()).unwrap();
    // A layer that the model does not have, and factors beyond F16.
    assert!(add(&store, "poet", peft(2).path(), true).is_err());
    let file = LoraFile::open(source.path()).unwrap();
    let large = [Part { file: &file, scale: 1e6 }];
    assert!(store.add("poet", &base(true), &large, "", true).is_err());
    assert_eq!(fs::read(store.get("poet").unwrap().file.path()).unwrap(), before);
    // A folder that cannot be made.
    let blocked = AdapterStore::new(root.path().join("adapters/poet.ruvlora/x"));
    assert!(matches!(add(&blocked, "poet", source.path(), false), Err(Error::StoreWrite { .. })));
    assert_eq!(fs::read_dir(store.root()).unwrap().count(), 1);
}

#[cfg(unix)]
#[test]
fn links_in_the_store_are_not_followed() {
    let (root, source) = (tempfile::tempdir().unwrap(), peft(1));
    let store = AdapterStore::new(root.path());
    add(&store, "poet", source.path(), false).unwrap();
    std::os::unix::fs::symlink(root.path().join("poet.ruvlora"), root.path().join("link.ruvlora")).unwrap();
    assert!(matches!(store.get("link"), Err(Error::NotCompact { .. })));
    store.remove("link").unwrap();
    assert!(store.get("poet").is_ok(), "the link was removed, not its target");
}

#[test]
fn two_additions_of_a_name_at_once_are_one() {
    let (root, source) = (tempfile::tempdir().unwrap(), peft(1));
    let store = AdapterStore::new(root.path());
    let added: Vec<bool> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..6).map(|_| scope.spawn(|| add(&store, "poet", source.path(), false).is_ok())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(added.iter().filter(|added| **added).count(), 1);
    store.get("poet").unwrap().file.verify().unwrap();
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
}

#[test]
fn a_stored_file_names_its_base_model() {
    let (root, source) = (tempfile::tempdir().unwrap(), peft(1));
    let store = AdapterStore::new(root.path());
    add(&store, "poet", source.path(), false).unwrap();
    let file = CompactFile::open(&root.path().join("poet.ruvlora")).unwrap();
    let error = file.check_base(&base(false)).unwrap_err().to_string();
    assert!(error.contains("another model") && error.contains("llama with 2 layers of 6"), "{error}");
}
