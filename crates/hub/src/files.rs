//! Files on disk: removing, replacing, room.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, file_error};

/// Removes a file; one that is not there is as good.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file_error("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Opens a file of the store. Links and anything that is not a regular file are errors, so that
/// nothing outside of the store is touched and no pipe is waited for.
pub(crate) fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let refused = || io::Error::new(io::ErrorKind::InvalidInput, "it is a link or no regular file");
    if !fs::symlink_metadata(path)?.is_file() {
        return Err(refused());
    }
    // Also if it has been replaced since.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, no_follow());
    let file = options.open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(refused()) }
}

/// The flags with which a link is not followed and a pipe not waited for.
#[cfg(unix)]
fn no_follow() -> i32 {
    use rustix::fs::OFlags;
    (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed()
}

/// Reads a file of the store of at most `limit` bytes; see [`open_regular`].
///
/// # Errors
/// Errors of the system; [`io::ErrorKind::FileTooLarge`].
pub(crate) fn read_bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read_at_most(open_regular(path, OpenOptions::new().read(true))?, limit)
}

/// Reads what is left of `file`, at most `limit` bytes.
///
/// # Errors
/// As [`read_bounded`].
pub(crate) fn read_at_most(file: File, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let reason = format!("it is longer than {limit} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}

/// Opens a new file for writing; one that is there, or a link, is replaced and not written to.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Paths in a folder, in no order; none if there is no such folder.
pub(crate) fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries
            .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect())
            .map_err(file_error("list", folder)),
    }
}

/// Makes a file's name survive a power cut.
pub(crate) fn sync_folder_of(path: &Path) -> Result<()> {
    // Windows has no such call for folders.
    if let Some(folder) = path.parent().filter(|_| cfg!(unix)) {
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(file_error("write", folder))?;
    }
    Ok(())
}

/// Writes a small file: it appears as a whole, or the one from before stays. Nobody else may write
/// it at the same time.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = path.with_extension("new");
    create(&temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, path))
        .map_err(file_error("write", path))?;
    sync_folder_of(path)
}

/// Creates a folder and those above it.
pub(crate) fn create_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(file_error("create", path))
}

/// Creates the folder `path` below `root`, which may be a link itself.
///
/// # Errors
/// [`Error::Link`] when a folder on the way is a link: what is written there would lie elsewhere.
pub(crate) fn create_folder_below(root: &Path, path: &Path) -> Result<()> {
    create_folder(root)?;
    let mut folder = root.to_owned();
    for part in path.strip_prefix(root).into_iter().flatten() {
        folder.push(part);
        check_not_link(&folder)?;
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(file_error("create", &folder)(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Refuses a link; what is not there is none.
pub(crate) fn check_not_link(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => Err(Error::Link { path: path.to_owned() }),
        _ => Ok(()),
    }
}

/// Bytes that a file takes on the disk; a partial file has holes.
pub(crate) fn disk_bytes(file: &fs::Metadata) -> u64 {
    #[cfg(unix)]
    let allocated = std::os::unix::fs::MetadataExt::blocks(file).saturating_mul(512);
    #[cfg(not(unix))]
    let allocated = u64::MAX;
    file.len().min(allocated)
}

/// Bytes that the regular file at `path` takes on the disk; 0 if there is none.
pub(crate) fn disk_bytes_at(path: &Path) -> u64 {
    fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file).map_or(0, |file| disk_bytes(&file))
}

/// Bytes that this user can still write to the file system of a folder, if the system tells.
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    #[cfg(unix)]
    let free = rustix::fs::statvfs(folder).ok().map(|fs| fs.f_bavail.saturating_mul(fs.f_frsize));
    #[cfg(not(unix))]
    let free = {
        let _ = folder;
        None
    };
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_take_no_room() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("holes");
        File::create(&path).unwrap().set_len(1 << 30).unwrap();
        let bytes = disk_bytes(&fs::metadata(&path).unwrap());
        assert!(cfg!(not(unix)) || bytes < 1 << 20, "{bytes}");
    }

    #[cfg(unix)]
    #[test]
    fn the_file_system_tells_its_room() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free_bytes(folder.path()).is_some_and(|bytes| bytes > 0));
        assert_eq!(free_bytes(&folder.path().join("absent")), None);
    }
}
