//! Blocks of prefixes in a folder, one file each.
//!
//! The folder is all there is: no index that could be lost or disagree. A block's file is named by
//! a hash of everything that its keys and values depend on ([`EntryId`]), so looking a prefix up
//! means to hash its tokens and to open the files. The time of the last use is the time of the
//! file's last modification.
//!
//! The folder has to be this user's own, writable by nobody else: checksums detect damage, not
//! forgery. A folder that several users write to takes a [`FolderKey`] (ADR-0035). Entries are
//! regular files; links are not followed, and pipes are not waited for.
//!
//! Several processes may share a folder. A file appears by renaming, complete or not at all; one
//! that disappears while it is read stays readable.

pub(super) mod entry;
mod entry_format;
mod files;
mod folder;
pub(super) mod folder_key;
mod size;

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, SystemTime},
};

pub use entry::{EntryHeader, EntryId, FORMAT_VERSION, Missing};
pub use entry_format::EntryFormat;
pub use files::{create_private, open_regular, share_with_group};
use folder::Folder;
use folder_key::FolderKey;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use size::FolderSize;

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
    folder: Folder,
    format: EntryFormat,
    limit_bytes: u64,
    size: Mutex<FolderSize>,
    counters: Counters,
}

/// A block that [`PrefixStore::find`] found; its header is right, its payload not read yet.
#[derive(Clone, Debug)]
pub struct Entry {
    id: EntryId,
    payload_bytes: u64,
}

impl Entry {
    /// The entry's name.
    #[must_use]
    pub fn id(&self) -> EntryId {
        self.id
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
}

/// Counters of a [`PrefixStore`] since it was opened, of this process alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStatistics {
    /// Calls of [`find`](PrefixStore::find).
    pub lookups: u64,
    /// Blocks in the chains that were found.
    pub found_blocks: u64,
    /// Blocks loaded and verified.
    pub loaded_blocks: u64,
    /// Bytes of their payloads.
    pub loaded_bytes: u64,
    /// Blocks written.
    pub written_blocks: u64,
    /// Bytes of their files.
    pub written_bytes: u64,
    /// Blocks deleted to make room.
    pub deleted_blocks: u64,
    /// Blocks that could not be used.
    pub unusable_blocks: u64,
}

