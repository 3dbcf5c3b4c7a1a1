//! Learning store: trajectories, feedback log and snapshots in one database file.
//!
//! ```
//! use ruvllm_sona::store::{ForgetScope, NewEvent, NewSnapshot, SnapshotKind, StoreOptions};
//! use ruvllm_sona::trajectory::{Feedback, Trajectory};
//! use ruvllm_sona::{LearningStore, Rating, Recorder, RecorderOptions};
//!
//! let folder = tempfile::tempdir()?;
//! let store = LearningStore::open(folder.path().join("learning.redb"), StoreOptions::default())?;
//!
//! // Off the decode path: never waits, counts what it drops.
//! let recorder = Recorder::start(store.clone(), RecorderOptions::default())?;
//! recorder.record(Trajectory {
//!     request_id: "req-1".into(),
//!     tenant: "acme".into(),
//!     model_digest: "sha256:1f".into(),
//!     prompt_tokens: vec![1, 2, 3],
//!     response_tokens: vec![4, 5],
//!     ..Trajectory::default()
//! })?;
//! let rating = Feedback { rating: Some(Rating::new(-0.5)?), ..Feedback::default() };
//! let id = recorder.feedback("acme", "req-1", rating)?;
//!
//! // A learner logs each update, and saves its state.
//! let event = NewEvent {
//!     tenant: "acme".into(),
//!     adapter: "default".into(),
//!     trajectories: vec![id],
//!     kind: 1,
//!     settings: [0; 32],
//!     payload: vec![7; 64],
//!     created_ms: 0,
//! };
//! let through = store.append_events(&[event])?[0];
//! let (tenant, adapter, kind) = ("acme", "default", SnapshotKind::Clean);
//! store.save_snapshot(&NewSnapshot { tenant, adapter, kind, through, bytes: b"weights" })?;
//!
//! // The snapshot learned from the trajectory, so it goes with it.
//! let forgotten = store.forget("acme", ForgetScope::Trajectory(id))?;
//! assert_eq!(forgotten.snapshots, [("default".to_owned(), 1)]);
//! assert_eq!(store.replay_start("acme", "default", SnapshotKind::Clean)?.after, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod creation;
mod events;
mod exchange;
mod failure;
mod forget;
mod options;
mod path;
mod replay;
mod retention;
mod snapshots;
mod tables;
mod trajectories;

#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use redb::backends::FileBackend;
use redb::{Builder, Database, ReadOnlyDatabase, ReadTransaction, ReadableDatabase, ReadableTable};

use self::failure::Failure;
use self::tables::{FORMAT, FORMAT_VERSION, META, NEXT_ID, Tables};
use crate::budget::Charge;
use crate::error::{Error, Result};
use crate::files;

pub use events::{EventPayload, LearningEvent, NewEvent};
pub use exchange::Imported;
pub use forget::{ForgetScope, Forgotten, Rebuild};
pub use options::{Retention, StoreOptions};
pub use replay::ReplayStart;
pub use snapshots::{NewSnapshot, Snapshot, SnapshotInfo, SnapshotKind};
pub use trajectories::TenantUsage;

/// Store of what was recorded and learned, in one redb file. Clones share it.
///
/// Each method is one transaction, durable when it returns. After a failure of the file (disk
/// full) nothing of the transaction is stored, and the next call opens the file again.
#[derive(Clone)]
pub struct LearningStore {
    inner: Arc<Inner>,
}

struct Inner {
    source: Source,
    options: StoreOptions,
    /// `None` after a failure, until the file is opened again.
    database: RwLock<Option<Handle>>,
    _cache: Charge,
}

enum Handle {
    Writable(Database),
    ReadOnly(ReadOnlyDatabase),
}

/// Origin of the database's bytes.
enum Source {
    File(PathBuf),
    /// Storage with injected faults.
    #[cfg(test)]
    Backend(tests::faults::Storage),
}

