//! Interface of the storage below a store of prefixes.

use std::{
    fmt,
    io::Read,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::entry::{EntryName, Fault};
use crate::prefix::PrefixError;

/// Start of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryHead {
    /// The first bytes, as many as asked for or the whole entry.
    pub bytes: Vec<u8>,
    /// Size of the whole entry.
    pub entry_bytes: u64,
}

/// An entry opened for reading.
pub struct OpenEntry<'s> {
    /// Size of the whole entry.
    pub entry_bytes: u64,
    /// Its bytes from the first on.
    pub content: Box<dyn Read + 's>,
}

impl fmt::Debug for OpenEntry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenEntry").field("entry_bytes", &self.entry_bytes).finish_non_exhaustive()
    }
}

/// An entry in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedEntry {
    /// Its name.
    pub name: EntryName,
    /// Its size.
    pub bytes: u64,
    /// Time of its last use, as far as the storage knows it; blocks count as used a second earlier
    /// than the block before them.
    pub used: SystemTime,
}

/// Bytes under the names of entries: a folder, or a server of objects.
///
/// A storage is trusted for nothing. [`PrefixStore`](crate::prefix::PrefixStore) verifies format,
/// key, tokens, place, length and checksum of everything it reads, so other bytes than were
/// written, a torn entry or an old listing cost a computation at most. Several processes use one
/// storage at once. All calls may block; a storage behind a network bounds their time itself.
pub trait EntryStorage: fmt::Debug + Send + Sync {
    /// Folder or URL, for messages.
    fn location(&self) -> &Path;

    /// File or URL of an entry, for messages.
    fn path_of(&self, name: EntryName) -> PathBuf;

    /// The folder, if the storage is one: for files beside the entries.
    fn folder(&self) -> Option<&Path> {
        None
    }

    /// Number of entries that one call should ask for: more than one where a call takes a round
    /// trip whatever it asks for.
    fn most_at_once(&self) -> usize {
        1
    }

    /// Time that one lookup may take; `None` for local storages. A storage with a limit is
    /// *remote*: an error of one entry says that others would fail too, so the store leaves it
    /// alone for a while.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// The first `n_bytes` bytes of entries, in their order; `None` for those that do not exist.
    ///
    /// # Errors
    /// [`Fault::Unreadable`] and [`Fault::NotRegular`], per entry.
    fn heads(&self, names: &[EntryName], n_bytes: usize) -> Vec<Result<Option<EntryHead>, Fault>>;

    /// Opens entries of the given sizes, in their order; `None` for those that do not exist. No
    /// more bytes than the given size need be there to read.
    ///
    /// # Errors
    /// As [`heads`](Self::heads).
    fn open(&self, entries: &[(EntryName, u64)]) -> Vec<Result<Option<OpenEntry<'_>>, Fault>>;

    /// Notes a use, where the storage keeps times of use. Failures only affect the order of
    /// eviction.
    fn touch(&self, name: EntryName, used: SystemTime);

    /// Writes an entry, given in parts: it appears under its name as a whole or not at all, and
    /// replaces one that is there.
    ///
    /// # Errors
    /// [`PrefixError::File`]. Nothing is left of the entry then.
    fn write(&self, name: EntryName, parts: &[&[u8]], used: SystemTime) -> Result<(), PrefixError>;

    /// Removes entries, in their order; that another process was faster is as good.
    ///
    /// # Errors
    /// [`PrefixError::File`], per entry.
    fn remove(&self, names: &[EntryName]) -> Vec<Result<(), PrefixError>>;

    /// All entries. Other files or objects are left out.
    ///
    /// # Errors
    /// [`PrefixError::File`].
    fn list(&self) -> Result<Vec<ListedEntry>, PrefixError>;
}

/// Deletes the entries that were not used for longest, until at most `target_bytes` are left.
/// Returns how many entries were deleted, and the bytes that are left. An entry that cannot be
/// deleted, as one of another user may be, is an error only if the others do not suffice.
pub(super) fn shrink(storage: &dyn EntryStorage, target_bytes: u64) -> Result<(u64, u64), PrefixError> {
    let mut entries = storage.list()?;
    entries.sort_by_key(|entry| entry.used);
    let target_bytes = u128::from(target_bytes);
    let mut left = total(&entries);
    let (mut n_deleted, mut failure, mut rest) = (0, None, entries.as_slice());
    while left > target_bytes && !rest.is_empty() {
        // As many as are too many, if all of them can be deleted.
        let mut excess = left - target_bytes;
        let is_needed = |entry: &&ListedEntry| {
            let is_needed = excess > 0;
            excess = excess.saturating_sub(u128::from(entry.bytes));
            is_needed
        };
        let n_needed = rest.iter().take(storage.most_at_once()).take_while(is_needed).count();
        let (oldest, others) = rest.split_at(n_needed);
        let names: Vec<EntryName> = oldest.iter().map(|entry| entry.name).collect();
        for (entry, removed) in oldest.iter().zip(storage.remove(&names)) {
            match removed {
                Ok(()) => {
                    left -= u128::from(entry.bytes);
                    n_deleted += 1;
                }
                Err(error) if storage.patience().is_some() => return Err(error),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        rest = others;
    }
    match failure {
        Some(failure) if left > target_bytes => Err(failure),
        _ => Ok((n_deleted, saturated(left))),
    }
}

/// Number and bytes of all entries.
pub(super) fn usage(storage: &dyn EntryStorage) -> Result<(usize, u64), PrefixError> {
    let entries = storage.list()?;
    Ok((entries.len(), saturated(total(&entries))))
}

/// Bytes of entries together. Sparse files state lengths whose sum exceeds 64 bits.
fn total(entries: &[ListedEntry]) -> u128 {
    entries.iter().map(|entry| u128::from(entry.bytes)).sum()
}

fn saturated(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix::store::entry::EntryId;

    #[test]
    fn lengths_of_sparse_files_do_not_overflow() {
        let name = EntryName { id: EntryId::START, index: 0 };
        let file = ListedEntry { name, bytes: u64::MAX, used: SystemTime::UNIX_EPOCH };
        let files = [file, file];
        assert_eq!((total(&files), saturated(total(&files))), (2 * u128::from(u64::MAX), u64::MAX));
    }
}
