//! Files that commands write: they appear complete or not at all.

use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process;

use crate::error::{Error, Result};

/// Path of a result, checked before the work begins.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// A regular file, links resolved; it may exist.
    File(PathBuf),
    /// A device or a pipe, which gets the bytes directly.
    Stream(PathBuf),
    /// Standard output.
    Stdout,
}

impl Destination {
    /// Checks the kind of `path`. Links are followed; `-` is standard output.
    ///
    /// # Errors
    /// A folder, a dangling link, an existing file without `force`, a missing parent folder, and a
    /// terminal as standard output.
    pub(crate) fn find(path: &Path, force: bool) -> Result<Self> {
        if path == Path::new("-") && io::stdout().is_terminal() {
            return Err(Error::BinaryToTerminal);
        }
        Self::find_text(path, force)
    }

    /// As [`find`](Self::find), for text, which a terminal may get.
    pub(crate) fn find_text(path: &Path, force: bool) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        let failed = |source| Error::WriteFile { path: path.to_owned(), source };
        let target = match path.canonicalize() {
            Ok(target) => target,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if path.is_symlink() {
                    return Err(Error::DanglingLink { path: path.to_owned() });
                }
                // A missing folder is reported before the work, not after it.
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                folder.map_or(Ok(()), |folder| fs::metadata(folder).map(drop)).map_err(failed)?;
                return Ok(Self::File(path.to_owned()));
            }
            Err(source) => return Err(failed(source)),
        };
        let kind = fs::metadata(&target).map_err(failed)?.file_type();
        if kind.is_dir() {
            Err(Error::Directory { path: path.to_owned() })
        } else if !kind.is_file() {
            Ok(Self::Stream(target))
        } else if force {
            Ok(Self::File(target))
        } else {
            Err(Error::OutputExists { path: path.to_owned() })
        }
    }

    /// Writes `bytes`: to a file as [`write()`] does, elsewhere directly.
    pub(crate) fn write(&self, bytes: &[u8], readers: Readers) -> Result<()> {
        self.write_with(readers, &mut |out| out.write_all(bytes).map_err(|source| self.failed(source)))
    }

    /// Writes the bytes that `content` writes, as they come; a file appears when all are there.
    pub(crate) fn write_with(&self, readers: Readers, content: &mut Content<'_>) -> Result<()> {
        let failed = |source| self.failed(source);
        match self {
            Self::File(path) => write_with(path, readers, content, &failed),
            Self::Stream(path) => {
                let stream = OpenOptions::new().write(true).open(path).map_err(failed)?;
                write_through(stream, content, &failed).map(drop)
            }
            Self::Stdout => write_through(io::stdout().lock(), content, &failed).map(drop),
        }
    }

    /// The error of a write.
    pub(crate) fn failed(&self, source: io::Error) -> Error {
        match self {
            Self::File(path) | Self::Stream(path) => Error::WriteFile { path: path.clone(), source },
            Self::Stdout => Error::WriteStdout(source),
        }
    }
}

/// Permissions of a new file; a replaced file keeps its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readers {
    /// As the user's umask allows.
    Umask,
    /// Owner alone (mode 0600).
    Owner,
}

/// Writer of a result's bytes.
pub(crate) type Content<'a, E = Error> = dyn FnMut(&mut dyn Write) -> Result<(), E> + 'a;

/// Writes content to `out` and flushes it.
fn write_through<W: Write, E>(
    out: W,
    content: &mut Content<'_, E>,
    failed: &dyn Fn(io::Error) -> E,
) -> Result<W, E> {
    let mut out = BufWriter::new(out);
    content(&mut out)?;
    out.into_inner().map_err(|error| failed(error.into_error()))
}

/// Writes `bytes` to a temporary file and renames it to `path` after a sync. Of a link, the target
/// is replaced.
pub(crate) fn write(path: &Path, bytes: &[u8], readers: Readers) -> io::Result<()> {
    write_with(path, readers, &mut |out| out.write_all(bytes), &|error| error)
}

/// As [`write()`], with the bytes that `content` writes.
fn write_with<E>(
    path: &Path,
    readers: Readers,
    content: &mut Content<'_, E>,
    failed: &dyn Fn(io::Error) -> E,
) -> Result<(), E> {
    let (path, temporary) = target_and_temporary(path);
    let written = create(&temporary, &path, readers)
        .map_err(failed)
        .and_then(|file| write_through(file, content, failed))
        .and_then(|file| file.sync_all().and_then(|()| fs::rename(&temporary, &path)).map_err(failed));
    if written.is_err() {
        // The first error is the one to report; a leftover file has a temporary file's name.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// The path with links resolved, and that of the file that will be renamed to it.
fn target_and_temporary(path: &Path) -> (PathBuf, PathBuf) {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", process::id()));
    let temporary = path.with_file_name(name);
    (path, temporary)
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

/// Creates `temporary`; its folder determines the permissions.
#[cfg(not(unix))]
fn create(temporary: &Path, _: &Path, _: Readers) -> io::Result<fs::File> {
    OpenOptions::new().write(true).create_new(true).open(temporary)
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn destinations_are_files_links_to_files_and_streams() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let (new, old, link, dangling) =
            (root.join("new"), root.join("old"), root.join("link"), root.join("dangling"));
        fs::write(&old, "old").unwrap();
        std::os::unix::fs::symlink(&old, &link).unwrap();
        std::os::unix::fs::symlink(root.join("nowhere"), &dangling).unwrap();
        assert_eq!(Destination::find(&new, false).unwrap(), Destination::File(new));
        for path in [&old, &link] {
            assert!(matches!(Destination::find(path, false), Err(Error::OutputExists { .. })));
            assert_eq!(Destination::find(path, true).unwrap(), Destination::File(old.clone()));
        }
        assert!(matches!(Destination::find(&dangling, true), Err(Error::DanglingLink { .. })));
        assert!(matches!(Destination::find(&root, true), Err(Error::Directory { .. })));
        let null = Path::new("/dev/null");
        assert_eq!(Destination::find(null, false).unwrap(), Destination::Stream(null.to_owned()));
        Destination::find(null, true).unwrap().write(b"bytes", Readers::Umask).unwrap();
        assert!(!fs::metadata(null).unwrap().is_file());
        write(&link, b"new", Readers::Umask).unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&old).unwrap(), b"new");
    }

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
