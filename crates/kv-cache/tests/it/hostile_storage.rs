//! Stores over storages that hang, refuse, tear entries, return other bytes or lose listings.

use std::collections::BTreeMap;
use std::io::{self, Cursor};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use proptest::prelude::*;
use ruvllm_kv_cache::prefix::store::{EntryHead, EntryName, EntryStorage, ListedEntry, OpenEntry, Stored};
use ruvllm_kv_cache::prefix::{Fault, PrefixError, PrefixStore};

use crate::any_storage::{self, Storage, key, open, put, secret, verified};

/// Behaviour of a storage in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Sound,
    /// No answer within the patience.
    Hangs,
    /// Every call is refused: a full disk, credentials that have ended.
    Refuses,
    /// Other bytes at this place of what is read.
    Alters(usize),
    /// The end of what is read is missing, whatever size was stated.
    CutsOff(usize),
    /// Fewer answers than were asked for.
    Forgets,
    /// An empty listing.
    LosesList,
    /// A write that says nothing and leaves a part.
    Tears(usize),
    /// Sizes that no entry has.
    Exaggerates,
}

/// A storage behind a network whose behaviour tests choose.
#[derive(Debug)]
struct Hostile {
    entries: Mutex<BTreeMap<EntryName, (Vec<u8>, SystemTime)>>,
    modes: Mutex<Vec<Mode>>,
    calls: AtomicU64,
}

impl Hostile {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            entries: Mutex::default(),
            modes: Mutex::new(vec![Mode::Sound]),
            calls: AtomicU64::new(0),
        })
    }

    /// Behaves in these ways, in turn.
    fn behave(&self, modes: &[Mode]) {
        *self.modes.lock() = modes.to_vec();
    }

    fn mode(&self) -> io::Result<Mode> {
        let call = self.calls.fetch_add(1, Relaxed) as usize;
        let modes = self.modes.lock();
        match modes[call % modes.len()] {
            Mode::Hangs => Err(io::Error::new(io::ErrorKind::TimedOut, "no answer within 2s")),
            Mode::Refuses => Err(io::Error::new(io::ErrorKind::StorageFull, "no space left")),
            mode => Ok(mode),
        }
    }

    fn read(&self, name: EntryName, n_bytes: usize, mode: Mode) -> Option<(Vec<u8>, u64)> {
        let entries = self.entries.lock();
        let (entry, _) = entries.get(&name)?;
        let mut bytes = entry[..entry.len().min(n_bytes)].to_vec();
        let mut entry_bytes = entry.len() as u64;
        match mode {
            Mode::Alters(at) if !bytes.is_empty() => {
                let at = at % bytes.len();
                bytes[at] ^= 1;
            }
            Mode::CutsOff(at) => bytes.truncate(at % bytes.len().max(1)),
            Mode::Exaggerates => entry_bytes = u64::MAX,
            _ => {}
        }
        Some((bytes, entry_bytes))
    }

    fn failed(action: &'static str) -> impl FnOnce(io::Error) -> PrefixError {
        move |source| PrefixError::File { action, path: "hostile://storage".into(), source }
    }
}

