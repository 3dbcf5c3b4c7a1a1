//! Files whose creation was interrupted.

use std::ops::Bound;

use redb::{BackendError, StorageBackend};

use super::failure::Failure;

/// Bytes of the magic number, which redb writes last: a file without it holds no transaction.
const MAGIC_BYTES: usize = 9;
/// Bytes of redb's header, the only ones that are written before the first transaction.
const HEADER_BYTES: usize = 320;
/// Bytes of a file that redb has created, at most. A longer one held transactions.
const CREATED_BYTES: u64 = 1 << 20;

const WHOLE: (Bound<u64>, Bound<u64>) = (Bound::Unbounded, Bound::Unbounded);

/// Empties a file whose creation was interrupted, so that it can be created again.
///
/// It is one without a magic number and, behind the header, without any byte that is not zero. A
/// file that another process is creating now is left alone.
pub(super) fn empty_if_unfinished(storage: &impl StorageBackend) -> Result<(), Failure> {
    // The lock is taken for the rare file that needs it.
    if !is_unfinished(storage)? {
        return Ok(());
    }
    let is_locked = match storage.try_lock_range(WHOLE.0, WHOLE.1) {
        Ok(true) => true,
        Ok(false) => return Ok(()),
        Err(BackendError::Unsupported) => false,
        Err(error) => return Err(redb::StorageError::from(error).into()),
    };
    if is_unfinished(storage)? {
        storage.set_len(0).map_err(redb::StorageError::Io)?;
    }
    if is_locked {
        storage.unlock_range(WHOLE.0, WHOLE.1).map_err(redb::StorageError::from)?;
    }
    Ok(())
}

fn is_unfinished(storage: &impl StorageBackend) -> Result<bool, Failure> {
    let len = storage.len().map_err(redb::StorageError::Io)?;
    if len == 0 || len > CREATED_BYTES {
        return Ok(false);
    }
    let read = |bytes: usize| {
        let mut read = vec![0; bytes.min(len as usize)];
        storage.read(0, &mut read).map_err(redb::StorageError::Io)?;
        Ok::<_, Failure>(read)
    };
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    // The whole file only if it has no magic number.
    Ok(is_zero(&read(MAGIC_BYTES)?) && is_zero(read(len as usize)?.get(HEADER_BYTES..).unwrap_or(&[])))
}
