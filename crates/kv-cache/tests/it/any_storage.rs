//! Tests of stores over any storage: this crate's folder, and storages of other crates, which
//! include this file.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use ruvllm_kv_cache::Error;
use ruvllm_kv_cache::prefix::store::{EntryHeader, EntryName, EntryStorage, Missing, Stored};
use ruvllm_kv_cache::prefix::{
    Fault, FolderKey, PrefixError, PrefixKey, PrefixStore, Purpose, Scope, TAG_BYTES, Warning,
};

const BLOCK: usize = 4;
pub(crate) const PAYLOAD: [u8; 64] = [7; 64];

/// Bytes of an entry.
const ENTRY: u64 = (EntryHeader::bytes(BLOCK) + TAG_BYTES + PAYLOAD.len()) as u64;

pub(crate) type Storage = Arc<dyn EntryStorage>;

/// All tests; `storage` makes an empty storage, which others write to.
pub(crate) fn all(storage: &dyn Fn() -> Storage) {
    without_times(storage);
    entries_written_first_are_deleted_first(&storage());
}

/// All tests but that of the order of deletion.
pub(crate) fn without_times(storage: &dyn Fn() -> Storage) {
    stores_with_one_key_share(&storage());
    blocks_of_a_models_size_are_read_back(&storage());
    other_keys_and_models_have_names_of_their_own(&storage());
    forged_entries_are_refused(&storage());
    changed_bytes_and_lengths_are_noticed(&storage());
    entries_are_bound_to_their_names(&storage());
    foreign_names_are_left_alone(&storage());
    stores_write_and_read_at_once(&storage());
}

pub(crate) fn secret(byte: u8) -> FolderKey {
    FolderKey::new(&[byte; 32]).expect("a key")
}

pub(crate) fn key() -> PrefixKey {
    PrefixKey {
        model: [1; 32],
        adapter: None,
        kv_format: "f16".into(),
        rope_scaling: "none".into(),
        scope: Scope::Tenant("a".into()),
    }
}

pub(crate) fn open(storage: &Storage, byte: u8) -> PrefixStore {
    open_limited(storage, byte, 1 << 30)
}

fn open_limited(storage: &Storage, byte: u8, limit_bytes: u64) -> PrefixStore {
    PrefixStore::open_storage(Arc::clone(storage), BLOCK, limit_bytes, &secret(byte)).expect("a store")
}

/// The whole blocks of `tokens`, stored; their names.
pub(crate) fn put(store: &PrefixStore, tokens: &[u32]) -> Vec<EntryName> {
    let write = |place: Missing| {
        assert_eq!(store.write(&place, &[&PAYLOAD[..10], &PAYLOAD[10..]]).expect("written"), Stored::Written);
        EntryName { id: place.id(), index: place.index() as u32 }
    };
    store.missing(&key(), tokens, 0).into_iter().map(write).collect()
}

/// Blocks of `tokens` that are found and whose payload is right, and the warnings.
pub(crate) fn verified(store: &PrefixStore, tokens: &[u32]) -> (usize, Vec<Warning>) {
    let mut found = store.find(&key(), &[tokens, &[0]].concat(), 0);
    let (mut n_blocks, mut reader) = (0, store.reader(&found.chain));
    for _ in &found.chain {
        let mut payload = [0; PAYLOAD.len()];
        match reader.read(&mut [&mut payload]) {
            Ok(()) => assert_eq!(payload, PAYLOAD),
            Err(Error::Prefix(PrefixError::Unusable(warning))) => {
                found.warnings.push(warning);
                break;
            }
            Err(Error::Prefix(PrefixError::Gone { .. })) => break,
            Err(error) => panic!("{error}"),
        }
        n_blocks += 1;
    }
    (n_blocks, found.warnings)
}

/// Replaces an entry, as everybody can who may write to the storage.
fn forge(storage: &Storage, name: EntryName, bytes: &[u8]) {
    storage.write(name, &[bytes], SystemTime::now()).expect("a forged entry");
}

fn read(storage: &Storage, name: EntryName) -> Vec<u8> {
    let heads = storage.heads(&[name], 1 << 20);
    heads.into_iter().next().expect("one answer").expect("readable").expect("an entry").bytes
}

fn exists(storage: &Storage, name: EntryName) -> bool {
    matches!(&storage.heads(&[name], 1)[..], [Ok(Some(_))])
}

