//! The prefix store on a real folder: what it finds again, and that it believes no file.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    thread,
    time::{Duration, SystemTime},
};

use ruvllm_kv_cache::prefix::{
    Fault, PrefixError, PrefixKey, PrefixStore, Scope,
    store::{Entry, EntryHeader, Missing, Stored},
};
use ruvllm_kv_cache::{Error, Result};
use tempfile::TempDir;

const BLOCK: usize = 4;
const PAYLOAD: usize = 64;
/// Bytes of an entry's file.
const FILE: u64 = (EntryHeader::bytes(BLOCK) + PAYLOAD) as u64;
const UNLIMITED: u64 = u64::MAX;

fn key(scope: Scope) -> PrefixKey {
    PrefixKey { model: [3; 32], adapter: None, kv_format: "f16".into(), rope_scaling: "none".into(), scope }
}

fn tenant(name: &str) -> PrefixKey {
    key(Scope::Tenant(name.into()))
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // The store refuses folders of a group, which some users' masks make.
    #[cfg(unix)]
    {
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(folder.path(), private).expect("its mode");
    }
    folder
}

fn open(folder: &TempDir, limit_bytes: u64) -> PrefixStore {
    PrefixStore::open(folder.path(), BLOCK, limit_bytes).expect("a store")
}

/// A payload that depends on the whole prefix.
fn payload(tokens: &[u32]) -> [u8; PAYLOAD] {
    let sum = tokens.iter().fold(7u64, |sum, &token| sum.wrapping_mul(31).wrapping_add(u64::from(token)));
    std::array::from_fn(|i| (sum >> (i % 8 * 8)) as u8 ^ i as u8)
}

/// Stores all blocks of `tokens`, the first one first.
fn put(store: &PrefixStore, key: &PrefixKey, tokens: &[u32]) {
    for end in (BLOCK..=tokens.len()).step_by(BLOCK) {
        let payload = payload(&tokens[..end]);
        store.put(key, &tokens[..end], &[&payload[..10], &payload[10..]]).expect("a stored block");
    }
}

/// The number of blocks that are found and have the right payload.
fn verified(store: &PrefixStore, key: &PrefixKey, tokens: &[u32]) -> usize {
    let found = store.find(key, tokens, 0);
    assert!(found.warnings.is_empty(), "{:?}", found.warnings);
    for (i, entry) in found.chain.iter().enumerate() {
        assert_eq!(load(store, entry).expect("a payload"), payload(&tokens[..(i + 1) * BLOCK]));
    }
    found.chain.len()
}

fn load(store: &PrefixStore, entry: &Entry) -> Result<[u8; PAYLOAD]> {
    let mut bytes = [0; PAYLOAD];
    let (a, b) = bytes.split_at_mut(33);
    store.load(entry, &mut [a, b])?;
    Ok(bytes)
}

fn path_of(folder: &TempDir, entry: &Entry) -> PathBuf {
    folder.path().join(format!("{}.kv", entry.id()))
}

fn age(path: &Path, by: Duration) {
    let file = File::options().write(true).open(path).expect("a file");
    file.set_modified(SystemTime::now() - by).expect("a time");
}

const TOKENS: [u32; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13];

#[test]
fn prefixes_are_found_after_a_restart() {
    let (folder, key) = (folder(), tenant("t"));
    put(&open(&folder, UNLIMITED), &key, &TOKENS);
    let store = open(&folder, UNLIMITED);
    assert_eq!(verified(&store, &key, &TOKENS), 3);
    // At least one token is left to compute.
    assert_eq!(verified(&store, &key, &TOKENS[..12]), 2);
    assert_eq!(verified(&store, &key, &[1, 2, 3, 4, 5, 6, 7, 9, 9]), 1);
    assert_eq!(verified(&store, &key, &[1, 2, 3, 5, 5]), 0);
    assert_eq!(verified(&store, &key, &[]), 0);
    assert_eq!(store.usage().expect("a listing"), (3, 3 * FILE));
    let s = store.statistics();
    assert_eq!((s.lookups, s.found_blocks, s.loaded_blocks), (5, 6, 6));
    assert_eq!((s.loaded_bytes, s.written_blocks, s.unusable_blocks), (6 * PAYLOAD as u64, 0, 0));
}

#[test]
fn blocks_that_are_in_memory_already_are_skipped() {
    let (folder, key) = (folder(), tenant("t"));
    let store = open(&folder, UNLIMITED);
    // The start was never stored.
    store.put(&key, &TOKENS[..8], &[&payload(&TOKENS[..8])]).expect("a stored block");
    store.put(&key, &TOKENS[..12], &[&payload(&TOKENS[..12])]).expect("a stored block");
    assert_eq!(store.find(&key, &TOKENS, 0).chain.len(), 0);
    let found = store.find(&key, &TOKENS, 1);
    assert_eq!(found.chain.len(), 2);
    assert_eq!(load(&store, &found.chain[0]).expect("a payload"), payload(&TOKENS[..8]));
}