impl LearningStore {
    /// Opens the store in a file, creating it if it does not exist.
    ///
    /// The file is readable by its owner alone. An unclean end (crash, kill) is repaired to the
    /// last committed transaction; a file whose creation was interrupted is created again.
    ///
    /// # Errors
    /// [`Error::StoreDamaged`], [`Error::StoreFormat`], [`Error::StoreInUse`],
    /// [`Error::StoreNeedsRepair`] for read-only opens, [`Error::StoreFull`], [`Error::StoreIo`];
    /// [`Error::MemoryBudget`] without room for the page cache.
    pub fn open(path: impl Into<PathBuf>, options: StoreOptions) -> Result<Self> {
        Self::open_source(Source::File(path.into()), options)
    }

    fn open_source(source: Source, options: StoreOptions) -> Result<Self> {
        let (what, bytes) = ("page cache", options.cache_bytes);
        let cache = Charge::new(&options.budget, bytes).ok_or(Error::MemoryBudget { what, bytes })?;
        let database = source
            .open(&options, options.verify)
            .map_err(|failure| failure.into_error(source.path(), "open"))?;
        let database = RwLock::new(Some(database));
        let store = Self { inner: Arc::new(Inner { source, options, database, _cache: cache }) };
        store.check_format()?;
        Ok(store)
    }

    /// Creates the tables of a new store and checks the format of an old one.
    fn check_format(&self) -> Result<()> {
        let path = || self.path().to_owned();
        let check = |found| match found {
            FORMAT_VERSION => Ok(()),
            found => Err(Error::StoreFormat { path: path(), found, supported: FORMAT_VERSION }),
        };
        if self.inner.options.read_only {
            return self.read(|transaction| {
                let format = transaction.open_table(META)?.get(FORMAT)?.map(|format| format.value());
                Ok(check(format.unwrap_or(0))?)
            });
        }
        // The format first: tables of another one may have other types.
        let found = self.transact(|transaction| {
            Ok(transaction.open_table(META)?.get(FORMAT)?.map(|format| format.value()))
        })?;
        found.map_or(Ok(()), check)?;
        self.write(|tables| {
            if tables.meta.get(FORMAT)?.is_none() {
                tables.meta.insert(FORMAT, FORMAT_VERSION)?;
                tables.meta.insert(NEXT_ID, 1)?;
            }
            Ok(())
        })
    }

    /// File of the store.
    pub fn path(&self) -> &Path {
        self.inner.source.path()
    }

    /// Options with which the store was opened.
    pub fn options(&self) -> &StoreOptions {
        &self.inner.options
    }

    /// Bytes of the file.
    ///
    /// # Errors
    /// [`Error::StoreIo`].
    pub fn file_bytes(&self) -> Result<u64> {
        let metadata = std::fs::metadata(self.path());
        let fail = |source| Error::StoreIo { action: "read", path: self.path().to_owned(), source };
        metadata.map(|metadata| metadata.len()).map_err(fail)
    }

    /// Returns free pages of the file to the file system. True if the file may have become smaller.
    ///
    /// Waits for other calls to end; removals alone leave their pages to be used again.
    ///
    /// # Errors
    /// Errors of writing: [`Error::StoreFull`], [`Error::StoreIo`].
    pub fn compact(&self) -> Result<bool> {
        let mut guard = self.inner.database.write().unwrap_or_else(PoisonError::into_inner);
        let compacted = match guard.as_mut() {
            Some(Handle::Writable(database)) => database.compact().map_err(Failure::from),
            Some(Handle::ReadOnly(_)) => Err(self.refuse_write()),
            None => return Ok(false),
        };
        compacted.map_err(|failure| {
            if failure.is_final() {
                *guard = None;
            }
            failure.into_error(self.path(), "compact")
        })
    }

    /// Runs a write transaction over all tables; it is committed if `work` succeeds.
    fn write<T>(&self, work: impl FnOnce(&mut Tables) -> Result<T, Failure>) -> Result<T> {
        self.transact(|transaction| work(&mut Tables::open(transaction)?))
    }

