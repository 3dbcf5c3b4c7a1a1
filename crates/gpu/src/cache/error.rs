//! Reasons not to use a cache folder or file.

use std::io;
use std::path::PathBuf;

/// Reason that the pipeline cache, or what is in it, is not used. Kernels are compiled instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The system refused an operation.
    #[error("the GPU's pipeline cache is not used: could not {action} {}: {source}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// Folder or file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// Folder or file belong to another user.
    #[error("the GPU's pipeline cache is not used: {} belongs to user {owner}, not to {user}", path.display())]
    Foreign {
        /// Folder or file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// User of this process.
        user: u32,
    },
    /// Others may write to the folder or file.
    #[error(
        "the GPU's pipeline cache is not used: others may write to {} (mode {mode:o}); chmod go-w it, or name \
         another folder", path.display()
    )]
    Shared {
        /// Folder or file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The path names a folder, symbolic link, pipe or device.
    #[error("the GPU's pipeline cache is not used: {} is no regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file exceeds the limit.
    #[error("{} is ignored and rewritten: it has {bytes} bytes and the limit is {limit}", path.display())]
    Oversized {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// Largest size that is read.
        limit: u64,
    },
    /// Header or checksum are wrong.
    #[error("{} is ignored and rewritten: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: &'static str,
    },
}