#[track_caller]
fn refused(storage: &Storage, tokens: &[u32], name: EntryName, is_fault: impl Fn(&Fault) -> bool) {
    let (n_blocks, warnings) = verified(&open(storage, 1), tokens);
    assert_eq!((n_blocks, warnings.len()), (0, 1), "{warnings:?}");
    assert!(is_fault(&warnings[0].fault) && warnings[0].is_removed, "{warnings:?}");
    assert!(!exists(storage, name), "it is computed and written again");
}

fn stores_with_one_key_share(storage: &Storage) {
    // More blocks than one call asks for.
    let tokens: Vec<u32> = (0..40 * BLOCK as u32).collect();
    let store = open(storage, 1);
    assert_eq!(put(&store, &tokens).len(), 40);
    assert_eq!(store.usage().expect("a listing"), (40, 40 * ENTRY));
    let other = open(storage, 1);
    let (n_blocks, warnings) = verified(&other, &tokens);
    assert_eq!((n_blocks, warnings.len()), (40, 0));
    assert!(other.missing(&key(), &tokens, 0).is_empty());
    let found = other.find(&key(), &tokens[..7 * BLOCK + 1], 2);
    assert_eq!(found.chain.len(), 5, "blocks after those that are known");
    let statistics = other.statistics();
    assert_eq!((statistics.loaded_blocks, statistics.storage_errors, statistics.is_paused), (40, 0, false));
}

/// Blocks of models have hundreds of KiB: limits of answers, and parts of uploads, show.
fn blocks_of_a_models_size_are_read_back(storage: &Storage) {
    let tokens: Vec<u32> = (0..2 * BLOCK as u32).collect();
    let store = open(storage, 1);
    let sizes = [300_000, (1 << 20) + 1];
    for (place, bytes) in store.missing(&key(), &tokens, 0).into_iter().zip(sizes) {
        assert_eq!(
            store.write(&place, &[&vec![place.index() as u8; bytes]]).expect("written"),
            Stored::Written
        );
    }
    let found = store.find(&key(), &[&tokens[..], &[0]].concat(), 0);
    assert_eq!((found.chain.len(), found.warnings.len()), (2, 0), "{:?}", found.warnings);
    let mut reader = store.reader(&found.chain);
    for (index, bytes) in sizes.into_iter().enumerate() {
        let mut payload = vec![u8::MAX; bytes];
        reader.read(&mut [&mut payload]).expect("an entry");
        assert!(payload.iter().all(|&byte| usize::from(byte) == index), "block {index}");
    }
}

fn other_keys_and_models_have_names_of_their_own(storage: &Storage) {
    let tokens: Vec<u32> = (0..BLOCK as u32).collect();
    let stores = [open(storage, 1), open(storage, 2)];
    let names = stores.each_ref().map(|store| put(store, &tokens).remove(0));
    assert_ne!(names[0], names[1]);
    for store in &stores {
        assert_eq!(verified(store, &tokens).0, 1);
        let wanted = [&tokens[..], &[0]].concat();
        for other in [
            PrefixKey { model: [2; 32], ..key() },
            PrefixKey { kv_format: "q8".into(), ..key() },
            PrefixKey { scope: Scope::Tenant("b".into()), ..key() },
        ] {
            let found = store.find(&other, &wanted, 0);
            assert_eq!((found.chain.len(), found.warnings.len()), (0, 0));
        }
    }
}

fn forged_entries_are_refused(storage: &Storage) {
    let tokens: Vec<u32> = (0..BLOCK as u32).collect();
    let name = put(&open(storage, 1), &tokens).remove(0);
    let sound = read(storage, name);
    let header = EntryHeader::parse(&sound).expect("a header");
    let other = [9; PAYLOAD.len()];
    let mut forged = header.clone();
    forged.payload_sha256 = {
        use sha2::Digest;
        sha2::Sha256::digest(other).into()
    };
    let header_bytes = forged.encode();
    assert_eq!(forged.id(), header.id(), "the name says nothing of the payload");
    let old_tag = &sound[header_bytes.len()..][..TAG_BYTES];
    let wrong_key = secret(2).tag(Purpose::Entry, &header_bytes);
    let wrong_purpose = secret(1).tag(Purpose::State, &header_bytes);
    for tag in [old_tag, &wrong_key[..], &wrong_purpose, &[0; TAG_BYTES], &[]] {
        forge(storage, name, &[&header_bytes, tag, &other].concat());
        refused(storage, &tokens, name, |fault| matches!(fault, Fault::Tag));
    }
    // As a store without key writes it: a sound entry but for the tag.
    forge(storage, name, &[&header.encode()[..], &PAYLOAD].concat());
    refused(storage, &tokens, name, |fault| matches!(fault, Fault::Tag));
    // The right header and tag before another payload: found, and refused before it is used.
    forge(storage, name, &[&sound[..header_bytes.len() + TAG_BYTES], &other].concat());
    refused(storage, &tokens, name, |fault| matches!(fault, Fault::Checksum));
    assert_eq!(put(&open(storage, 1), &tokens), [name]);
    assert_eq!(verified(&open(storage, 1), &tokens).0, 1);
}

