//! The prefix store with a key, in a folder that others write to.

use std::fs;
use std::path::{Path, PathBuf};

use ruvllm_kv_cache::prefix::store::{EntryHeader, Stored};
use ruvllm_kv_cache::prefix::{Fault, FolderKey, PrefixStore, Purpose, TAG_BYTES, Warning};
use tempfile::TempDir;

use crate::prefix_key as key;

const BLOCK: usize = 4;
const PAYLOAD: [u8; 64] = [7; 64];

fn secret(byte: u8) -> FolderKey {
    FolderKey::new(&[byte; 32]).expect("a key")
}

/// A folder that everybody may write to.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    #[cfg(unix)]
    {
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(folder.path(), open).expect("its mode");
    }
    folder
}

fn open(folder: &TempDir, byte: u8) -> PrefixStore {
    PrefixStore::open_shared(folder.path(), BLOCK, 1 << 30, &secret(byte)).expect("a store")
}

/// The whole blocks of `tokens`, stored; the paths of their entries.
fn put(store: &PrefixStore, tokens: &[u32]) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for place in store.missing(&key(), tokens, 0) {
        assert_eq!(store.write(&place, &[&PAYLOAD]).expect("written"), Stored::Written);
        paths.push(store.path().join(format!("{}.kv", place.id())));
    }
    paths
}

/// Blocks of `tokens` that are found and whose payload is right, and the warnings.
fn verified(store: &PrefixStore, tokens: &[u32]) -> (usize, Vec<Warning>) {
    let found = store.find(&key(), &[tokens, &[0]].concat(), 0);
    for entry in &found.chain {
        let mut payload = [0; PAYLOAD.len()];
        store.load(entry, &mut [&mut payload]).expect("a payload");
        assert_eq!(payload, PAYLOAD);
    }
    (found.chain.len(), found.warnings)
}

#[track_caller]
fn refused(store: &PrefixStore, tokens: &[u32], path: &Path, is_fault: impl Fn(&Fault) -> bool) {
    let (n_blocks, warnings) = verified(store, tokens);
    assert_eq!((n_blocks, warnings.len()), (0, 1), "{warnings:?}");
    assert!(is_fault(&warnings[0].fault) && warnings[0].is_removed, "{warnings:?}");
    assert!(!path.exists(), "it is computed and written again");
}

#[test]
fn stores_with_the_same_key_share_a_folder() {
    let folder = folder();
    let tokens: Vec<u32> = (0..8).collect();
    let paths = put(&open(&folder, 1), &tokens);
    assert_eq!(paths.len(), 2);
    let bytes = EntryHeader::bytes(BLOCK) + TAG_BYTES + PAYLOAD.len();
    assert_eq!(fs::metadata(&paths[0]).expect("an entry").len(), bytes as u64);
    let (n_blocks, warnings) = verified(&open(&folder, 1), &tokens);
    assert_eq!((n_blocks, warnings.len()), (2, 0));
}

#[test]
fn other_keys_and_none_have_names_of_their_own() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let tokens: Vec<u32> = (0..4).collect();
    let plain = PrefixStore::open(folder.path(), BLOCK, 1 << 30).expect("a store");
    let stores = [plain, open(&folder, 1), open(&folder, 2)];
    let mut paths = Vec::new();
    for (i, store) in stores.iter().enumerate() {
        assert_eq!(verified(store, &tokens).0, 0, "store {i}");
        paths.extend(put(store, &tokens));
    }
    paths.dedup();
    assert_eq!(paths.len(), 3);
    for store in &stores {
        let (n_blocks, warnings) = verified(store, &tokens);
        assert_eq!((n_blocks, warnings.len()), (1, 0));
    }
}

