//! Files that commands write: they appear complete or not at all.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::process;

/// Readers of a new file. A file that is replaced keeps its permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readers {
    /// Permissions that the user's umask allows.
    Umask,
    /// The user alone (mode 0600).
    Owner,
}

/// Writes `bytes` beside `path` and renames them there once they are on the disk.
pub(crate) fn write(path: &Path, bytes: &[u8], readers: Readers) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", process::id()));
    let temporary = path.with_file_name(name);
    let written = create(&temporary, path, readers)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is the one to report; a file that is left over names itself as temporary.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Creates `temporary` with the permissions of the file that it replaces, before it holds anything.
#[cfg(unix)]
fn create(temporary: &Path, replaced: &Path, readers: Readers) -> io::Result<fs::File> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let kept = fs::metadata(replaced).ok().map(|file| file.permissions().mode() & 0o777);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    if kept.is_some() || readers == Readers::Owner {
        options.mode(0o600);
    }
    let file = options.open(temporary)?;
    if let Some(mode) = kept {
        file.set_permissions(fs::Permissions::from_mode(mode))?;
    }
    Ok(file)
}

/// Creates `temporary`; its folder decides who reads it.
#[cfg(not(unix))]
fn create(temporary: &Path, _: &Path, _: Readers) -> io::Result<fs::File> {
    OpenOptions::new().write(true).create_new(true).open(temporary)
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn replaced_files_keep_their_permissions_and_private_ones_are_born_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        write(&path, b"1", Readers::Owner).unwrap();
        assert_eq!(mode(), 0o600);
        for kept in [0o600, 0o640, 0o664, 0o400] {
            for readers in [Readers::Owner, Readers::Umask] {
                fs::set_permissions(&path, fs::Permissions::from_mode(kept)).unwrap();
                write(&path, b"2", readers).unwrap();
                assert_eq!(mode(), kept, "{readers:?}");
            }
        }
        let other = folder.path().join("other");
        fs::write(&other, "").unwrap();
        let usual = fs::metadata(&other).unwrap().permissions().mode() & 0o777;
        fs::remove_file(&path).unwrap();
        write(&path, b"3", Readers::Umask).unwrap();
        assert_eq!(mode(), usual);
    }
}
