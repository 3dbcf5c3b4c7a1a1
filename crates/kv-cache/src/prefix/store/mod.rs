//! Blocks of prefixes in a storage, one entry each: a folder, or any other [`EntryStorage`].
//!
//! The storage is all there is: no index that could be lost or disagree. An entry is named by a
//! hash of everything that its keys and values depend on ([`EntryId`]), so looking a prefix up
//! means to hash its tokens and to ask for the entries. In a folder the time of the last use is the
//! time of the file's last modification.
//!
//! A folder has to be this user's own, writable by nobody else: checksums detect damage, not
//! forgery. A folder that several users write to takes a [`FolderKey`] (ADR-0035), and so does
//! every other storage (ADR-0106). Entries are regular files; links are not followed, and pipes are
//! not waited for.
//!
//! Several processes may share a storage. An entry appears complete or not at all; a file that
//! disappears while it is read stays readable. All checks are made here, whatever the storage. One
//! behind a network that fails or does not answer in time is left alone for a while: requests
//! compute then.

pub(super) mod entry;
mod entry_format;
mod files;
mod folder;
pub(super) mod folder_key;
mod pause;
mod reader;
mod size;
mod statistics;
mod storage;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant, SystemTime},
};

pub use entry::{EntryHeader, EntryId, EntryName, FORMAT_VERSION, Missing};
pub use entry_format::EntryFormat;
pub use files::{create_private, open_regular, share_with_group};
use folder::Folder;
use folder_key::FolderKey;
use parking_lot::Mutex;
use pause::Pause;
pub use reader::ChainReader;
use size::FolderSize;
use statistics::Counters;
pub use statistics::StoreStatistics;
pub use storage::{EntryHead, EntryStorage, ListedEntry, OpenEntry};

use super::{Fault, PrefixError, PrefixKey, Warning};
use crate::Result;

/// Keeps blocks of prefixes across restarts, within a size.
///
/// A block's payload is any bytes. Nothing read back is trusted: an entry is used only if its
/// format, key, tokens, place in the prefix, length and checksum are right; otherwise it is
/// removed, with a [`Warning`].
///
/// ```
/// use ruvllm_kv_cache::prefix::{PrefixKey, PrefixStore, Scope};
///
/// # let key = PrefixKey {
/// #     model: [0; 32],
/// #     adapter: None,
/// #     kv_format: "f16".into(),
/// #     rope_scaling: "none".into(),
/// #     scope: Scope::Shared,
/// # };
/// # let temporary = tempfile::tempdir()?;
/// # let folder = temporary.path().join("prefixes");
/// let store = PrefixStore::open(&folder, 4, 1 << 30)?;
/// store.put(&key, &[1, 2, 3, 4], &[b"keys of 4 tokens", b"values"])?;
/// store.put(&key, &[1, 2, 3, 4, 5, 6, 7, 8], &[b"keys of 4 more", b"values"])?;
///
/// // Another process, another day.
/// let store = PrefixStore::open(&folder, 4, 1 << 30)?;
/// let found = store.find(&key, &[1, 2, 3, 4, 0, 0, 0, 0, 0], 0);
/// assert_eq!(found.chain.len(), 1);
/// let (mut keys, mut values) = ([0; 16], [0; 6]);
/// store.load(&found.chain[0], &mut [&mut keys, &mut values])?;
/// assert_eq!(&keys, b"keys of 4 tokens");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PrefixStore {
    storage: Arc<dyn EntryStorage>,
    format: EntryFormat,
    limit_bytes: u64,
    size: Mutex<FolderSize>,
    pause: Pause,
    counters: Counters,
}

/// A block that [`PrefixStore::find`] found; its header is right, its payload not read yet.
#[derive(Clone, Debug)]
pub struct Entry {
    name: EntryName,
    payload_bytes: u64,
}

impl Entry {
    /// The entry's name.
    #[must_use]
    pub fn id(&self) -> EntryId {
        self.name.id
    }

    /// Size of the payload.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }
}

/// Result of [`PrefixStore::find`].
#[derive(Debug, Default)]
pub struct Found {
    /// The stored blocks, in the order of the prefix.
    pub chain: Vec<Entry>,
    /// Entries that would have continued the chain and cannot be used.
    pub warnings: Vec<Warning>,
}

/// Result of [`PrefixStore::put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The block was written.
    Written,
    /// The block was there.
    Present,
    /// The storage failed a short time ago and is left alone: nothing was written.
    Paused,
}

