//! Rules for folder and file, and the atomic write.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::error::CacheError;

/// Age at which the temporary file of a process that was killed is removed.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Extension of temporary files.
const TEMPORARY: &str = "tmp";

/// Creates the folder (mode 0700) if it is absent, and checks that only this user may write to it.
pub(super) fn prepare_folder(folder: &Path) -> Result<(), CacheError> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map_err(failed("create", folder))?;
    check_owner(folder, &fs::metadata(folder).map_err(failed("look at", folder))?)
}

/// Refuses what another user owns or may write to. Windows has no such bits; the user's application
/// data inherits the access list of the profile.
fn check_owner(path: &Path, metadata: &Metadata) -> Result<(), CacheError> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let path = path.to_owned();
        let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
        if owner != user {
            return Err(CacheError::Foreign { path, owner, user });
        }
        let mode = metadata.mode() & 0o7777;
        if mode & 0o022 != 0 {
            return Err(CacheError::Shared { path, mode });
        }
    }
    #[cfg(not(unix))]
    let _ = (path, metadata);
    Ok(())
}

/// Bytes of a regular file of this user; `None` if it is absent. Symbolic links are not followed.
pub(super) fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, CacheError> {
    let not_a_file = || CacheError::NotAFile { path: path.to_owned() };
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_file() => {}
        Ok(_) => return Err(not_a_file()),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("look at", path)(error)),
    }
    let mut options = OpenOptions::new();
    options.read(true);
    // Also if a link or pipe has taken its place since.
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags.bits().cast_signed());
    }
    let file = match options.open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed("open", path))?,
    };
    let metadata = file.metadata().map_err(failed("look at", path))?;
    if !metadata.is_file() {
        return Err(not_a_file());
    }
    check_owner(path, &metadata)?;
    let mut bytes = Vec::new();
    // The size may change while it is read.
    file.take(limit + 1).read_to_end(&mut bytes).map_err(failed("read", path))?;
    if bytes.len() as u64 > limit {
        let bytes = metadata.len().max(bytes.len() as u64);
        return Err(CacheError::Oversized { path: path.to_owned(), bytes, limit });
    }
    Ok(Some(bytes))
}

/// Replaces the file by `parts`, readable and writable by this user only (mode 0600). Readers see
/// the old file or the new one; of two writers the later one wins.
pub(super) fn write(path: &Path, parts: &[&[u8]]) -> Result<(), CacheError> {
    remove_abandoned(path);
    let temporary = temporary(path);
    let written = write_synced(&temporary, parts)
        .map_err(failed("write", &temporary))
        .and_then(|()| fs::rename(&temporary, path).map_err(failed("replace", path)))
        .and_then(|()| sync_folder(path).map_err(failed("write the folder of", path)));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Removes the file; an absent one is no error.
pub(super) fn remove(path: &Path) -> Result<(), CacheError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}

fn write_synced(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    for part in parts {
        file.write_all(part)?;
    }
    file.sync_all()
}

/// Makes the name of a renamed file survive a power cut. Windows has no such call for folders.
fn sync_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if cfg!(unix) => File::open(folder)?.sync_all(),
        _ => Ok(()),
    }
}

/// Unique name beside `path`: its own, process, number of the write.
fn temporary(path: &Path) -> PathBuf {
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let number = WRITES.fetch_add(1, Ordering::Relaxed);
    path.with_extension(format!("{}-{number}.{TEMPORARY}", std::process::id()))
}

/// Removes temporary files of `path` that killed processes have left. Failures do not matter: the
/// next write tries again.
fn remove_abandoned(path: &Path) {
    let (Some(folder), Some(stem)) = (path.parent(), path.file_stem().and_then(OsStr::to_str)) else {
        return;
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_ours = name.to_str().is_some_and(|name| {
            name.strip_prefix(stem).is_some_and(|rest| rest.starts_with('.')) && name.ends_with(TEMPORARY)
        });
        let age = entry.metadata().ok().and_then(|metadata| metadata.modified().ok()?.elapsed().ok());
        if is_ours && age.is_some_and(|age| age > ABANDONED) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn failed<'p>(action: &'static str, path: &'p Path) -> impl Fn(io::Error) -> CacheError + 'p {
    move |source| CacheError::Io { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 100;

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key_v1.bin");
        (folder, path)
    }

    #[test]
    fn files_are_replaced_and_limited() {
        let (folder, path) = folder();
        assert!(read(&path, LIMIT).unwrap().is_none());
        for bytes in [&[1_u8, 2, 3][..], &[], &[9; LIMIT as usize]] {
            write(&path, &[bytes, bytes][..1]).unwrap();
            assert_eq!(read(&path, LIMIT).unwrap().as_deref(), Some(bytes));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        write(&path, &[&[0; LIMIT as usize], &[0]]).unwrap();
        assert!(matches!(read(&path, LIMIT), Err(CacheError::Oversized { bytes: 101, .. })));
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert!(read(&path, LIMIT).unwrap().is_none());
    }

    #[test]
    fn old_temporary_files_are_removed_and_other_files_are_not() {
        let (folder, path) = folder();
        let old = std::time::SystemTime::now() - 2 * ABANDONED;
        for (name, time) in [
            ("key_v1.1-0.tmp", Some(old)),
            ("key_v1.2-0.tmp", None),
            ("key_v10.1-0.tmp", Some(old)),
            ("key_v1.txt", Some(old)),
        ] {
            let file = File::create(folder.path().join(name)).unwrap();
            time.map(|time| file.set_modified(time)).transpose().unwrap();
        }
        write(&path, &[&[1]]).unwrap();
        let mut names: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["key_v1.2-0.tmp", "key_v1.bin", "key_v1.txt", "key_v10.1-0.tmp"]);
    }

    #[cfg(unix)]
    #[test]
    fn only_this_users_regular_files_are_used() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let (folder, path) = folder();
        let nested = folder.path().join("a/b");
        prepare_folder(&nested).unwrap();
        assert_eq!(mode(&nested), 0o700);
        write(&path, &[&[1]]).unwrap();
        assert_eq!(mode(&path), 0o600);

        set(&path, 0o620);
        assert!(matches!(read(&path, LIMIT), Err(CacheError::Shared { mode: 0o620, .. })));
        // Written anew with a mode of its own, not into the same file.
        write(&path, &[&[2]]).unwrap();
        assert_eq!((mode(&path), read(&path, LIMIT).unwrap()), (0o600, Some(vec![2])));

        set(&nested, 0o777);
        assert!(matches!(prepare_folder(&nested), Err(CacheError::Shared { .. })));
        assert!(matches!(read(&nested, LIMIT), Err(CacheError::NotAFile { .. })));

        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(matches!(read(&link, LIMIT), Err(CacheError::NotAFile { .. })));
        // The link is replaced, not followed.
        write(&link, &[&[3]]).unwrap();
        assert_eq!(read(&path, LIMIT).unwrap(), Some(vec![2]));
        assert_eq!(read(&link, LIMIT).unwrap(), Some(vec![3]));

        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(matches!(read(&pipe, LIMIT), Err(CacheError::NotAFile { .. })));
        assert!(matches!(prepare_folder(&path), Err(CacheError::Io { .. })));
    }
}
