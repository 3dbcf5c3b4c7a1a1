//! What can go wrong with prefixes on disk.

use std::{io, path::PathBuf};

/// Why the store could not do what was asked, as part of the crate's [`Error`](crate::Error). What it holds besides stays
/// valid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrefixError {
    /// The operating system refused a file operation.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried, for example `create`.
        action: &'static str,
        /// The file or folder concerned.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// One block alone is larger than the store may become: raise the limit.
    #[error("a block of {bytes} bytes does not fit into a prefix store limited to {limit_bytes} bytes")]
    LargerThanStore {
        /// Size of the block's file.
        bytes: u64,
        /// The store's limit.
        limit_bytes: u64,
    },
    /// The entry was deleted since it was found, to make room or by another process: compute the prefix again.
    #[error("{} is no longer in the prefix store", path.display())]
    Gone {
        /// Where the entry was.
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
    /// The entry's file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: Fault,
    /// Whether the file was removed. A file that could not be read is left alone.
    pub is_removed: bool,
}

/// What is wrong with the file of an entry.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The operating system refused to open or read the file.
    #[error("cannot be read ({0})")]
    Unreadable(io::Error),
    /// The file does not begin as an entry does.
    #[error("not a stored prefix")]
    Magic,
    /// The file has a format that this version does not read.
    #[error("format version {found}, not {}", super::store::FORMAT_VERSION)]
    Version {
        /// The version it states.
        found: u32,
    },
    /// The file is shorter or longer than it says.
    #[error("{found} bytes instead of {expected}")]
    Length {
        /// Bytes that the header announces, or that a header takes.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// The header is of another model, tenant, format, prefix or block than the file's name.
    #[error("holds another prefix than its name says")]
    Foreign,
    /// The payload is not what was written.
    #[error("the checksum of the payload is wrong")]
    Checksum,
}