fn changed_bytes_and_lengths_are_noticed(storage: &Storage) {
    let tokens: Vec<u32> = (0..BLOCK as u32).collect();
    let store = open(storage, 1);
    let name = put(&store, &tokens).remove(0);
    let sound = read(storage, name);
    // Every field of the header, the tag and the payload; every length of a torn entry in steps.
    let fields = [0, 8, 12, 16, 48, 80, 88, 120, 124].into_iter().chain((130..sound.len()).step_by(17));
    for at in fields {
        let mut bytes = sound.clone();
        bytes[at] ^= 1;
        forge(storage, name, &bytes);
        let (n_blocks, warnings) = verified(&store, &tokens);
        assert_eq!((n_blocks, warnings.len(), exists(storage, name)), (0, 1, false), "byte {at}");
    }
    let longer = [&sound[..], &[0]].concat();
    let torn = (0..sound.len()).step_by(13).map(|len| &sound[..len]);
    for bytes in torn.chain([&longer[..]]) {
        forge(storage, name, bytes);
        let (n_blocks, warnings) = verified(&store, &tokens);
        assert_eq!((n_blocks, warnings.len(), exists(storage, name)), (0, 1, false), "{} bytes", bytes.len());
    }
    assert!(!store.statistics().is_paused, "damage is no failure of the storage");
}

fn entries_are_bound_to_their_names(storage: &Storage) {
    let store = open(storage, 1);
    let prompts: [&[u32]; 2] = [&[0, 1, 2, 3], &[4, 5, 6, 7]];
    let names = prompts.map(|tokens| put(&store, tokens).remove(0));
    let entries = names.map(|name| read(storage, name));
    forge(storage, names[0], &entries[1]);
    forge(storage, names[1], &entries[0]);
    for (tokens, name) in prompts.iter().zip(names) {
        refused(storage, tokens, name, |fault| matches!(fault, Fault::Foreign));
    }
}

/// Entries of other keys are counted by the limit, and neither used nor removed before.
fn foreign_names_are_left_alone(storage: &Storage) {
    let tokens: Vec<u32> = (0..BLOCK as u32).collect();
    let name = put(&open(storage, 2), &tokens).remove(0);
    let store = open(storage, 1);
    let (n_blocks, warnings) = verified(&store, &tokens);
    assert_eq!((n_blocks, warnings.len()), (0, 0));
    put(&store, &tokens);
    assert!(exists(storage, name));
    assert_eq!(store.usage().expect("a listing").0, 2);
}

fn stores_write_and_read_at_once(storage: &Storage) {
    let tokens: Vec<u32> = (0..10 * BLOCK as u32).collect();
    let writers = 4;
    thread::scope(|scope| {
        for _ in 0..writers {
            scope.spawn(|| {
                // Each as a process of its own would.
                let store = open(storage, 1);
                for _ in 0..3 {
                    for place in store.missing(&key(), &tokens, 0) {
                        store.write(&place, &[&PAYLOAD]).expect("written or present");
                        let (_, warnings) = verified(&store, &tokens);
                        assert!(warnings.is_empty(), "{warnings:?}");
                    }
                }
            });
        }
    });
    let store = open(storage, 1);
    assert_eq!(verified(&store, &tokens).0, 10);
    assert_eq!(store.usage().expect("a listing"), (10, 10 * ENTRY));
}

fn entries_written_first_are_deleted_first(storage: &Storage) {
    let store = open(storage, 1);
    put(&store, &[0; BLOCK]);
    // Times of entries may be told in seconds.
    thread::sleep(Duration::from_millis(2100));
    let tokens: Vec<u32> = (0..5 * BLOCK as u32).collect();
    put(&store, &tokens);
    // Opening brings the storage below the limit: of a prefix, the end goes first.
    let store = open_limited(storage, 1, 3 * ENTRY);
    assert_eq!(store.statistics().deleted_blocks, 3);
    assert_eq!((verified(&store, &[0; BLOCK]).0 + verified(&store, &tokens).0), 3);
    assert!(verified(&store, &tokens).0 >= 2, "the start of a prefix is kept");
}
