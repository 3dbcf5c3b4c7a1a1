//! Errors of sessions.

use std::io;
use std::path::PathBuf;

/// Reason that a session cannot be used as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The tenant has no session with this id.
    #[error("there is no session {id:?}")]
    Unknown {
        /// The id.
        id: String,
    },
    /// The tenant has a session with this id already.
    #[error("there is a session {id:?} already; remove it or choose another id")]
    Exists {
        /// The id.
        id: String,
    },
    /// The tenant has as many sessions as it may have.
    #[error("the tenant {tenant:?} has {quota} sessions, which is its quota; remove some")]
    Quota {
        /// Path of the tenant.
        tenant: String,
        /// Largest number of sessions.
        quota: usize,
    },
    /// The saved sessions are of another model.
    #[error("the sessions in {} were saved with another model", path.display())]
    Model {
        /// The index file.
        path: PathBuf,
    },
    /// The index of saved sessions is damaged.
    #[error("the file of sessions {} is damaged: {reason}; delete it", path.display())]
    Damaged {
        /// The index file.
        path: PathBuf,
        /// First difference from a saved index.
        reason: &'static str,
    },
    /// A file of saved sessions cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    File {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// The keys and values of a session cannot be stored.
    #[error("cannot store keys and values of sessions")]
    Store(#[source] ruvllm_kv_cache::Error),
}