#[test]
fn a_block_is_written_once() {
    let (folder, key) = (folder(), tenant("t"));
    let store = open(&folder, UNLIMITED);
    assert_eq!(store.put(&key, &TOKENS[..4], &[b"abc"]).expect("stored"), Stored::Written);
    assert_eq!(store.put(&key, &TOKENS[..4], &[b"abc"]).expect("stored"), Stored::Present);
    assert_eq!(store.statistics().written_blocks, 1);
}

#[test]
fn missing_blocks_keep_their_place_and_can_be_written_later() {
    let (folder, key) = (folder(), tenant("t"));
    let store = open(&folder, UNLIMITED);
    store.put(&key, &TOKENS[..8], &[&payload(&TOKENS[..8])]).expect("a stored block");
    let missing = store.missing(&key, &TOKENS, 0);
    assert_eq!(missing.iter().map(Missing::index).collect::<Vec<_>>(), [0, 2], "only whole blocks");
    assert_eq!(store.missing(&key, &TOKENS, 1).len(), 1);
    // The last one first, as blocks are given up.
    for block in missing.iter().rev() {
        let payload = payload(&TOKENS[..(block.index() + 1) * BLOCK]);
        assert_eq!(store.write(block, &[&payload]).expect("a stored block"), Stored::Written);
        assert_eq!(store.write(block, &[&payload]).expect("a stored block"), Stored::Present);
    }
    assert_eq!(verified(&store, &key, &TOKENS), 3);
    assert!(store.missing(&key, &TOKENS, 0).is_empty());
    assert_eq!(store.missing(&tenant("other"), &TOKENS, 0).len(), 3);
}

#[test]
fn scopes_do_not_see_each_other() {
    let folder = folder();
    let store = open(&folder, UNLIMITED);
    let (a, b, shared) = (tenant("a"), tenant("b"), key(Scope::Shared));
    put(&store, &a, &TOKENS);
    put(&store, &shared, &TOKENS[..4]);
    assert_eq!(verified(&store, &a, &TOKENS), 3);
    assert_eq!(verified(&store, &b, &TOKENS), 1);
    assert_eq!(verified(&store, &shared, &TOKENS), 1);
    assert_eq!(verified(&store, &PrefixKey { model: [4; 32], ..a }, &TOKENS), 0);
}

#[test]
fn every_changed_byte_is_noticed() {
    let (folder, key) = (folder(), tenant("t"));
    let store = open(&folder, UNLIMITED);
    put(&store, &key, &TOKENS[..4]);
    let path = path_of(&folder, &store.find(&key, &TOKENS, 0).chain[0]);
    let good = fs::read(&path).expect("the entry");
    assert_eq!(good.len() as u64, FILE);
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&path, bytes).expect("a damaged entry");
        let found = store.find(&key, &TOKENS, 0);
        let warning = match found.chain.first() {
            None => found.warnings.into_iter().next().expect("a warning"),
            Some(entry) => match load(&store, entry) {
                Err(Error::Prefix(PrefixError::Unusable(warning))) => warning,
                other => panic!("byte {at}: {other:?}"),
            },
        };
        let is_right = match at {
            0..8 => matches!(warning.fault, Fault::Magic),
            8..12 => matches!(warning.fault, Fault::Version { .. }),
            12..16 => matches!(warning.fault, Fault::Length { .. } | Fault::Foreign),
            16..80 | 120..136 => matches!(warning.fault, Fault::Foreign),
            80..88 => matches!(warning.fault, Fault::Length { .. }),
            _ => matches!(warning.fault, Fault::Checksum),
        };
        assert!(is_right, "byte {at}: {warning}");
        assert!(warning.is_removed && !path.exists());
    }
    // A removed entry can be stored again.
    put(&store, &key, &TOKENS[..4]);
    assert_eq!(verified(&store, &key, &TOKENS), 1);
    assert_eq!(store.statistics().unusable_blocks, FILE);
}

