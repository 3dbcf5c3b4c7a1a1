//! Opens a prefix folder in any state that another process may leave, with and without a key.
//! Loaded blocks equal stored ones, missing ones can be written, and other files stay unchanged.

#![no_main]

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use libfuzzer_sys::fuzz_target;
use ruvllm_fuzz::FOLDER;
use ruvllm_kv_cache::prefix::store::{EntryHeader, EntryId};
use ruvllm_kv_cache::prefix::{FolderKey, PrefixKey, PrefixStore, Purpose, Scope};
use ruvllm_kv_cache::{Controller, Error};
use sha2::{Digest, Sha256};

const BLOCK: usize = 2;
/// Prompts of two blocks each; the first two share their first block.
const PROMPTS: [[u32; 2 * BLOCK]; 3] = [[1, 2, 3, 4], [1, 2, 5, 6], [7, 8, 9, 10]];
const MOST_FILES: usize = 64;
/// Bytes that no valid payload has.
const FORGED: [u8; PAYLOAD] = [0xfe; PAYLOAD];
const PAYLOAD: usize = 8;

static ROOT: LazyLock<PathBuf> = LazyLock::new(|| FOLDER.join("prefixes"));
static SECRETS: LazyLock<[FolderKey; 2]> =
    LazyLock::new(|| [[1; 32], [2; 32]].map(|bytes| FolderKey::new(&bytes).expect("a key")));

fn key() -> PrefixKey {
    let (kv_format, rope_scaling) = ("f16".into(), "none".into());
    PrefixKey { model: [3; 32], adapter: None, kv_format, rope_scaling, scope: Scope::Shared }
}

/// Block of a prompt.
struct Place {
    header: EntryHeader,
    payload: [u8; PAYLOAD],
}

impl Place {
    fn path(&self) -> PathBuf {
        ROOT.join(format!("{}.kv", self.header.id()))
    }

    /// The valid file in a store with this key.
    fn file(&self, secret: Option<&FolderKey>) -> Vec<u8> {
        let mut bytes = self.header.encode();
        if let Some(secret) = secret {
            bytes.extend(secret.tag(Purpose::Entry, &bytes));
        }
        bytes.extend(self.payload);
        bytes
    }
}

/// A payload that depends on the whole prefix.
fn payload(tokens: &[u32]) -> [u8; PAYLOAD] {
    std::array::from_fn(|i| tokens.iter().fold(i as u8, |sum, &token| sum.wrapping_mul(3).wrapping_add(token as u8)))
}

fn places(secret: Option<&FolderKey>) -> Vec<Place> {
    let digest = key().digest();
    let key = secret.map_or(digest, |secret| secret.tag(Purpose::Name, &digest));
    let mut places = Vec::new();
    for prompt in &PROMPTS {
        let mut parent = EntryId::START;
        for end in [BLOCK, 2 * BLOCK] {
            let payload = payload(&prompt[..end]);
            let tokens = prompt[end - BLOCK..end].to_vec();
            let payload_sha256 = Sha256::digest(payload).into();
            let header = EntryHeader { key, parent, payload_bytes: PAYLOAD as u64, payload_sha256, tokens };
            parent = header.id();
            places.push(Place { header, payload });
        }
    }
    places
}

/// Content of the folder for an input.
#[derive(Default)]
struct Layout {
    /// Files that the store must leave alone, with their contents.
    foreign: Vec<(PathBuf, Vec<u8>)>,
    /// True if a folder has the name of an entry, so that nothing can replace it.
    is_blocked: bool,
    /// True if a forged payload has a valid checksum, which is enough without a key.
    is_forged: bool,
}