/// Forgery with the sound header of a readable entry and another payload.
#[test]
fn forged_entries_are_refused() {
    let folder = folder();
    let store = open(&folder, 1);
    let tokens: Vec<u32> = (0..4).collect();
    let path = put(&store, &tokens).remove(0);
    let sound = fs::read(&path).expect("an entry");
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
        fs::write(&path, [&header_bytes, tag, &other].concat()).expect("a forged entry");
        refused(&store, &tokens, &path, |fault| matches!(fault, Fault::Tag));
    }
    // As a store without key writes it: a sound entry but for the tag.
    fs::write(&path, [&header.encode()[..], &PAYLOAD].concat()).expect("a forged entry");
    refused(&store, &tokens, &path, |fault| matches!(fault, Fault::Tag));
    // The right header and tag before another payload: found, and refused before it is used.
    fs::write(&path, [&sound[..header_bytes.len() + TAG_BYTES], &other].concat()).expect("a forged entry");
    let found = store.find(&key(), &[&tokens[..], &[0]].concat(), 0);
    let error = store.load(&found.chain[0], &mut [&mut [0; PAYLOAD.len()]]).expect_err("another payload");
    assert!(error.to_string().contains("checksum"), "{error}");
    assert!(!path.exists());
    put(&store, &tokens);
    assert_eq!(verified(&store, &tokens).0, 1);
}

#[test]
fn every_changed_byte_of_a_tagged_entry_is_noticed() {
    let folder = folder();
    let store = open(&folder, 1);
    let tokens: Vec<u32> = (0..4).collect();
    let path = put(&store, &tokens).remove(0);
    let sound = fs::read(&path).expect("an entry");
    for at in 0..sound.len() {
        let mut bytes = sound.clone();
        bytes[at] ^= 1;
        fs::write(&path, bytes).expect("a damaged entry");
        let found = store.find(&key(), &[&tokens[..], &[0]].concat(), 0);
        if let Some(entry) = found.chain.first() {
            assert!(at >= EntryHeader::bytes(BLOCK) + TAG_BYTES, "byte {at} of the header is not covered");
            store.load(entry, &mut [&mut [0; PAYLOAD.len()]]).expect_err("a damaged payload");
        }
        assert!(!path.exists(), "byte {at}");
    }
    for len in 0..sound.len() {
        fs::write(&path, &sound[..len]).expect("a cut entry");
        assert_eq!(verified(&store, &tokens).0, 0);
        assert!(!path.exists(), "{len} bytes");
    }
}

#[test]
fn entries_are_bound_to_their_names() {
    let folder = folder();
    let store = open(&folder, 1);
    let prompts: [&[u32]; 2] = [&[0, 1, 2, 3], &[4, 5, 6, 7]];
    let paths = prompts.map(|tokens| put(&store, tokens).remove(0));
    let files = paths.each_ref().map(|path| fs::read(path).expect("an entry"));
    fs::write(&paths[0], &files[1]).expect("swapped");
    fs::write(&paths[1], &files[0]).expect("swapped");
    for (tokens, path) in prompts.iter().zip(&paths) {
        refused(&store, tokens, path, |fault| matches!(fault, Fault::Foreign));
    }
}

#[cfg(unix)]
#[test]
fn folders_of_others_are_used_and_their_group_reads_the_entries() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
    let folder = tempfile::tempdir().expect("a temporary folder");
    let tokens: Vec<u32> = (0..4).collect();
    let store = |mode| {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).expect("its mode");
        open(&folder, 1)
    };
    for (mode, expected) in [(0o700, 0o600), (0o755, 0o600), (0o770, 0o640), (0o2770, 0o640), (0o777, 0o640)]
    {
        let path = put(&store(mode), &tokens).remove(0);
        let file = fs::metadata(&path).expect("an entry");
        // On some systems a new file has the group of its folder without the bit as well.
        let is_same_group = file.gid() == fs::metadata(folder.path()).expect("the folder").gid();
        let expected = if is_same_group { expected } else { 0o600 };
        assert_eq!(file.mode() & 0o7777, expected, "folder of mode {mode:o}");
        fs::remove_file(path).expect("removed");
    }
    // The other checks stay.
    let store = store(0o777);
    let path = put(&store, &tokens).remove(0);
    let target = folder.path().join("target");
    fs::rename(&path, &target).expect("the entry elsewhere");
    symlink(&target, &path).expect("a link");
    refused(&store, &tokens, &path, |fault| matches!(fault, Fault::NotRegular));
    assert!(target.exists(), "the link alone is removed");
    if fs::metadata(folder.path()).expect("the folder").uid() == 0 {
        chown(folder.path(), Some(12_345), None).expect("another owner");
        assert!(PrefixStore::open(folder.path(), BLOCK, 1 << 30).is_err());
        open(&folder, 1);
    }
}