#[test]
fn every_other_length_is_noticed() {
    let (folder, key) = (folder(), tenant("t"));
    let store = open(&folder, UNLIMITED);
    put(&store, &key, &TOKENS[..4]);
    let path = path_of(&folder, &store.find(&key, &TOKENS, 0).chain[0]);
    let mut bytes = fs::read(&path).expect("the entry");
    bytes.push(0);
    for len in (0..bytes.len()).filter(|&len| len as u64 != FILE).chain([bytes.len()]) {
        fs::write(&path, &bytes[..len]).expect("a damaged entry");
        let found = store.find(&key, &TOKENS, 0);
        assert!(found.chain.is_empty());
        assert!(matches!(found.warnings[0].fault, Fault::Length { found, .. } if found == len as u64));
        assert!(!path.exists());
    }
}

#[test]
fn an_entry_of_another_key_is_not_used_whatever_its_name() {
    let folder = folder();
    let store = open(&folder, UNLIMITED);
    let (own, other) = (tenant("own"), tenant("other"));
    put(&store, &own, &TOKENS[..4]);
    put(&store, &other, &TOKENS[..4]);
    let path = |key| path_of(&folder, &store.find(key, &TOKENS, 0).chain[0]);
    let (own_path, other_path) = (path(&own), path(&other));
    fs::copy(&other_path, &own_path).expect("a copy");
    let found = store.find(&own, &TOKENS, 0);
    assert!(found.chain.is_empty());
    assert!(matches!(found.warnings[0].fault, Fault::Foreign));
    assert_eq!(verified(&store, &other, &TOKENS), 1);
}

#[test]
fn damage_inside_a_chain_leaves_what_is_before_it() {
    let (folder, key) = (folder(), tenant("t"));
    let store = open(&folder, UNLIMITED);
    put(&store, &key, &TOKENS);
    let middle = path_of(&folder, &store.find(&key, &TOKENS, 0).chain[1]);
    fs::write(&middle, b"something else altogether").expect("a damaged entry");
    let found = store.find(&key, &TOKENS, 0);
    assert_eq!((found.chain.len(), found.warnings.len()), (1, 1));
    let text = found.warnings[0].to_string();
    assert!(text.ends_with("not a stored prefix, removed it"), "{text}");
}

#[test]
fn a_folder_in_place_of_an_entry_is_left_alone() {
    let (folder, key) = (folder(), tenant("t"));
    let store = open(&folder, UNLIMITED);
    put(&store, &key, &TOKENS[..4]);
    let path = path_of(&folder, &store.find(&key, &TOKENS, 0).chain[0]);
    fs::remove_file(&path).expect("the entry");
    fs::create_dir(&path).expect("a folder in its place");
    let found = store.find(&key, &TOKENS, 0);
    assert!(matches!(found.warnings[0].fault, Fault::NotRegular) && !found.warnings[0].is_removed);
    assert!(path.exists());
}

#[test]
fn buffers_of_another_size_are_refused() {
    let (folder, key) = (folder(), tenant("t"));
    let store = open(&folder, UNLIMITED);
    put(&store, &key, &TOKENS[..4]);
    let found = store.find(&key, &TOKENS, 0);
    assert_eq!(found.chain[0].payload_bytes(), PAYLOAD as u64);
    let error = store.load(&found.chain[0], &mut [&mut [0; 9], &mut [0; 9]]).expect_err("18 bytes");
    assert!(matches!(error, Error::Prefix(PrefixError::BufferSize { bytes: 64, buffer_bytes: 18, .. })));
    assert_eq!(verified(&store, &key, &TOKENS), 1);
}

