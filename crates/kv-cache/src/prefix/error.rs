//! Errors of prefixes on disk.

use std::{io, path::PathBuf};

use super::store::entry::Fault;

/// Errors of the store, as part of the crate's [`Error`](crate::Error). Other entries stay valid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrefixError {
    /// The operating system or a server refused an operation on a file or object.
    #[error("cannot {action} {}", path.display())]
    File {
        /// The operation, for example `create`.
        action: &'static str,
        /// The file or folder concerned, or the URL of an object.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The folder belongs to another user, who could replace its entries.
    #[error(
        "{} belongs to user {owner} and this process runs as user {user}; use a folder of your own, or a key \
         with a folder that is shared",
        path.display()
    )]
    ForeignFolder {
        /// The folder.
        path: PathBuf,
        /// Number of its owner.
        owner: u32,
        /// Number of the effective user of this process.
        user: u32,
    },
    /// Users beside the owner may write to the folder, and so replace its entries.
    #[error(
        "other users can write to {} (mode {mode:04o}); delete it, run `chmod go-w` on it if you \
         trust its content, or use a key if it is shared",
        path.display()
    )]
    SharedFolder {
        /// The folder.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A key of a shared folder is too short to be secret, or too long to be a key.
    #[error("a key of {bytes} bytes; expected {least} to {most}")]
    KeyLength {
        /// Bytes given; of a longer file one more than are allowed.
        bytes: usize,
        /// Fewest bytes.
        least: usize,
        /// Most bytes.
        most: usize,
    },
    /// Users beside the owner may read or replace the file with a key.
    #[error(
        "other users can read or change the key in {path} (mode {mode:04o}); run `chmod 600 {path}`, and make \
         another key if they may have read it",
        path = path.display()
    )]
    ReadableKey {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// One block alone is larger than the store may become: raise the limit.
    #[error("a block of {bytes} bytes does not fit into a prefix store limited to {limit_bytes} bytes")]
    LargerThanStore {
        /// Size of the block's file.
        bytes: u64,
        /// The store's limit.
        limit_bytes: u64,
    },
    /// The entry was deleted since it was found, to make room or by another process: compute the
    /// prefix again.
    #[error("{} is no longer in the prefix store", path.display())]
    Gone {
        /// The entry's former path.
        path: PathBuf,
    },
    /// The entry's payload has another size than the buffers it should be loaded into.
    #[error("the payload of {} has {bytes} bytes, the buffers have {buffer_bytes}", path.display())]
    BufferSize {
        /// The entry's file.
        path: PathBuf,
        /// Size of the payload.
        bytes: u64,
        /// Size of the buffers together.
        buffer_bytes: u64,
    },
    /// The entry cannot be used: compute the prefix again.
    #[error(transparent)]
    Unusable(Warning),
}

/// An entry that was ignored.
#[derive(Debug, thiserror::Error)]
#[error("ignored {}: {fault}{}", path.display(), if *is_removed { ", removed it" } else { "" })]
pub struct Warning {
    /// The entry's file, or the URL of its object.
    pub path: PathBuf,
    /// The fault found.
    pub fault: Fault,
    /// `true` if the entry was removed. One that could not be read is not.
    pub is_removed: bool,
}
