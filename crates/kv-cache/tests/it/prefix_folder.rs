//! The prefix store in a folder that somebody else has prepared.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ruvllm_kv_cache::prefix::store::{EntryHeader, Stored};
use ruvllm_kv_cache::prefix::{Fault, PrefixError, PrefixStore};
use ruvllm_kv_cache::{Error, Result};
use tempfile::TempDir;

use crate::prefix_key as key;

const BLOCK: usize = 4;
const PAYLOAD: usize = 64;
/// Bytes of an entry's file.
const FILE: u64 = (EntryHeader::bytes(BLOCK) + PAYLOAD) as u64;

/// A folder and the path of a store in it.
fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("prefixes");
    (folder, path)
}

fn open(path: &Path) -> Result<PrefixStore> {
    PrefixStore::open(path, BLOCK, 1 << 30)
}

/// Tokens of a prefix of one block, and the path of its entry.
fn place(store: &PrefixStore, first: u32) -> ([u32; BLOCK], PathBuf) {
    let tokens = [first, 2, 3, 4];
    let missing = store.missing(&key(), &tokens, 0).remove(0);
    (tokens, store.path().join(format!("{}.kv", missing.id())))
}

fn put(store: &PrefixStore, tokens: &[u32]) -> Result<Stored> {
    store.put(&key(), tokens, &[&[7; PAYLOAD]])
}

/// The result of work that must not wait for anybody.
fn promptly<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let thread = thread::spawn(move || sender.send(work()));
    let result = receiver.recv_timeout(Duration::from_secs(20)).expect("it does not hang");
    thread.join().expect("it ends").expect("the result was taken");
    result
}

#[test]
fn folders_that_others_may_write_to_are_refused() {
    let (_folder, path) = folder();
    drop(open(&path).expect("a new folder"));
    assert_eq!(fs::metadata(&path).expect("its mode").mode() & 0o7777, 0o700);
    for mode in [0o777, 0o770, 0o702, 0o1777] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("its mode");
        let error = open(&path).expect_err("others can write to it");
        let Error::Prefix(PrefixError::SharedFolder { mode: found, .. }) = &error else { panic!("{error}") };
        assert_eq!(*found, mode);
        assert!(error.to_string().contains("chmod go-w"), "{error}");
    }
    fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("its mode");
    open(&path).expect("others can list it at most");
}

#[test]
fn folders_of_other_users_are_refused() {
    let (folder, mut path) = folder();
    if fs::metadata(folder.path()).expect("a folder").uid() == 0 {
        fs::create_dir(&path).expect("a folder");
        chown(&path, Some(12_345), None).expect("another owner");
    } else {
        path = "/".into();
    }
    let error = open(&path).expect_err("it is somebody else's");
    assert!(matches!(error, Error::Prefix(PrefixError::ForeignFolder { .. })), "{error}");
}

#[test]
fn pipes_are_not_waited_for() {
    let (_folder, path) = folder();
    let store = open(&path).expect("a store");
    let (tokens, entry) = place(&store, 1);
    assert!(Command::new("mkfifo").arg(&entry).status().expect("mkfifo").success());
    let (warnings, stored, found) = promptly(move || {
        let warnings = store.find(&key(), &[&tokens[..], &[5]].concat(), 0).warnings;
        let stored = put(&store, &tokens).expect("stored");
        (warnings, stored, store.find(&key(), &[&tokens[..], &[5]].concat(), 0).chain.len())
    });
    assert!(matches!(warnings[0].fault, Fault::NotRegular) && warnings[0].is_removed);
    assert_eq!((stored, found), (Stored::Written, 1));
    assert!(fs::symlink_metadata(&entry).expect("an entry").is_file());
}

#[test]
fn links_are_not_followed() {
    let (folder, path) = folder();
    let store = open(&path).expect("a store");
    let (tokens, entry) = place(&store, 1);
    put(&store, &tokens).expect("stored");
    let target = folder.path().join("target");
    fs::rename(&entry, &target).expect("the entry elsewhere");
    let prompt = [&tokens[..], &[5]].concat();
    for _ in 0..2 {
        symlink(&target, &entry).expect("a link");
        let found = store.find(&key(), &prompt, 0);
        assert!(found.chain.is_empty() && matches!(found.warnings[0].fault, Fault::NotRegular));
        assert!(fs::symlink_metadata(&entry).is_err() && target.exists(), "the link alone is removed");
    }
    // A link that a write finds is replaced, and not written through.
    let content = fs::read(&target).expect("the target");
    symlink(&target, &entry).expect("a link");
    assert_eq!(put(&store, &tokens).expect("stored"), Stored::Written);
    assert!(fs::symlink_metadata(&entry).expect("an entry").is_file());
    fs::write(&entry, b"changed").expect("the entry");
    assert_eq!(fs::read(&target).expect("the target"), content);
}

#[test]
fn lengths_of_sparse_files_and_folders_under_entry_names_are_harmless() {
    let (_folder, path) = folder();
    let store = open(&path).expect("a store");
    let (tokens, entry) = place(&store, 1);
    let name = |digit: &str| path.join(format!("{}.kv", digit.repeat(64)));
    fs::create_dir(name("f")).expect("a folder");
    let file = File::create(&entry).expect("a file");
    // As far as the file system goes.
    let most = (40..64).rev().find(|&bits| file.set_len((1 << bits) - (64 << 10)).is_ok());
    most.expect("a sparse file");
    let len = file.metadata().expect("its length").len();
    for digit in ["a", "b", "c"] {
        File::create(name(digit)).and_then(|file| file.set_len(len)).expect("a sparse file");
    }
    let found = store.find(&key(), &[&tokens[..], &[5]].concat(), 0);
    assert!(found.chain.is_empty() && matches!(found.warnings[0].fault, Fault::Magic));
    assert_eq!(store.usage().expect("a listing").0, 3, "without the folder");
    assert_eq!(open(&path).expect("a store").usage().expect("a listing"), (0, 0));
    assert!(name("f").exists());
}

#[test]
fn writes_that_fail_beside_others_keep_the_size_of_the_store() {
    let (_folder, path) = folder();
    let store = PrefixStore::open(&path, BLOCK, 2 * FILE).expect("a store");
    // Nothing can be renamed to the name of a folder.
    let blocked: Vec<_> = (0..4).map(|first| place(&store, first)).collect();
    blocked.iter().for_each(|(_, entry)| fs::create_dir(entry).expect("a folder"));
    thread::scope(|scope| {
        let write = |tokens: &[u32; BLOCK]| {
            for _ in 0..100 {
                let error = put(&store, tokens).expect_err("a folder in its place");
                assert!(matches!(error, Error::Prefix(PrefixError::File { .. })), "{error}");
            }
        };
        let threads: Vec<_> = blocked.iter().map(|(tokens, _)| scope.spawn(move || write(tokens))).collect();
        // The thread sanitizer sees a join, but not the end of a scope.
        threads.into_iter().for_each(|thread| thread.join().expect("the thread's checks hold"));
    });
    // Two fit. The third deletes both, because a tenth of the limit is freed beside its own size.
    for first in 10..13 {
        let (tokens, _) = place(&store, first);
        assert_eq!(put(&store, &tokens).expect("stored"), Stored::Written);
    }
    assert_eq!((store.usage().expect("a listing").1, store.statistics().deleted_blocks), (FILE, 2));
}
