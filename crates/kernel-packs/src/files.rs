//! Files on disk: reading without following links, writing for the owner alone.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, io_error, within};

/// Reads a regular file of at most `most` bytes. Links, devices and pipes are refused.
///
/// # Errors
/// [`Error::NotRegular`], [`Error::Limit`] before anything is read, [`Error::Io`].
pub(crate) fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let failed = |source| io_error("read", path)(source);
    let refused = || Error::NotRegular { path: path.to_owned() };
    if !fs::symlink_metadata(path).map_err(failed)?.is_file() {
        return Err(refused());
    }
    let mut options = OpenOptions::new();
    // Also if a link or a pipe has taken its place since.
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags.bits().cast_signed());
    }
    let file = options.read(true).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(refused());
    }
    let what = || path.display().to_string() + " (bytes)";
    within(what(), metadata.len(), most)?;
    let mut bytes = Vec::new();
    // The file may grow while it is read.
    file.take(most + 1).read_to_end(&mut bytes).map_err(failed)?;
    within(what(), bytes.len() as u64, most)?;
    Ok(bytes)
}

/// Path that the user named, with links resolved.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn resolve(path: &Path) -> Result<PathBuf> {
    fs::canonicalize(path).map_err(io_error("read", path))
}

/// Checks that nobody but the owner may change a file or folder.
///
/// # Errors
/// [`Error::Writable`], [`Error::Io`].
pub(crate) fn check_private(path: &Path) -> Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(path).map_err(io_error("read", path))?.permissions().mode() & 0o777;
        if mode & 0o022 != 0 {
            return Err(Error::Writable { path: path.to_owned(), mode });
        }
    }
    Ok(())
}

/// Creates a folder, with those above it, for its owner alone. One that is there is kept.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn create_folder(path: &Path) -> Result<()> {
    step();
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path).map_err(io_error("create", path))
}

/// Options for files of their owner alone.
pub(crate) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Writes a new file, for its owner alone, and waits until it is on the disk.
///
/// # Errors
/// [`Error::Io`], also for a file that is there.
pub(crate) fn write_new(path: &Path, bytes: &[u8]) -> Result<()> {
    step();
    let mut file = private().write(true).create_new(true).open(path).map_err(io_error("create", path))?;
    step();
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(io_error("write", path))
}

/// Replaces a small file: readers see the former one or the new one.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn replace(path: &Path, temporary: &Path, bytes: &[u8]) -> Result<()> {
    remove_file(temporary)?;
    write_new(temporary, bytes)?;
    rename(temporary, path)
}

/// Renames a file or folder and makes the name survive a power cut.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    step();
    fs::rename(from, to).map_err(io_error("write", to))?;
    step();
    to.parent().map_or(Ok(()), sync_folder)
}

/// Makes names in a folder survive a power cut.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    // Windows has no such call for folders.
    let synced = || if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) };
    synced().map_err(io_error("write", folder))
}

/// Removes a file; one that is absent is as good.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn remove_file(path: &Path) -> Result<()> {
    step();
    absent_is_fine(fs::remove_file(path)).map_err(io_error("remove", path))
}

/// Removes a folder with its contents, of links the links; one that is absent is as good.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn remove_folder(path: &Path) -> Result<()> {
    step();
    absent_is_fine(fs::remove_dir_all(path)).map_err(io_error("remove", path))
}

fn absent_is_fine(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Marks the begin of a change on the disk, so that tests can look at the state before each.
#[inline]
fn step() {
    #[cfg(test)]
    steps::call();
}

/// Callback of the tests before each change on the disk.
#[cfg(test)]
pub(crate) mod steps {
    use std::cell::RefCell;

    type Callback = Box<dyn FnMut()>;

    thread_local! {
        static CALLBACK: RefCell<Option<Callback>> = const { RefCell::new(None) };
    }

    /// Calls `callback` before each change that this thread makes while `work` runs.
    pub(crate) fn watch<T>(callback: impl FnMut() + 'static, work: impl FnOnce() -> T) -> T {
        CALLBACK.set(Some(Box::new(callback)));
        let result = work();
        CALLBACK.set(None);
        result
    }

    pub(super) fn call() {
        // Taken out meanwhile, so that the callback can use the store.
        if let Some(mut callback) = CALLBACK.take() {
            callback();
            CALLBACK.set(Some(callback));
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn links_folders_devices_and_long_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), "12345").unwrap();
        symlink(path("file"), path("link")).unwrap();
        assert_eq!(read(&path("file"), 5).unwrap(), b"12345");
        assert!(matches!(read(&path("file"), 4), Err(Error::Limit { found: 5, most: 4, .. })));
        for other in [path("link"), folder.path().to_owned(), "/dev/zero".into()] {
            assert!(matches!(read(&other, 5), Err(Error::NotRegular { .. })), "{other:?}");
        }
        assert!(matches!(read(&path("absent"), 5), Err(Error::Io { action: "read", .. })));
    }

    #[test]
    fn new_files_and_folders_are_private() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/b");
        create_folder(&inner).unwrap();
        write_new(&inner.join("file"), b"x").unwrap();
        assert!(write_new(&inner.join("file"), b"y").is_err(), "none is replaced");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&inner), mode(&inner.join("file"))), (0o700, 0o600));
        assert!(check_private(&inner).is_ok());
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o720)).unwrap();
        assert!(matches!(check_private(&inner), Err(Error::Writable { mode: 0o720, .. })));
    }
}