impl PrefixStore {
    /// Opens the store in `folder`, which is created if need be, for blocks of `block_tokens`
    /// tokens. Entries of an earlier run are found at once; old files of interrupted writes are
    /// removed.
    ///
    /// The entries' files take at most `limit_bytes` together. With several processes, each keeps
    /// the limit against what it sees when it lists the folder, at the latest after writing a
    /// sixteenth of the limit.
    ///
    /// # Errors
    /// [`PrefixError::File`] if the folder cannot be created, listed or brought below the limit;
    /// [`PrefixError::ForeignFolder`] and [`PrefixError::SharedFolder`] if somebody else owns it or
    /// may write to it.
    ///
    /// # Panics
    /// If `block_tokens` is zero.
    pub fn open(folder: impl Into<PathBuf>, block_tokens: usize, limit_bytes: u64) -> Result<Self> {
        let folder = Folder::open(folder.into(), false)?;
        Self::open_with(Arc::new(folder), block_tokens, limit_bytes, None)
    }

    /// Opens the store in a folder that others may own or write to: entries without a tag of `key`
    /// are ignored like damaged ones, and those of other keys, or of none, are not found.
    ///
    /// Users who may write to the folder can still delete entries and take its room. Entries are
    /// readable to the folder's group if it may write to the folder, and has them too (set-group-ID
    /// bit).
    ///
    /// # Errors
    /// [`PrefixError::File`] as [`open`](Self::open).
    ///
    /// # Panics
    /// If `block_tokens` is zero.
    pub fn open_shared(
        folder: impl Into<PathBuf>,
        block_tokens: usize,
        limit_bytes: u64,
        key: &FolderKey,
    ) -> Result<Self> {
        Self::open_storage(shared_folder(folder)?, block_tokens, limit_bytes, key)
    }

    /// Opens the store in any storage, where entries without a tag of `key` are ignored like
    /// damaged ones. The storage is listed, and brought below the limit.
    ///
    /// # Errors
    /// [`PrefixError::File`] if the storage does not answer or refuses.
    ///
    /// # Panics
    /// If `block_tokens` is zero.
    pub fn open_storage(
        storage: Arc<dyn EntryStorage>,
        block_tokens: usize,
        limit_bytes: u64,
        key: &FolderKey,
    ) -> Result<Self> {
        Self::open_with(storage, block_tokens, limit_bytes, Some(key.clone()))
    }

    fn open_with(
        storage: Arc<dyn EntryStorage>,
        block_tokens: usize,
        limit_bytes: u64,
        key: Option<FolderKey>,
    ) -> Result<Self> {
        let format = EntryFormat::new(block_tokens, key);
        let (n_deleted, used_bytes) = storage::shrink(&*storage, limit_bytes)?;
        let counters = Counters::default();
        counters.deleted_blocks.fetch_add(n_deleted, Relaxed);
        let size = Mutex::new(FolderSize::listed(used_bytes));
        Ok(Self { storage, format, limit_bytes, size, pause: Pause::default(), counters })
    }

