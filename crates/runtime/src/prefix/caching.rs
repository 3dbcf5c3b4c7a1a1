//! Setting of the prefix cache, and opening of its files.

use std::path::PathBuf;
use std::sync::Arc;

use ruvllm_kv_cache::prefix::store::EntryStorage;
use ruvllm_kv_cache::prefix::{FolderKey, PrefixStore};

use crate::error::{Error, Result};

/// Prefix cache setting: where keys and values of prompts are kept for reuse.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PrefixCaching {
    /// No prefix cache.
    Off,
    /// In memory, as far as the KV budget has room.
    #[default]
    Memory,
    /// In memory, and every prefix is written to files, which later engines with the same model and
    /// KV policy reuse. The prompts can be recovered from the files: protect the folder as you
    /// would the prompts. A background thread writes; a request whose blocks find the queue full
    /// waits at its end.
    Folder {
        /// Folder of the files; created if missing.
        path: PathBuf,
        /// Maximum bytes of all files; the least recently used are deleted first.
        limit_bytes: u64,
    },
    /// In memory; prefixes evicted for lack of KV budget are spilled to files. They are read back
    /// on a later hit unless recomputing is faster. Later engines reuse the files, as with
    /// [`Folder`](Self::Folder). No request waits for the queue: blocks that find it full are
    /// dropped.
    Spill {
        /// Folder of the files; created if missing.
        path: PathBuf,
        /// Maximum bytes of all files; the least recently used are deleted first.
        limit_bytes: u64,
    },
    /// In memory and in a storage that other engines share, such as an object store. It needs
    /// [`EngineOptions::prefix_key`](crate::EngineOptions::prefix_key). While the storage fails or
    /// does not answer, requests compute.
    Storage {
        /// The storage.
        storage: PrefixStorage,
        /// Maximum bytes of all entries; the oldest are deleted first.
        limit_bytes: u64,
        /// True to store only what is evicted from memory, as with [`Spill`](Self::Spill); false to
        /// store every prefix, as with [`Folder`](Self::Folder).
        only_evicted: bool,
    },
}

impl PrefixCaching {
    /// True if prefixes are stored outside of memory.
    #[must_use]
    pub fn has_files(&self) -> bool {
        !matches!(self, Self::Off | Self::Memory)
    }

    /// True if every prefix is stored, false if those are that are evicted.
    pub(super) fn stores_all(&self) -> bool {
        matches!(self, Self::Folder { .. } | Self::Storage { only_evicted: false, .. })
    }

    /// Opens the store; `None` without [files](Self::has_files).
    pub(super) fn open(&self, block_tokens: usize, key: Option<&FolderKey>) -> Result<Option<PrefixStore>> {
        let store = match self {
            Self::Off | Self::Memory => return Ok(None),
            Self::Folder { path, limit_bytes } | Self::Spill { path, limit_bytes } => match key {
                Some(key) => PrefixStore::open_shared(path, block_tokens, *limit_bytes, key),
                None => PrefixStore::open(path, block_tokens, *limit_bytes),
            },
            Self::Storage { storage, limit_bytes, .. } => {
                let key = key.ok_or(Error::NoPrefixKey)?;
                PrefixStore::open_storage(Arc::clone(&storage.0), block_tokens, *limit_bytes, key)
            }
        };
        store.map(Some).map_err(Error::PrefixStore)
    }
}

/// Handle of a storage of prefixes. Two handles are equal if they are of one storage.
#[derive(Debug, Clone)]
pub struct PrefixStorage(Arc<dyn EntryStorage>);

impl PrefixStorage {
    /// A handle of this storage.
    pub fn new(storage: Arc<dyn EntryStorage>) -> Self {
        Self(storage)
    }
}

impl PartialEq for PrefixStorage {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for PrefixStorage {}
