//! Opening and creating files in the folder, and the checks of it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

use crate::prefix::PrefixError;

/// Permission bits that let the group or others write.
#[cfg(unix)]
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Opens a regular file to read; `None` if the path names anything else: a symbolic link is not
/// followed, a pipe is not waited for.
///
/// # Errors
/// Errors of the system, [`io::ErrorKind::NotFound`] among them.
pub fn open_regular(path: &Path) -> io::Result<Option<File>> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Ok(None);
    }
    let mut options = OpenOptions::new();
    options.read(true);
    // Also if it has been replaced since.
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags.bits().cast_signed());
    }
    let file = options.open(path)?;
    Ok(file.metadata()?.is_file().then_some(file))
}

/// Creates a file to write, readable and writable by this user only.
///
/// # Errors
/// Errors of the system; [`io::ErrorKind::AlreadyExists`] if the path names anything, a dangling
/// link included.
pub fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    // The keys and values of a prompt tell what was in it.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Gives the folder's group read permission (mode 0640) on a file that the group owns, if the group
/// may write to the folder. Other users get none. No effect on Windows.
///
/// # Errors
/// Errors of the system.
pub fn share_with_group(file: &File, folder: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let folder = fs::metadata(folder)?;
        // In a folder without the set-group-ID bit files have their user's first group, which may
        // be that of everybody.
        if folder.mode() & 0o020 != 0 && folder.gid() == file.metadata()?.gid() {
            file.set_permissions(fs::Permissions::from_mode(0o640))?;
        }
    }
    #[cfg(not(unix))]
    let _ = (file, folder);
    Ok(())
}

/// Refuses a folder that somebody else owns or may write to. Windows has no such bits; its folders
/// inherit the access lists of the user's profile.
pub(super) fn check_folder(path: &Path) -> Result<(), PrefixError> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let source = |source| PrefixError::File { action: "look at", path: path.to_path_buf(), source };
        let folder = fs::metadata(path).map_err(source)?;
        let (owner, user) = (folder.uid(), rustix::process::geteuid().as_raw());
        if owner != user {
            return Err(PrefixError::ForeignFolder { path: path.to_path_buf(), owner, user });
        }
        let mode = folder.mode() & 0o7777;
        if mode & WRITABLE_BY_OTHERS != 0 {
            return Err(PrefixError::SharedFolder { path: path.to_path_buf(), mode });
        }
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}
