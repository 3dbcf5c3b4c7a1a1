//! Folders of the store, opened without following symbolic links: what is deleted in one is in it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

pub(super) use system::Folder;

/// Something in a folder.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: OsString,
    /// True for a folder itself, not for a link to one.
    pub(super) is_folder: bool,
    /// Length of a regular file; 0 for anything else.
    pub(super) bytes: u64,
    /// Bytes of it that take room on the disk; a partial file has holes.
    pub(super) disk_bytes: u64,
}

/// One name, so that nothing is reached through it but what is in the folder.
fn one_name(name: &OsStr) -> io::Result<&OsStr> {
    let mut components = Path::new(name).components();
    match (components.next(), components.next()) {
        (Some(std::path::Component::Normal(only)), None) if only == name => Ok(name),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not one name")),
    }
}

#[cfg(unix)]
mod system {
    use std::os::fd::OwnedFd;
    use std::os::unix::ffi::OsStrExt;

    use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags};

    use super::*;

    /// A folder that stays the same one, whatever becomes of its path.
    #[derive(Debug)]
    pub(in crate::store) struct Folder {
        fd: OwnedFd,
        path: PathBuf,
    }

    impl Folder {
        /// The folder at `path`, which the user has named and may be a link.
        pub(in crate::store) fn open(path: &Path) -> io::Result<Self> {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            Ok(Self { fd: fs::open(path, flags, Mode::empty())?, path: path.to_owned() })
        }

        /// A folder in this one; a link is an error.
        pub(in crate::store) fn child(&self, name: &OsStr) -> io::Result<Self> {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = fs::openat(&self.fd, one_name(name)?, flags, Mode::empty())?;
            Ok(Self { fd, path: self.path.join(name) })
        }

        pub(in crate::store) fn path(&self) -> &Path {
            &self.path
        }

        /// The entry of a name, if there is one.
        pub(in crate::store) fn entry(&self, name: &OsStr) -> io::Result<Option<Entry>> {
            let stat = match fs::statat(&self.fd, one_name(name)?, AtFlags::SYMLINK_NOFOLLOW) {
                Err(rustix::io::Errno::NOENT) => return Ok(None),
                stat => stat?,
            };
            let kind = FileType::from_raw_mode(stat.st_mode);
            let bytes = if kind.is_file() { u64::try_from(stat.st_size).unwrap_or(0) } else { 0 };
            let allocated = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
            let disk_bytes = bytes.min(allocated);
            Ok(Some(Entry { name: name.to_owned(), is_folder: kind.is_dir(), bytes, disk_bytes }))
        }

        /// Everything in it. An entry that goes away meanwhile is left out.
        pub(in crate::store) fn entries(&self) -> io::Result<Vec<Entry>> {
            let mut found = Vec::new();
            for entry in Dir::read_from(&self.fd)? {
                let entry = entry?;
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                if name != "." && name != ".." {
                    found.extend(self.entry(name)?);
                }
            }
            Ok(found)
        }

        /// Removes an entry that is no folder; of a link, the link.
        pub(in crate::store) fn remove_file(&self, name: &OsStr) -> io::Result<()> {
            Ok(fs::unlinkat(&self.fd, one_name(name)?, AtFlags::empty())?)
        }

        /// Removes an empty folder.
        pub(in crate::store) fn remove_folder(&self, name: &OsStr) -> io::Result<()> {
            Ok(fs::unlinkat(&self.fd, one_name(name)?, AtFlags::REMOVEDIR)?)
        }
    }
}

#[cfg(not(unix))]
mod system {
    use std::fs::{self, Metadata};

    use super::*;

    /// A folder by its path: this system has no operations below an open folder.
    #[derive(Debug)]
    pub(in crate::store) struct Folder {
        path: PathBuf,
    }

    impl Folder {
        /// The folder at `path`, which the user has named and may be a link.
        pub(in crate::store) fn open(path: &Path) -> io::Result<Self> {
            fs::metadata(path).map(|_| Self { path: path.to_owned() })
        }

        /// A folder in this one; a link is an error.
        pub(in crate::store) fn child(&self, name: &OsStr) -> io::Result<Self> {
            let path = self.path.join(one_name(name)?);
            match fs::symlink_metadata(&path)?.is_dir() {
                true => Ok(Self { path }),
                false => Err(io::Error::new(io::ErrorKind::NotADirectory, "it is not a folder")),
            }
        }

        pub(in crate::store) fn path(&self) -> &Path {
            &self.path
        }

        /// The entry of a name, if there is one.
        pub(in crate::store) fn entry(&self, name: &OsStr) -> io::Result<Option<Entry>> {
            let found: Metadata = match fs::symlink_metadata(self.path.join(one_name(name)?)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                found => found?,
            };
            let bytes = if found.is_file() { found.len() } else { 0 };
            let is_folder = found.is_dir();
            Ok(Some(Entry { name: name.to_owned(), is_folder, bytes, disk_bytes: bytes }))
        }

        /// Everything in it. An entry that goes away meanwhile is left out.
        pub(in crate::store) fn entries(&self) -> io::Result<Vec<Entry>> {
            let mut found = Vec::new();
            for entry in fs::read_dir(&self.path)? {
                found.extend(self.entry(&entry?.file_name())?);
            }
            Ok(found)
        }

        /// Removes an entry that is no folder; of a link, the link.
        pub(in crate::store) fn remove_file(&self, name: &OsStr) -> io::Result<()> {
            let path = self.path.join(one_name(name)?);
            // A link to a folder is removed as a folder is.
            fs::remove_file(&path).or_else(|_| fs::remove_dir(&path))
        }

        /// Removes an empty folder.
        pub(in crate::store) fn remove_folder(&self, name: &OsStr) -> io::Result<()> {
            fs::remove_dir(self.path.join(one_name(name)?))
        }
    }
}
