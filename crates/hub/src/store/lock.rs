//! Locks between processes: files that are locked while somebody works, and stay empty.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::Path;

use crate::error::{Error, Result, file_error};
use crate::files;

/// A lock that is held until it is dropped, or its process ends in whatever way.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough: a program that another thread is just starting has the file open
        // as well, and would keep the lock for that instant.
        let _ = self.file.unlock();
    }
}

impl Lock {
    /// Takes the lock at `path`, or says at once that another has it.
    pub(super) fn try_take(path: &Path, repo: &str) -> Result<Self> {
        let file = open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { file }),
            Err(TryLockError::WouldBlock) => Err(Error::Busy { repo: repo.to_owned() }),
            Err(TryLockError::Error(source)) => Err(file_error("lock", path)(source)),
        }
    }

    /// Takes the lock at `path`, waiting for another that has it. Only for work that takes no time.
    pub(super) fn wait(path: &Path) -> Result<Self> {
        let file = open(path)?;
        file.lock().map_err(file_error("lock", path))?;
        Ok(Self { file })
    }
}

fn open(path: &Path) -> Result<File> {
    // A lock file is never removed: another process may wait for the one that is there.
    match OpenOptions::new().create_new(true).write(true).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            files::open_regular(path, OpenOptions::new().write(true))
        }
        created => created,
    }
    .map_err(file_error("create", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_lock_is_free_while_a_copy_of_its_file_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let lock = Lock::try_take(&path, "a/b").unwrap();
        // As a process has that is forked from this one.
        let _copy = lock.file.try_clone().unwrap();
        assert!(matches!(Lock::try_take(&path, "a/b"), Err(Error::Busy { .. })));
        drop(lock);
        assert!(Lock::try_take(&path, "a/b").is_ok());
    }
}