fn again(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

impl EntryStorage for Hostile {
    fn location(&self) -> &Path {
        Path::new("hostile://storage")
    }

    fn path_of(&self, name: EntryName) -> PathBuf {
        self.location().join(name.id.to_string())
    }

    fn most_at_once(&self) -> usize {
        3
    }

    fn patience(&self) -> Option<Duration> {
        Some(Duration::from_secs(2))
    }

    fn heads(&self, names: &[EntryName], n_bytes: usize) -> Vec<Result<Option<EntryHead>, Fault>> {
        let mode = match self.mode() {
            Ok(Mode::Forgets) => return Vec::new(),
            Ok(mode) => mode,
            Err(error) => return names.iter().map(|_| Err(Fault::Unreadable(again(&error)))).collect(),
        };
        let head = |(bytes, entry_bytes)| EntryHead { bytes, entry_bytes };
        names.iter().map(|&name| Ok(self.read(name, n_bytes, mode).map(head))).collect()
    }

    fn open(&self, entries: &[(EntryName, u64)]) -> Vec<Result<Option<OpenEntry<'_>>, Fault>> {
        let mode = match self.mode() {
            Ok(Mode::Forgets) => return Vec::new(),
            Ok(mode) => mode,
            Err(error) => return entries.iter().map(|_| Err(Fault::Unreadable(again(&error)))).collect(),
        };
        let open = |(bytes, entry_bytes)| OpenEntry { entry_bytes, content: Box::new(Cursor::new(bytes)) };
        let read = |&(name, bytes): &(EntryName, u64)| Ok(self.read(name, bytes as usize, mode).map(open));
        entries.iter().map(read).collect()
    }

    fn touch(&self, name: EntryName, used: SystemTime) {
        if let Some((_, time)) = self.entries.lock().get_mut(&name) {
            *time = used;
        }
    }

    fn write(&self, name: EntryName, parts: &[&[u8]], used: SystemTime) -> Result<(), PrefixError> {
        let mut bytes = parts.concat();
        if let Mode::Tears(at) = self.mode().map_err(Self::failed("write"))? {
            bytes.truncate(at % bytes.len());
        }
        self.entries.lock().insert(name, (bytes, used));
        Ok(())
    }

    fn remove(&self, names: &[EntryName]) -> Vec<Result<(), PrefixError>> {
        let remove = |name: &EntryName| {
            self.mode().map_err(Self::failed("remove"))?;
            self.entries.lock().remove(name);
            Ok(())
        };
        names.iter().map(remove).collect()
    }

    fn list(&self) -> Result<Vec<ListedEntry>, PrefixError> {
        if self.mode().map_err(Self::failed("list"))? == Mode::LosesList {
            return Ok(Vec::new());
        }
        let entry = |(&name, (bytes, used)): (&EntryName, &(Vec<u8>, SystemTime))| ListedEntry {
            name,
            bytes: bytes.len() as u64,
            used: *used,
        };
        Ok(self.entries.lock().iter().map(entry).collect())
    }
}

#[test]
fn folders_and_remote_storages_pass_the_same_tests() {
    any_storage::all(&|| Hostile::new());
    let folders = std::cell::RefCell::new(Vec::new());
    any_storage::all(&|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let storage = ruvllm_kv_cache::prefix::store::shared_folder(folder.path()).expect("a storage");
        folders.borrow_mut().push(folder);
        storage
    });
}

#[test]
fn a_storage_that_hangs_is_asked_once_and_left_alone() {
    let hostile = Hostile::new();
    let storage: Storage = hostile.clone();
    let tokens: Vec<u32> = (0..20).collect();
    let store = open(&storage, 1);
    put(&store, &tokens);
    hostile.behave(&[Mode::Hangs]);
    let calls = hostile.calls.load(Relaxed);
    for lookup in 0..10 {
        let found = store.find(&key(), &tokens, 0);
        assert!(found.chain.is_empty());
        assert_eq!(found.warnings.len(), usize::from(lookup == 0), "one line for a pause");
        assert!(store.missing(&key(), &tokens, 0).is_empty(), "nothing is queued that cannot be written");
    }
    assert_eq!(hostile.calls.load(Relaxed), calls + 1, "requests compute without waiting");
    let statistics = store.statistics();
    assert_eq!((statistics.storage_errors, statistics.storage_timeouts), (1, 1));
    assert_eq!((statistics.storage_pauses, statistics.is_paused), (1, true));
    assert_eq!((statistics.lookups, statistics.skipped_lookups), (10, 9 + 1), "own scope, then shared ones");
    // Entries queued before are dropped without an error each.
    let place = store.format().places(&key(), &[9; 4]).next().expect("a block");
    assert_eq!(store.write(&place, &[&[0; 8]]).expect("no error"), Stored::Paused);
    // Another process is not affected.
    hostile.behave(&[Mode::Sound]);
    assert_eq!(verified(&open(&storage, 1), &tokens).0, 5);
}

