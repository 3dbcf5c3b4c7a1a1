//! Errors of the log.

use std::io;
use std::path::{Path, PathBuf};

/// Errors of opening, writing, reading and keys.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder could not be used.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// Failed action.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// Another writer has the log open.
    #[error("the log in {} is open in another process", folder.display())]
    InUse {
        /// Folder of the log.
        folder: PathBuf,
    },
    /// The end of the log is damaged, so that nothing can be appended.
    #[error("{}: {reason}; verify the log, then move its folder away to begin another", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage.
        reason: String,
    },
    /// The log ends before the latest checkpoint: lines were removed.
    #[error(
        "the log in {} ends at sequence number {last_seq}, before its checkpoint {checkpoint_seq}: lines were \
         removed; verify the log, then move its folder away to begin another", folder.display()
    )]
    CutTail {
        /// Folder of the log.
        folder: PathBuf,
        /// Sequence number of the checkpoint.
        checkpoint_seq: u64,
        /// Sequence number of the last line; 0 without any.
        last_seq: u64,
    },
    /// A key file is no Ed25519 key.
    #[error("{}: {reason}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// Fault and remedy.
        reason: &'static str,
    },
    /// A private key that others may read.
    #[error("{} can be read by others (mode {mode:o}); restrict it: chmod 600", path.display())]
    ReadableKey {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The system has no random bytes for a key.
    #[error("no random bytes for a key")]
    Random(#[source] getrandom::Error),
    /// Entries could not be written when the log was closed or flushed.
    #[error("{entries} entries of the log could not be written")]
    Unwritten {
        /// Entries in memory that are not in the log.
        entries: u64,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// A line that a reader cannot use.
    #[error("{file} line {line}: {reason}")]
    Line {
        /// Name of the file.
        file: String,
        /// Line in the file, counted from 1.
        line: u64,
        /// Fault of the line.
        reason: &'static str,
    },
}

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds action and path to an error of the system.
pub(crate) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { action, path, source }
}
