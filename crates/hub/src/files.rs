//! Files on disk: removing, replacing, room.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::error::{Result, file_error};

/// Removes a file; one that is not there is as good.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file_error("remove", path)(error)),
        _ => Ok(()),
    }
}

/// What is in a folder, in no order; nothing if there is no such folder.
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
    File::create(&temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, path))
        .map_err(file_error("write", path))?;
    sync_folder_of(path)
}

/// Creates a folder and those above it.
pub(crate) fn create_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(file_error("create", path))
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