#[test]
fn the_store_keeps_its_limit_and_loses_what_was_not_used() {
    let (folder, key) = (folder(), tenant("t"));
    let store = open(&folder, 10 * FILE);
    let prompt = |first: u32| [first, 2, 3, 4, 9];
    for first in 0..8 {
        put(&store, &key, &prompt(first)[..4]);
        let entry = store.find(&key, &prompt(first), 0).chain.remove(0);
        age(&path_of(&folder, &entry), Duration::from_secs(1000 - u64::from(first)));
    }
    // The oldest is used again.
    assert_eq!(verified(&store, &key, &prompt(0)), 1);
    for first in 8..12 {
        put(&store, &key, &prompt(first)[..4]);
        assert!(store.usage().expect("a listing").1 <= 10 * FILE);
    }
    let kept: Vec<u32> = (0..12).filter(|&first| verified(&store, &key, &prompt(first)) == 1).collect();
    assert_eq!(kept, [0, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    assert_eq!(store.statistics().deleted_blocks, 2);
}

#[test]
fn a_chain_is_deleted_from_its_end() {
    let (folder, key) = (folder(), tenant("t"));
    put(&open(&folder, UNLIMITED), &key, &TOKENS);
    assert_eq!(verified(&open(&folder, 2 * FILE), &key, &TOKENS), 2);
    assert_eq!(verified(&open(&folder, FILE), &key, &TOKENS), 1);
}

#[test]
fn a_block_larger_than_the_store_is_refused() {
    let (folder, key) = (folder(), tenant("t"));
    let store = open(&folder, FILE - 1);
    let error = store.put(&key, &TOKENS[..4], &[&[0; PAYLOAD]]).expect_err("too large");
    assert!(matches!(error, Error::Prefix(PrefixError::LargerThanStore { bytes, .. }) if bytes == FILE));
    assert_eq!(store.usage().expect("a listing"), (0, 0));
}

#[test]
fn interrupted_writes_are_swept_when_they_are_old() {
    let (folder, key) = (folder(), tenant("t"));
    put(&open(&folder, UNLIMITED), &key, &TOKENS);
    let digits = "ab".repeat(32);
    let names = [format!("{digits}-1.tmp"), format!("{digits}-2.tmp"), "notes.tmp".into(), "notes.kv".into()];
    let [old, fresh, other, notes] = names.map(|name| folder.path().join(name));
    for path in [&old, &fresh, &other, &notes] {
        fs::write(path, b"half of a header").expect("a file");
    }
    age(&old, Duration::from_secs(24 * 3600));
    age(&other, Duration::from_secs(24 * 3600));
    // A limit of nothing deletes all entries, and only entries.
    for limit_bytes in [UNLIMITED, 0] {
        let store = open(&folder, limit_bytes);
        assert!(!old.exists() && fresh.exists() && other.exists() && notes.exists());
        assert_eq!(verified(&store, &key, &TOKENS), if limit_bytes == 0 { 0 } else { 3 });
    }
}

#[test]
fn two_stores_share_a_folder() {
    let (folder, key) = (folder(), tenant("t"));
    let (first, second) = (open(&folder, UNLIMITED), open(&folder, UNLIMITED));
    put(&first, &key, &TOKENS);
    let found = second.find(&key, &TOKENS, 0);
    assert_eq!(found.chain.len(), 3);
    fs::remove_file(path_of(&folder, &found.chain[2])).expect("the entry");
    assert!(matches!(load(&second, &found.chain[2]), Err(Error::Prefix(PrefixError::Gone { .. }))));
    assert_eq!(verified(&second, &key, &TOKENS), 2);
}

#[test]
fn a_folder_that_cannot_be_made_is_an_error() {
    let folder = folder();
    let file = folder.path().join("file");
    fs::write(&file, b"").expect("a file");
    let error = PrefixStore::open(file.join("store"), BLOCK, UNLIMITED).expect_err("no folder");
    assert!(matches!(error, Error::Prefix(PrefixError::File { action: "create", .. })), "{error}");
}

#[cfg(unix)]
#[test]
fn other_users_cannot_read_the_store() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let path = folder.path().join("prefixes");
    let store = PrefixStore::open(&path, BLOCK, UNLIMITED).expect("a store");
    put(&store, &tenant("t"), &TOKENS[..4]);
    let file = fs::read_dir(&path).expect("a listing").next().expect("an entry").expect("an entry");
    for path in [&path, &file.path()] {
        assert_eq!(fs::metadata(path).expect("its mode").permissions().mode() & 0o077, 0);
    }
}

#[test]
fn threads_and_stores_work_on_one_folder_at_once() {
    let folder = folder();
    let work = |seed: u32, store: &PrefixStore| {
        let key = tenant("t");
        for round in 0..60 {
            let tokens = [(seed + round) % 7, 2, 3, 4, (seed * round) % 3, 6, 7, 8, 9];
            put(store, &key, &tokens[..8]);
            let found = store.find(&key, &tokens, 0);
            assert!(found.warnings.is_empty(), "{:?}", found.warnings);
            for (i, entry) in found.chain.iter().enumerate() {
                match load(store, entry) {
                    Ok(bytes) => assert_eq!(bytes, payload(&tokens[..(i + 1) * BLOCK])),
                    Err(Error::Prefix(PrefixError::Gone { .. })) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        }
    };
    let stores = [open(&folder, 12 * FILE), open(&folder, 12 * FILE)];
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|seed| {
                let store = &stores[seed as usize % 2];
                scope.spawn(move || work(seed, store))
            })
            .collect();
        // The thread sanitizer sees a join, but not the end of a scope.
        threads.into_iter().for_each(|thread| thread.join().expect("the thread's checks hold"));
    });
    let deleted: u64 = stores.iter().map(|store| store.statistics().deleted_blocks).sum();
    assert!(deleted > 0, "the limit was never reached");
    assert_eq!(open(&folder, 0).usage().expect("a listing"), (0, 0));
}