    fn transact<T>(&self, work: impl FnOnce(&redb::WriteTransaction) -> Result<T, Failure>) -> Result<T> {
        self.with_database("write to", |handle| {
            let Handle::Writable(database) = handle else { return Err(self.refuse_write()) };
            let transaction = database.begin_write()?;
            let value = work(&transaction)?;
            transaction.commit()?;
            Ok(value)
        })
    }

    /// Runs a read transaction.
    fn read<T>(&self, work: impl FnOnce(&ReadTransaction) -> Result<T, Failure>) -> Result<T> {
        self.with_database("read", |handle| match handle {
            Handle::Writable(database) => work(&database.begin_read()?),
            Handle::ReadOnly(database) => work(&database.begin_read()?),
        })
    }

    fn refuse_write(&self) -> Failure {
        let source = std::io::Error::new(std::io::ErrorKind::ReadOnlyFilesystem, "opened read-only");
        let path = self.path().to_owned();
        Failure::Refused(Error::StoreIo { action: "write to", path, source })
    }

    fn with_database<T>(
        &self,
        action: &'static str,
        work: impl FnOnce(&Handle) -> Result<T, Failure>,
    ) -> Result<T> {
        let lock = &self.inner.database;
        let mut guard = lock.read().unwrap_or_else(PoisonError::into_inner);
        if guard.is_none() {
            drop(guard);
            self.reopen()?;
            guard = lock.read().unwrap_or_else(PoisonError::into_inner);
        }
        let Some(handle) = guard.as_ref() else {
            let source = std::io::Error::other("another call failed at the same time; try again");
            return Err(Error::StoreIo { action, path: self.path().to_owned(), source });
        };
        let failure = match work(handle) {
            Ok(value) => return Ok(value),
            Err(failure) => failure,
        };
        drop(guard);
        if failure.is_final() {
            // The database refuses everything after a failed write.
            *lock.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
        Err(failure.into_error(self.path(), action))
    }

    fn reopen(&self) -> Result<()> {
        let mut guard = self.inner.database.write().unwrap_or_else(PoisonError::into_inner);
        if guard.is_none() {
            // Verifying writes, which a full disk does not allow.
            let opened = self.inner.source.open(&self.inner.options, false);
            *guard = Some(opened.map_err(|failure| failure.into_error(self.path(), "open"))?);
        }
        Ok(())
    }
}

impl std::fmt::Debug for LearningStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LearningStore").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl Source {
    fn path(&self) -> &Path {
        match self {
            Self::File(path) => path,
            #[cfg(test)]
            Self::Backend(_) => Path::new("injected"),
        }
    }

    fn open(&self, options: &StoreOptions, verify: bool) -> Result<Handle, Failure> {
        let open = || self.open_unguarded(options, verify);
        // redb panics on some forms of damage that no check of its own covers.
        catch_unwind(AssertUnwindSafe(open))
            .unwrap_or_else(|_| Err(Failure::Damaged("the database could not be read".to_owned())))
    }

    fn open_unguarded(&self, options: &StoreOptions, verify: bool) -> Result<Handle, Failure> {
        let mut builder = Builder::new();
        builder.set_cache_size(options.cache_bytes).set_check_integrity_on_open(verify);
        match self {
            Self::File(path) if options.read_only => Ok(Handle::ReadOnly(builder.open_read_only(path)?)),
            Self::File(path) => {
                let backend = FileBackend::new(files::open_private(path).map_err(redb::StorageError::Io)?)?;
                creation::empty_if_unfinished(&backend)?;
                Ok(Handle::Writable(builder.create_with_backend(backend)?))
            }
            #[cfg(test)]
            Self::Backend(storage) => {
                creation::empty_if_unfinished(storage)?;
                Ok(Handle::Writable(builder.create_with_backend(storage.clone())?))
            }
        }
    }
}
