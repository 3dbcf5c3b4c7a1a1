//! The store's folder: writing files so that they are there as a whole or not at all, and deleting
//! the oldest.

use std::{
    collections::hash_map::RandomState,
    fs::{self, File},
    hash::BuildHasher,
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::{EntryId, files};
use crate::prefix::PrefixError;

/// Temporary files of this age belong to no write that is still going on.
const ABANDONED_AFTER: Duration = Duration::from_secs(15 * 60);

const ENTRY: &str = "kv";
const TEMPORARY: &str = "tmp";

/// A folder of entries. Other files in it are left alone.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Others write to it too: its content is authenticated.
    is_shared: bool,
}

/// A file of the store as a listing of the folder shows it.
struct Listed {
    path: PathBuf,
    bytes: u64,
    modified: SystemTime,
}

impl Folder {
    /// Opens the folder, or creates it for this user only, and removes files of interrupted writes.
    /// A folder that somebody else owns or may write to is refused unless it `is_shared`.
    pub(super) fn open(path: PathBuf, is_shared: bool) -> Result<Self, PrefixError> {
        let mut builder = fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.recursive(true).create(&path).map_err(failed("create", &path))?;
        if !is_shared {
            files::check_folder(&path)?;
        }
        let folder = Self { path, is_shared };
        let now = SystemTime::now();
        for file in folder.list(TEMPORARY)? {
            if now.duration_since(file.modified).is_ok_and(|age| age >= ABANDONED_AFTER) {
                // One of another user may have to stay, and harms nobody.
                let _ = remove(&file.path);
            }
        }
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn path_of(&self, id: EntryId) -> PathBuf {
        self.path.join(format!("{id}.{ENTRY}"))
    }

    /// Writes an entry. It appears under its name as a whole, once it is safely on disk; a process
    /// that is killed on the way leaves a temporary file.
    pub(super) fn write(&self, id: EntryId, parts: &[&[u8]], used: SystemTime) -> Result<(), PrefixError> {
        // Unlike the number of a process, never the same twice: not in containers that share the
        // folder, and not after a crash. Two writes of one entry do not meet either.
        let unique = RandomState::new().hash_one(id);
        let temporary = self.path.join(format!("{id}-{unique:016x}.{TEMPORARY}"));
        let path = self.path_of(id);
        let written = self
            .write_synced(&temporary, parts, used)
            .map_err(failed("write", &temporary))
            .and_then(|()| publish(&temporary, &path, || self.sync()));
        if written.is_err() {
            // The first error is the one to report.
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    /// Number and bytes of all entries.
    pub(super) fn usage(&self) -> Result<(usize, u64), PrefixError> {
        let entries = self.list(ENTRY)?;
        Ok((entries.len(), saturated(total(&entries))))
    }

    /// Deletes the entries that were not used for longest, until at most `target_bytes` are left.
    /// Returns how many entries were deleted, and the bytes that are left. An entry that cannot be
    /// deleted, as one of another user may be, is an error only if the others do not suffice.
    pub(super) fn shrink(&self, target_bytes: u64) -> Result<(u64, u64), PrefixError> {
        let mut entries = self.list(ENTRY)?;
        entries.sort_by_key(|entry| entry.modified);
        let mut left = total(&entries);
        let (mut n_deleted, mut failure) = (0, None);
        for entry in entries {
            if left <= u128::from(target_bytes) {
                return Ok((n_deleted, saturated(left)));
            }
            match remove(&entry.path) {
                Ok(()) => {
                    left -= u128::from(entry.bytes);
                    n_deleted += 1;
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok((n_deleted, saturated(left))), Err)
    }

    /// The store's files with this extension. A file that another process deletes meanwhile is left
    /// out, and so is anything but a regular file.
    fn list(&self, extension: &str) -> Result<Vec<Listed>, PrefixError> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed("list", &self.path))? {
            let path = entry.map_err(failed("list", &self.path))?.path();
            if !is_ours(&path, extension) {
                continue;
            }
            let seen = fs::symlink_metadata(&path)
                .and_then(|file| Ok((file.is_file(), file.len(), file.modified()?)));
            match seen {
                Ok((true, bytes, modified)) => files.push(Listed { path, bytes, modified }),
                Ok((false, ..)) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(failed("look at", &path)(source)),
            }
        }
        Ok(files)
    }

    fn write_synced(&self, path: &Path, parts: &[&[u8]], used: SystemTime) -> io::Result<()> {
        let mut file = files::create_private(path)?;
        if self.is_shared {
            files::share_with_group(&file, &self.path)?;
        }
        for part in parts {
            file.write_all(part)?;
        }
        file.set_modified(used)?;
        file.sync_all()
    }

    /// Makes the names of renamed files survive a power cut.
    fn sync(&self) -> Result<(), PrefixError> {
        // Windows has no such call for folders.
        if cfg!(unix) {
            File::open(&self.path)
                .and_then(|folder| folder.sync_all())
                .map_err(failed("write", &self.path))?;
        }
        Ok(())
    }
}

/// `true` for a file of this store: 64 hexadecimal digits, any suffix, and the extension.
fn is_ours(path: &Path, extension: &str) -> bool {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let digits = stem.bytes().take_while(u8::is_ascii_hexdigit).count();
    let is_length_right = if extension == ENTRY { stem.len() == 64 } else { stem.len() > 64 };
    path.extension().is_some_and(|found| found == extension) && digits == 64 && is_length_right
}

/// Gives a complete file its name, and makes the name durable. A file whose name may not survive is
/// removed.
fn publish(
    temporary: &Path,
    path: &Path,
    sync: impl FnOnce() -> Result<(), PrefixError>,
) -> Result<(), PrefixError> {
    match fs::rename(temporary, path) {
        // Windows replaces no file that somebody has open. The folder is writable, or the temporary
        // file would not be there: another store has this entry, with the same content.
        Err(error) if cfg!(windows) && error.kind() == io::ErrorKind::PermissionDenied => {
            let _ = fs::remove_file(temporary);
            return Ok(());
        }
        renamed => renamed.map_err(failed("rename to", path))?,
    }
    sync().inspect_err(|_| {
        // The first error is the one to report.
        let _ = fs::remove_file(path);
    })
}

/// Bytes of files together. Sparse files state lengths whose sum exceeds 64 bits.
fn total(files: &[Listed]) -> u128 {
    files.iter().map(|file| u128::from(file.bytes)).sum()
}

fn saturated(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Removes a file; that another process was faster is as good.
pub(super) fn remove(path: &Path) -> Result<(), PrefixError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PrefixError {
    move |source| PrefixError::File { action, path: path.to_path_buf(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_whose_name_is_not_durable_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let [temporary, path] = ["new", "entry"].map(|name| folder.path().join(name));
        fs::write(&temporary, b"an entry").expect("a file");
        let failure = || Err(failed("write", folder.path())(io::Error::other("the disk is gone")));
        let error = publish(&temporary, &path, failure).expect_err("no sync");
        assert!(matches!(error, PrefixError::File { action: "write", .. }));
        assert!(!temporary.exists() && !path.exists());
    }

    #[test]
    fn lengths_of_sparse_files_do_not_overflow() {
        let file = || Listed { path: PathBuf::new(), bytes: u64::MAX, modified: SystemTime::UNIX_EPOCH };
        let files = [file(), file()];
        assert_eq!((total(&files), saturated(total(&files))), (2 * u128::from(u64::MAX), u64::MAX));
    }

    #[test]
    fn only_names_that_the_store_gives_are_its_own() {
        let digits = "0123456789abcdef".repeat(4);
        let is = |name: String, extension| is_ours(Path::new(&name), extension);
        assert!(is(format!("{digits}.kv"), ENTRY));
        assert!(is(format!("{digits}-00c0ffee00c0ffee.tmp"), TEMPORARY));
        assert!(!is(format!("{digits}.tmp"), TEMPORARY));
        assert!(!is(format!("{digits}0.kv"), ENTRY));
        assert!(!is(format!("{}.kv", &digits[1..]), ENTRY));
        assert!(!is(format!("{}x.kv", &digits[1..]), ENTRY));
        assert!(!is(digits, ENTRY));
        assert!(!is("notes.kv".into(), ENTRY));
    }
}
