//! Stores over object stores: in memory, in files, and behind servers that fail.

#[path = "../../../kv-cache/tests/it/any_storage.rs"]
mod any_storage;
mod faults;
mod server;

use std::cell::RefCell;
use std::sync::Arc;

use any_storage::Storage;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use ruvllm_prefix_objects::ObjectStorage;

#[test]
fn objects_in_memory_pass_the_tests_of_every_storage() {
    any_storage::all(&|| {
        let prefix = Path::from("deployment/prefixes");
        let storage = ObjectStorage::new(Arc::new(InMemory::new()), prefix, "memory://prefixes");
        Arc::new(storage.expect("threads"))
    });
}

#[test]
fn objects_in_files_pass_the_tests_of_every_storage() {
    let folders = RefCell::new(Vec::new());
    any_storage::all(&|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = LocalFileSystem::new_with_prefix(folder.path()).expect("a folder");
        folders.borrow_mut().push(folder);
        let storage = ObjectStorage::new(Arc::new(store), Path::default(), "file://prefixes");
        Arc::new(storage.expect("threads"))
    });
}

/// Other objects below the prefix, and prefixes below it, are no entries.
#[test]
fn other_objects_are_left_alone() {
    let store = Arc::new(InMemory::new());
    let open = |prefix: &str| -> Storage {
        let storage = ObjectStorage::new(Arc::<InMemory>::clone(&store), prefix.into(), "memory://prefixes");
        Arc::new(storage.expect("threads"))
    };
    let (outer, inner) = (open("a"), open("a/b"));
    any_storage::put(&any_storage::open(&inner, 1), &[1, 2, 3, 4]);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    use object_store::ObjectStoreExt as _;
    let notes = Path::from("a/notes.kv");
    runtime.block_on(store.put(&notes, "notes".into())).expect("an object");
    let other = any_storage::open(&outer, 1);
    assert_eq!(other.usage().expect("a listing"), (0, 0));
    assert_eq!(any_storage::verified(&other, &[1, 2, 3, 4]).0, 0);
    runtime.block_on(store.head(&notes)).expect("it is still there");
    assert_eq!(any_storage::verified(&any_storage::open(&inner, 1), &[1, 2, 3, 4]).0, 1);
}

/// Storages are used by threads of async runtimes too, and dropped there.
#[test]
fn a_storage_works_within_another_runtime() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
    let done = runtime.spawn(async {
        let storage = ObjectStorage::new(Arc::new(InMemory::new()), Path::default(), "memory://prefixes");
        let storage: Storage = Arc::new(storage.expect("threads"));
        let store = any_storage::open(&storage, 1);
        any_storage::put(&store, &[1, 2, 3, 4]);
        any_storage::verified(&store, &[1, 2, 3, 4]).0
    });
    assert_eq!(runtime.block_on(done).expect("no panic"), 1);
}
