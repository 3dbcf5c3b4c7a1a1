//! Failures within a transaction, before they name the file.

use std::io::ErrorKind;
use std::path::Path;

use crate::error::Error;

/// Reason for which a transaction was abandoned.
pub(super) enum Failure {
    /// Failure of the database or of the file below it.
    Database(redb::Error),
    /// Record that cannot be decoded.
    Damaged(String),
    /// Refusal of the caller's input.
    Refused(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

macro_rules! from_redb {
    ($($error:ident),*) => {$(
        impl From<redb::$error> for Failure {
            fn from(error: redb::$error) -> Self {
                Self::Database(error.into())
            }
        }
    )*};
}

from_redb!(StorageError, TableError, TransactionError, CommitError, DatabaseError, CompactionError);

impl Failure {
    /// True if the database has to be opened again before it is used.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Database(_))
    }

    /// Error for the caller, naming the file and the action that failed.
    pub(super) fn into_error(self, path: &Path, action: &'static str) -> Error {
        let path = path.to_owned();
        match self {
            Self::Refused(error) => error,
            Self::Damaged(reason) | Self::Database(redb::Error::Corrupted(reason)) => {
                Error::StoreDamaged { path, reason }
            }
            Self::Database(redb::Error::Io(source)) => match source.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                    Error::StoreFull { path, source }
                }
                ErrorKind::InvalidData | ErrorKind::UnexpectedEof => {
                    Error::StoreDamaged { path, reason: source.to_string() }
                }
                _ => Error::StoreIo { action, path, source },
            },
            Self::Database(redb::Error::DatabaseAlreadyOpen) => Error::StoreInUse { path },
            Self::Database(redb::Error::RepairAborted) => Error::StoreNeedsRepair { path },
            Self::Database(
                error @ (redb::Error::TableTypeMismatch { .. }
                | redb::Error::TypeDefinitionChanged { .. }
                | redb::Error::TableIsMultimap(_)
                | redb::Error::TableDoesNotExist(_)
                | redb::Error::UpgradeRequired(_)),
            ) => Error::StoreDamaged { path, reason: format!("not the tables of a learning store: {error}") },
            Self::Database(error) => {
                Error::StoreIo { action, path, source: std::io::Error::other(error.to_string()) }
            }
        }
    }
}