    /// Folder or URL of the storage.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.storage.location()
    }

    /// The folder, if that is the storage. Other files in it are left alone.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.storage.folder()
    }

    /// The key of a shared storage.
    #[must_use]
    pub fn key(&self) -> Option<&FolderKey> {
        self.format.key()
    }

    /// Form of the entries.
    #[must_use]
    pub fn format(&self) -> &EntryFormat {
        &self.format
    }

    /// Stores the last block of the prefix `tokens`. The blocks before it may be stored before,
    /// later or never; without them it is not found.
    ///
    /// # Shapes
    /// `tokens`: `[n_blocks * block_tokens]`, from the first token of the sequence on.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    ///
    /// # Panics
    /// If `tokens` is empty or no whole number of blocks.
    pub fn put(&self, key: &PrefixKey, tokens: &[u32], payload: &[&[u8]]) -> Result<Stored> {
        let block_tokens = self.format.block_tokens();
        let n_blocks = tokens.len() / block_tokens;
        let is_whole = n_blocks > 0 && tokens.len() == n_blocks * block_tokens;
        assert!(is_whole, "put: {} tokens in blocks of {block_tokens}", tokens.len());
        let last = self.format.places(key, tokens).last();
        self.write(&last.expect("the prefix has at least one block"), payload)
    }

    /// The whole blocks of the prefix `tokens` that are not stored, in their order and from block
    /// `skip_blocks` on: what [`write`](Self::write) takes, now or later. None while the storage is
    /// left alone after a failure.
    #[must_use]
    pub fn missing(&self, key: &PrefixKey, tokens: &[u32], skip_blocks: usize) -> Vec<Missing> {
        let places: Vec<Missing> = self.format.places(key, tokens).skip(skip_blocks).collect();
        let mut missing = Vec::new();
        for places in places.chunks(self.storage.most_at_once()) {
            if !self.is_usable() {
                return Vec::new();
            }
            let names: Vec<EntryName> = places.iter().map(Missing::name).collect();
            let is_missing = self.headers(&names).into_iter().map(|header| !matches!(header, Ok(Some(_))));
            missing
                .extend(places.iter().zip(is_missing).filter(|(_, is)| *is).map(|(place, _)| place.clone()));
        }
        if self.is_usable() { missing } else { Vec::new() }
    }

    /// Stores a block that was missing.
    ///
    /// `payload` is written in parts as given, without a copy. Old entries are deleted if the store
    /// would grow beyond its limit.
    ///
    /// # Errors
    /// [`PrefixError::LargerThanStore`] if the block is larger than the whole store may be,
    /// [`PrefixError::File`] if a file cannot be written or deleted. Nothing is left of the block
    /// then.
    pub fn write(&self, block: &Missing, payload: &[&[u8]]) -> Result<Stored> {
        // Another writer may have been faster.
        if self.is_usable() && matches!(self.headers(&[block.name()])[..], [Ok(Some(_))]) {
            return Ok(Stored::Present);
        }
        if !self.is_usable() {
            return Ok(Stored::Paused);
        }
        let encoded = self.format.encode_header(block, payload);
        let payload_bytes: u64 = payload.iter().map(|part| part.len() as u64).sum();
        let parts: Vec<&[u8]> = [encoded.as_slice()].into_iter().chain(payload.iter().copied()).collect();
        let bytes = encoded.len() as u64 + payload_bytes;
        self.make_room(bytes)?;
        let written = self.storage.write(block.name(), &parts, last_use(block.index()));
        self.size.lock().settle(bytes, written.is_ok());
        self.observe(written)?;
        self.counters.written_blocks.fetch_add(1, Relaxed);
        self.counters.written_bytes.fetch_add(bytes, Relaxed);
        Ok(Stored::Written)
    }

    /// The stored blocks that continue a prefix of `tokens` after its first `skip_blocks` blocks,
    /// as many as follow each other: of `key`'s own scope or of [`Scope::Shared`], whichever are
    /// more. At least the last token is left to compute.
    ///
    /// Headers are verified here, payloads when they are loaded. Found entries count as used. An
    /// entry that cannot be used ends the chain, is removed, and gives a warning.
    ///
    /// [`Scope::Shared`]: super::Scope::Shared
    #[must_use]
    pub fn find(&self, key: &PrefixKey, tokens: &[u32], skip_blocks: usize) -> Found {
        let wanted = &tokens[..tokens.len().saturating_sub(1)];
        let (mut found, began) = (Found::default(), Instant::now());
        self.counters.lookups.fetch_add(1, Relaxed);
        for key in key.visible() {
            if !self.is_usable() {
                self.counters.skipped_lookups.fetch_add(1, Relaxed);
                break;
            }
            let ids = self.format.ids(&key, wanted).enumerate().skip(skip_blocks);
            let names = ids.map(|(index, id)| EntryName::new(id, index));
            let chain = self.chain(names, began, &mut found.warnings);
            if chain.len() >= found.chain.len() {
                found.chain = chain;
            }
        }
        self.counters.found_blocks.fetch_add(found.chain.len() as u64, Relaxed);
        found
    }

    /// The entries that are there, up to the first that is not.
    fn chain(
        &self,
        mut names: impl Iterator<Item = EntryName>,
        began: Instant,
        warnings: &mut Vec<Warning>,
    ) -> Vec<Entry> {
        let mut chain = Vec::new();
        loop {
            let names: Vec<EntryName> = names.by_ref().take(self.storage.most_at_once()).collect();
            let is_late = self.storage.patience().is_some_and(|patience| began.elapsed() >= patience);
            if names.is_empty() || is_late {
                return chain;
            }
            for (&name, header) in names.iter().zip(self.headers(&names)) {
                match header {
                    Ok(Some(header)) => {
                        self.storage.touch(name, last_use(name.index as usize));
                        chain.push(Entry { name, payload_bytes: header.payload_bytes });
                    }
                    Ok(None) => return chain,
                    Err(fault) => {
                        warnings.push(self.discard(name, fault));
                        return chain;
                    }
                }
            }
        }
    }

    /// Reads the payload of an entry into `buffers`, one after the other, and verifies it.
    ///
    /// # Errors
    /// [`PrefixError::Gone`], [`PrefixError::Unusable`], and [`PrefixError::BufferSize`] if the
    /// buffers together have another size than the payload. The content of the buffers is then
    /// undefined and must not be used.
    pub fn load(&self, entry: &Entry, buffers: &mut [&mut [u8]]) -> Result<()> {
        self.reader(std::slice::from_ref(entry)).read(buffers)
    }

    /// Reader of the payloads of a chain. It reads ahead where the storage takes a round trip for
    /// each call.
    #[must_use]
    pub fn reader<'s>(&'s self, chain: &'s [Entry]) -> ChainReader<'s> {
        ChainReader::new(self, chain)
    }

    /// Number and bytes of the entries, from a listing of the storage.
    ///
    /// # Errors
    /// [`PrefixError::File`] if the storage cannot be listed.
    pub fn usage(&self) -> Result<(usize, u64)> {
        Ok(storage::usage(&*self.storage)?)
    }

    /// Counters since the store was opened.
    #[must_use]
    pub fn statistics(&self) -> StoreStatistics {
        self.counters.statistics(self.pause.is_paused())
    }

    /// Reserves `bytes`, and deletes old entries first if they would not fit. A tenth of the limit
    /// more is freed then, so that the storage is not listed for every block.
    fn make_room(&self, bytes: u64) -> Result<()> {
        let limit_bytes = self.limit_bytes;
        if bytes > limit_bytes {
            return Err(PrefixError::LargerThanStore { bytes, limit_bytes }.into());
        }
        let mut size = self.size.lock();
        let is_full = bytes > limit_bytes.saturating_sub(size.bytes());
        if is_full || size.unlisted_bytes() > limit_bytes / 16 {
            let spare = if is_full { limit_bytes / 10 } else { 0 };
            let others = bytes.saturating_add(size.reserved_bytes()).saturating_add(spare);
            let target_bytes = limit_bytes.saturating_sub(others);
            let (n_deleted, listed_bytes) = self.observe(storage::shrink(&*self.storage, target_bytes))?;
            self.counters.deleted_blocks.fetch_add(n_deleted, Relaxed);
            size.relist(listed_bytes);
        }
        size.reserve(bytes);
        Ok(())
    }

    /// Headers of entries, verified; `None` for those that do not exist.
    fn headers(&self, names: &[EntryName]) -> Vec<Result<Option<EntryHeader>, Fault>> {
        let heads = self.storage.heads(names, self.format.header_bytes());
        let verify = |(name, head): (&EntryName, Result<Option<EntryHead>, Fault>)| match head {
            Ok(Some(EntryHead { bytes, entry_bytes })) => {
                self.format.verify_header(name.id, &bytes, entry_bytes).map(Some)
            }
            Ok(None) => Ok(None),
            Err(fault) => Err(fault),
        };
        self.observe_reads(&heads);
        let missing = std::iter::repeat_with(|| Ok(None));
        names.iter().zip(heads.into_iter().chain(missing)).map(verify).collect()
    }

    /// Removes an entry that is of no use, unless it could only not be read.
    fn discard(&self, name: EntryName, fault: Fault) -> Warning {
        self.counters.unusable_blocks.fetch_add(1, Relaxed);
        let is_removed = !matches!(fault, Fault::Unreadable(_))
            && self.storage.remove(&[name]).iter().all(std::result::Result::is_ok);
        Warning { path: self.storage.path_of(name), fault, is_removed }
    }

    /// False while a remote storage is left alone.
    fn is_usable(&self) -> bool {
        self.storage.patience().is_none() || self.pause.allows(Instant::now())
    }

    /// Counts a call of the storage; its failure lets a remote storage pause.
    fn observe<T>(&self, result: Result<T, PrefixError>) -> Result<T, PrefixError> {
        match &result {
            Ok(_) => self.pause.succeeded(),
            Err(PrefixError::File { source, .. }) => self.failed(source),
            Err(_) => {}
        }
        result
    }

    /// As [`observe`](Self::observe), of entries asked for in one call: one of them that cannot be
    /// read is one failure.
    fn observe_reads<T>(&self, results: &[Result<T, Fault>]) {
        let failure = results.iter().find_map(|result| match result {
            Err(Fault::Unreadable(error)) => Some(error),
            _ => None,
        });
        match failure {
            Some(error) => self.failed(error),
            None => self.pause.succeeded(),
        }
    }

    fn failed(&self, error: &io::Error) {
        self.counters.storage_errors.fetch_add(1, Relaxed);
        if error.kind() == io::ErrorKind::TimedOut {
            self.counters.storage_timeouts.fetch_add(1, Relaxed);
        }
        if self.storage.patience().is_some() && self.pause.failed(Instant::now()) {
            self.counters.storage_pauses.fetch_add(1, Relaxed);
        }
    }
}

/// A folder that others may own or write to, as a storage. It is created if need be, and old files
/// of interrupted writes are removed.
///
/// # Errors
/// [`PrefixError::File`] if it cannot be created or listed.
pub fn shared_folder(path: impl Into<PathBuf>) -> Result<Arc<dyn EntryStorage>> {
    Ok(Arc::new(Folder::open(path.into(), true)?))
}

/// The time to note for a use of block `at` of a prefix now. The end of a prefix is worth nothing
/// without its start, so a block counts as unused for a second longer than the one before it.
fn last_use(at: usize) -> SystemTime {
    SystemTime::now() - Duration::from_secs(at as u64)
}