impl Layout {
    fn add(&mut self, [kind, at, low, high]: [u8; 4], secret: Option<&FolderKey>, others: &[Place]) {
        let places = places(secret);
        let place = &places[usize::from(at) % places.len()];
        let other = &others[usize::from(low) % others.len()];
        let number = usize::from(u16::from_le_bytes([low, high]));
        let mut file = place.file(secret);
        let path = place.path();
        if path.is_dir() {
            return;
        }
        // An earlier file or link is replaced.
        let _ = fs::remove_file(&path);
        let is_written = match kind % 14 {
            0 => fs::write(&path, file),
            1 => {
                let at = usize::from(low) % file.len();
                file[at] ^= high;
                fs::write(&path, file)
            }
            2 => fs::write(&path, &file[..number % file.len()]),
            3 => fs::write(&path, [file, vec![high; usize::from(low)]].concat()),
            4 => fs::write(&path, places[usize::from(low) % places.len()].file(secret)),
            // Without a key, or with another one.
            5 => fs::write(&path, place.file(if high % 2 == 0 { None } else { Some(&SECRETS[1]) })),
            6 => fs::write(&path, other.file(None)),
            7 => {
                let mut header = place.header.clone();
                header.payload_sha256 = Sha256::digest(FORGED).into();
                let tag = if secret.is_some() { vec![high; 32] } else { Vec::new() };
                self.is_forged |= secret.is_none();
                fs::write(&path, [&header.encode()[..], &tag, &FORGED].concat())
            }
            #[cfg(unix)]
            8 => std::os::unix::fs::symlink(FOLDER.join(if low % 2 == 0 { "victim" } else { "none" }), &path),
            9 => {
                self.is_blocked = true;
                fs::create_dir(&path)
            }
            10 => File::create(&path).and_then(|file| file.set_len(1 << (low % 40))),
            11 => {
                let temporary = ROOT.join(format!("{}-{number:016x}.tmp", place.header.id()));
                let age = Duration::from_secs(if high % 2 == 0 { 0 } else { 24 * 3600 });
                File::create(&temporary).and_then(|file| file.set_modified(SystemTime::now() - age))
            }
            12 => {
                let state = [&[low; 40][..], &[high; 40]].concat();
                let _ = Controller::from_bytes(&state[..number % 81]);
                self.leave_alone(format!("{}.quality", place.header.id()), state);
                Ok(())
            }
            _ => {
                self.leave_alone(format!("notes-{number}.{}", ["kv", "tmp", "key"][number % 3]), file);
                Ok(())
            }
        };
        is_written.expect("laid out");
    }

    fn leave_alone(&mut self, name: String, content: Vec<u8>) {
        let path = ROOT.join(name);
        fs::write(&path, &content).expect("written");
        self.foreign.retain(|(other, _)| *other != path);
        self.foreign.push((path, content));
    }
}

/// Loads all blocks found for each prompt; returns the number of valid ones.
fn load_all(store: &PrefixStore, is_forged: bool) -> usize {
    let mut n_blocks = 0;
    for prompt in &PROMPTS {
        let found = store.find(&key(), &[&prompt[..], &[0]].concat(), 0);
        for (i, entry) in found.chain.iter().enumerate() {
            let mut loaded = [0; PAYLOAD];
            match store.load(entry, &mut [&mut loaded]) {
                Ok(()) => {
                    let is_sound = loaded == payload(&prompt[..(i + 1) * BLOCK]);
                    assert!(is_sound || (is_forged && loaded == FORGED));
                    n_blocks += 1;
                }
                Err(Error::Prefix(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
    }
    n_blocks
}

fuzz_target!(|input: &[u8]| {
    let Some((&flags, files)) = input.split_first() else { return };
    let secret = (flags & 1 != 0).then(|| &SECRETS[0]);
    let _ = fs::remove_dir_all(&*ROOT);
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(&*ROOT).expect("a folder");
    let victim = FOLDER.join("victim");
    fs::write(&victim, "x").expect("written");

    let (mut layout, others) = (Layout::default(), places(None));
    for file in files.as_chunks().0.iter().take(MOST_FILES) {
        layout.add(*file, secret, &others);
    }
    let open = |limit_bytes| match secret {
        Some(secret) => PrefixStore::open_shared(&*ROOT, BLOCK, limit_bytes, secret),
        None => PrefixStore::open(&*ROOT, BLOCK, limit_bytes),
    };
    let store = open(u64::MAX).expect("a store");
    let mut n_blocks = 0;
    // A damaged payload is noticed only once the blocks before it are found.
    for _ in 0..3 {
        n_blocks = load_all(&store, layout.is_forged);
        for prompt in &PROMPTS {
            for place in store.missing(&key(), prompt, 0) {
                let payload = payload(&prompt[..(place.index() + 1) * BLOCK]);
                let written = store.write(&place, &[&payload]);
                assert!(written.is_ok() || layout.is_blocked);
            }
        }
    }
    assert!(layout.is_blocked || n_blocks == 2 * PROMPTS.len());
    drop(store);
    let limit_bytes = u64::from(flags) * 8;
    let store = open(limit_bytes).expect("a store");
    assert!(store.usage().expect("a listing").1 <= limit_bytes);
    load_all(&store, layout.is_forged);
    let _ = store.put(&key(), &PROMPTS[2][..BLOCK], &[&payload(&PROMPTS[2][..BLOCK])]);
    assert!(store.usage().expect("a listing").1 <= limit_bytes);
    assert_eq!(fs::read(&victim).expect("the file outside"), b"x");
    for (path, content) in &layout.foreign {
        assert_eq!(&fs::read(path).expect("a file that is no entry"), content, "{}", path.display());
    }
});