#[derive(Debug, Default)]
struct Counters {
    lookups: AtomicU64,
    found_blocks: AtomicU64,
    loaded_blocks: AtomicU64,
    loaded_bytes: AtomicU64,
    written_blocks: AtomicU64,
    written_bytes: AtomicU64,
    deleted_blocks: AtomicU64,
    unusable_blocks: AtomicU64,
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
        Self::open_with(folder.into(), block_tokens, limit_bytes, None)
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
        Self::open_with(folder.into(), block_tokens, limit_bytes, Some(key.clone()))
    }

    fn open_with(
        folder: PathBuf,
        block_tokens: usize,
        limit_bytes: u64,
        key: Option<FolderKey>,
    ) -> Result<Self> {
        let format = EntryFormat::new(block_tokens, key);
        let folder = Folder::open(folder, format.key().is_some())?;
        let (n_deleted, used_bytes) = folder.shrink(limit_bytes)?;
        let counters = Counters { deleted_blocks: AtomicU64::new(n_deleted), ..Counters::default() };
        let size = Mutex::new(FolderSize::listed(used_bytes));
        Ok(Self { folder, format, limit_bytes, size, counters })
    }

    /// The folder. Other files in it are left alone.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The key of a shared folder.
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
    /// `skip_blocks` on: what [`write`](Self::write) takes, now or later.
    #[must_use]
    pub fn missing(&self, key: &PrefixKey, tokens: &[u32], skip_blocks: usize) -> Vec<Missing> {
        let places = self.format.places(key, tokens).skip(skip_blocks);
        places.filter(|place| !self.holds(place.id())).collect()
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
        if self.holds(block.id()) {
            return Ok(Stored::Present);
        }
        let encoded = self.format.encode_header(block, payload);
        let payload_bytes: u64 = payload.iter().map(|part| part.len() as u64).sum();
        let parts: Vec<&[u8]> = [encoded.as_slice()].into_iter().chain(payload.iter().copied()).collect();
        let bytes = encoded.len() as u64 + payload_bytes;
        self.make_room(bytes)?;
        let written = self.folder.write(block.id(), &parts, last_use(block.index()));
        self.size.lock().settle(bytes, written.is_ok());
        written?;
        self.counters.written_blocks.fetch_add(1, Relaxed);
        self.counters.written_bytes.fetch_add(bytes, Relaxed);
        Ok(Stored::Written)
    }

    /// `true` if there is an entry with a valid header.
    fn holds(&self, id: EntryId) -> bool {
        matches!(self.open_entry(id), Ok(Some(_)))
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
        let mut found = Found::default();
        for key in key.visible() {
            let mut chain = Vec::new();
            let ids = self.format.ids(&key, wanted);
            for (at, id) in ids.enumerate().skip(skip_blocks) {
                match self.open_entry(id) {
                    Ok(Some((file, header))) => {
                        // Only the order of deletion depends on the time, so a folder that is
                        // read-only will do.
                        let _ = file.set_modified(last_use(at));
                        chain.push(Entry { id, payload_bytes: header.payload_bytes });
                    }
                    Ok(None) => break,
                    Err(fault) => {
                        found.warnings.push(self.discard(id, fault));
                        break;
                    }
                }
            }
            if chain.len() >= found.chain.len() {
                found.chain = chain;
            }
        }
        self.counters.lookups.fetch_add(1, Relaxed);
        self.counters.found_blocks.fetch_add(found.chain.len() as u64, Relaxed);
        found
    }

    /// Reads the payload of an entry into `buffers`, one after the other, and verifies it.
    ///
    /// # Errors
    /// [`PrefixError::Gone`], [`PrefixError::Unusable`], and [`PrefixError::BufferSize`] if the
    /// buffers together have another size than the payload. The content of the buffers is then
    /// undefined and must not be used.
    pub fn load(&self, entry: &Entry, buffers: &mut [&mut [u8]]) -> Result<()> {
        let path = || self.folder.path_of(entry.id);
        let unusable = |fault| PrefixError::Unusable(self.discard(entry.id, fault));
        let Some((mut file, header)) = self.open_entry(entry.id).map_err(unusable)? else {
            return Err(PrefixError::Gone { path: path() }.into());
        };
        let bytes = header.payload_bytes;
        let buffer_bytes = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        if bytes != buffer_bytes {
            return Err(PrefixError::BufferSize { path: path(), bytes, buffer_bytes }.into());
        }
        let mut hash = Sha256::new();
        for buffer in buffers {
            file.read_exact(buffer).map_err(|error| unusable(Fault::Unreadable(error)))?;
            hash.update(&**buffer);
        }
        if hash.finalize()[..] != header.payload_sha256 {
            return Err(unusable(Fault::Checksum).into());
        }
        self.counters.loaded_blocks.fetch_add(1, Relaxed);
        self.counters.loaded_bytes.fetch_add(bytes, Relaxed);
        Ok(())
    }

    /// Number and bytes of the entries in the folder, from a listing of it.
    ///
    /// # Errors
    /// [`PrefixError::File`] if the folder cannot be listed.
    pub fn usage(&self) -> Result<(usize, u64)> {
        Ok(self.folder.usage()?)
    }

    /// Counters since the store was opened.
    #[must_use]
    pub fn statistics(&self) -> StoreStatistics {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        StoreStatistics {
            lookups: get(&self.counters.lookups),
            found_blocks: get(&self.counters.found_blocks),
            loaded_blocks: get(&self.counters.loaded_blocks),
            loaded_bytes: get(&self.counters.loaded_bytes),
            written_blocks: get(&self.counters.written_blocks),
            written_bytes: get(&self.counters.written_bytes),
            deleted_blocks: get(&self.counters.deleted_blocks),
            unusable_blocks: get(&self.counters.unusable_blocks),
        }
    }

    /// Reserves `bytes`, and deletes old entries first if they would not fit. A tenth of the limit
    /// more is freed then, so that the folder is not listed for every block.
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
            let (n_deleted, listed_bytes) = self.folder.shrink(limit_bytes.saturating_sub(others))?;
            self.counters.deleted_blocks.fetch_add(n_deleted, Relaxed);
            size.relist(listed_bytes);
        }
        size.reserve(bytes);
        Ok(())
    }

    /// Opens an entry and verifies all but its payload; the file stands at the payload then. `None`
    /// if there is no such entry.
    fn open_entry(&self, id: EntryId) -> Result<Option<(File, EntryHeader)>, Fault> {
        let mut file = match files::open_regular(&self.folder.path_of(id)) {
            Ok(Some(file)) => file,
            Ok(None) => return Err(Fault::NotRegular),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Fault::Unreadable(error)),
        };
        let found = file.metadata().map_err(Fault::Unreadable)?.len();
        let mut head = Vec::new();
        let header_bytes = self.format.header_bytes() as u64;
        (&mut file).take(header_bytes).read_to_end(&mut head).map_err(Fault::Unreadable)?;
        let header = self.format.verify_header(id, &head, found)?;
        Ok(Some((file, header)))
    }

    /// Removes an entry that is of no use, unless it could only not be read.
    fn discard(&self, id: EntryId, fault: Fault) -> Warning {
        self.counters.unusable_blocks.fetch_add(1, Relaxed);
        let path = self.folder.path_of(id);
        let is_removed = !matches!(fault, Fault::Unreadable(_)) && folder::remove(&path).is_ok();
        Warning { path, fault, is_removed }
    }
}

/// The time to note for a use of block `at` of a prefix now. The end of a prefix is worth nothing
/// without its start, so a block counts as unused for a second longer than the one before it.
fn last_use(at: usize) -> SystemTime {
    SystemTime::now() - Duration::from_secs(at as u64)
}
