//! Folder as a storage: files are written so that they are there as a whole or not at all.

use std::{
    collections::hash_map::RandomState,
    fs::{self, File},
    hash::BuildHasher,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::entry::{EntryId, EntryName};
use super::files;
use super::storage::{EntryHead, EntryStorage, ListedEntry, OpenEntry};
use crate::prefix::{Fault, PrefixError};

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
        for file in folder.files(TEMPORARY)? {
            if now.duration_since(file.modified).is_ok_and(|age| age >= ABANDONED_AFTER) {
                // One of another user may have to stay, and harms nobody.
                let _ = remove(&file.path);
            }
        }
        Ok(folder)
    }

    fn file_of(&self, id: EntryId) -> PathBuf {
        self.path.join(format!("{id}.{ENTRY}"))
    }

    /// Opens an entry's file; its size. `None` if there is none.
    fn open_file(&self, name: EntryName) -> Result<Option<(File, u64)>, Fault> {
        let file = match files::open_regular(&self.file_of(name.id)) {
            Ok(Some(file)) => file,
            Ok(None) => return Err(Fault::NotRegular),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Fault::Unreadable(error)),
        };
        let bytes = file.metadata().map_err(Fault::Unreadable)?.len();
        Ok(Some((file, bytes)))
    }

    /// The store's files with this extension. A file that another process deletes meanwhile is left
    /// out, and so is anything but a regular file.
    fn files(&self, extension: &str) -> Result<Vec<Listed>, PrefixError> {
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

impl EntryStorage for Folder {
    fn location(&self) -> &Path {
        &self.path
    }

    fn path_of(&self, name: EntryName) -> PathBuf {
        self.file_of(name.id)
    }

    fn folder(&self) -> Option<&Path> {
        Some(&self.path)
    }

    fn heads(&self, names: &[EntryName], n_bytes: usize) -> Vec<Result<Option<EntryHead>, Fault>> {
        let head = |&name: &EntryName| {
            let Some((file, entry_bytes)) = self.open_file(name)? else { return Ok(None) };
            let mut bytes = Vec::with_capacity(n_bytes);
            file.take(n_bytes as u64).read_to_end(&mut bytes).map_err(Fault::Unreadable)?;
            Ok(Some(EntryHead { bytes, entry_bytes }))
        };
        names.iter().map(head).collect()
    }

    fn open(&self, entries: &[(EntryName, u64)]) -> Vec<Result<Option<OpenEntry<'_>>, Fault>> {
        let open = |&(name, _): &(EntryName, u64)| {
            let file = self.open_file(name)?;
            Ok(file.map(|(file, entry_bytes)| OpenEntry { entry_bytes, content: Box::new(file) }))
        };
        entries.iter().map(open).collect()
    }

    fn touch(&self, name: EntryName, used: SystemTime) {
        // Only the order of deletion depends on the time, so a folder that is read-only will do.
        if let Ok(Some((file, _))) = self.open_file(name) {
            let _ = file.set_modified(used);
        }
    }

    /// The entry appears under its name once it is safely on disk; a process that is killed on the
    /// way leaves a temporary file.
    fn write(&self, name: EntryName, parts: &[&[u8]], used: SystemTime) -> Result<(), PrefixError> {
        let id = name.id;
        // Unlike the number of a process, never the same twice: not in containers that share the
        // folder, and not after a crash. Two writes of one entry do not meet either.
        let unique = RandomState::new().hash_one(id);
        let temporary = self.path.join(format!("{id}-{unique:016x}.{TEMPORARY}"));
        let path = self.file_of(id);
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

    fn remove(&self, names: &[EntryName]) -> Vec<Result<(), PrefixError>> {
        names.iter().map(|name| remove(&self.file_of(name.id))).collect()
    }

    fn list(&self) -> Result<Vec<ListedEntry>, PrefixError> {
        let entry = |file: Listed| {
            let id = EntryId::parse(file.path.file_stem()?.to_str()?)?;
            Some(ListedEntry { name: EntryName::new(id, 0), bytes: file.bytes, used: file.modified })
        };
        Ok(self.files(ENTRY)?.into_iter().filter_map(entry).collect())
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

/// Removes a file; that another process was faster is as good.
fn remove(path: &Path) -> Result<(), PrefixError> {
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