#[test]
fn a_storage_that_refuses_at_the_start_is_an_error_with_its_name() {
    let hostile = Hostile::new();
    for (mode, text) in [(Mode::Hangs, "no answer within 2s"), (Mode::Refuses, "no space left")] {
        hostile.behave(&[mode]);
        let storage: Storage = hostile.clone();
        let error = PrefixStore::open_storage(storage, 4, 1 << 20, &secret(1)).expect_err("no listing");
        assert_eq!(error.to_string(), "cannot list hostile://storage");
        let cause = std::error::Error::source(&error).expect("a cause").to_string();
        assert_eq!(cause, text);
    }
}

#[test]
fn a_full_storage_refuses_one_block_and_answers_reads() {
    let hostile = Hostile::new();
    let storage: Storage = hostile.clone();
    let store = open(&storage, 1);
    put(&store, &[1, 2, 3, 4]);
    let place = store.format().places(&key(), &[9; 4]).next().expect("a block");
    // The head of the entry is asked for first, then it is written.
    let is_even = hostile.calls.load(Relaxed).is_multiple_of(2);
    hostile.behave(if is_even { &[Mode::Sound, Mode::Refuses] } else { &[Mode::Refuses, Mode::Sound] });
    let error = store.write(&place, &[&[0; 8]]).expect_err("no space");
    assert_eq!(error.to_string(), "cannot write hostile://storage");
    hostile.behave(&[Mode::Sound]);
    // This store waits before it asks again; others read.
    assert!(store.statistics().is_paused);
    assert_eq!(verified(&open(&storage, 1), &[1, 2, 3, 4]).0, 1);
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        3 => Just(Mode::Sound),
        1 => Just(Mode::Hangs),
        1 => Just(Mode::Refuses),
        2 => any::<usize>().prop_map(Mode::Alters),
        2 => any::<usize>().prop_map(Mode::CutsOff),
        1 => Just(Mode::Forgets),
        1 => Just(Mode::LosesList),
        2 => any::<usize>().prop_map(Mode::Tears),
        1 => Just(Mode::Exaggerates),
    ]
}

proptest! {
    /// `verified` fails if a payload that is loaded is not the one that was written.
    #[test]
    fn no_behaviour_of_a_storage_gives_a_wrong_payload(
        modes in proptest::collection::vec(mode(), 1..12),
        lengths in proptest::collection::vec(1_u32..8, 1..10),
    ) {
        let hostile = Hostile::new();
        let storage: Storage = hostile.clone();
        // A store is paused after a failure, so each step is one of another process.
        let open = || PrefixStore::open_storage(Arc::clone(&storage), 4, 1 << 30, &secret(1));
        hostile.behave(&modes);
        for &n_blocks in &lengths {
            let tokens: Vec<u32> = (0..n_blocks * 4).collect();
            if let Ok(store) = open() {
                for place in store.missing(&key(), &tokens, 0) {
                    let _ = store.write(&place, &[&any_storage::PAYLOAD]);
                }
            }
            if let Ok(store) = open() {
                prop_assert!(verified(&store, &tokens).0 <= n_blocks as usize);
            }
        }
        // Whatever is left is used or computed again, and written over.
        hostile.behave(&[Mode::Sound]);
        let tokens: Vec<u32> = (0..32).collect();
        let store = open().expect("a store");
        for _ in 0..2 {
            for place in store.missing(&key(), &tokens, 0) {
                store.write(&place, &[&any_storage::PAYLOAD]).expect("written");
            }
            verified(&store, &tokens);
        }
        for place in store.missing(&key(), &tokens, 0) {
            store.write(&place, &[&any_storage::PAYLOAD]).expect("written");
        }
        prop_assert_eq!(verified(&store, &tokens).0, 8);
    }
}
