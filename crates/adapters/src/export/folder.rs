//! Atomic writes of a folder of an adapter: weights, and the configuration without which they are
//! none.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;

use gguf_rs_lite::write_atomic;

use super::failed;
use crate::error::{Error, Result};
use crate::format::peft::CONFIG;

/// Files of a folder by name; the configuration comes last.
pub(super) type Files = [(&'static str, Vec<u8>); 2];

/// Writes the files to a new folder, or replaces those of an adapter.
pub(super) fn write(path: &Path, files: &Files) -> Result<()> {
    if is_adapter(path) {
        return update(path, files);
    }
    write_new_folder(path, |folder| {
        files.iter().try_for_each(|(name, bytes)| write_file(&folder.join(name), bytes, path))
    })
}

/// Writes a new folder atomically: `fill` gets a temporary one beside it, which is renamed when it
/// is complete and removed on failure.
///
/// # Errors
/// [`Error::Exists`] if `path` exists; [`Error::Write`] for errors of the file system; errors
/// of `fill`.
pub fn write_new_folder<E: From<Error>>(
    path: &Path,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    if path.symlink_metadata().is_ok() {
        return Err(Error::Exists { path: path.to_owned() }.into());
    }
    let temporary = Temporary::create(path).map_err(failed(path))?;
    fill(&temporary.0)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Names within the folder first, then the folder's own.
    sync(&temporary.0).and_then(|()| fs::rename(&temporary.0, path)).map_err(failed(path))?;
    Ok(sync(parent).map_err(failed(path))?)
}

/// True for a folder with the configuration of an adapter.
pub(super) fn is_adapter(path: &Path) -> bool {
    path.join(CONFIG).is_file()
}

/// Replaces the files of a folder that holds an adapter. Without its configuration it holds none:
/// no reader finds the weights of one and the configuration of another.
fn update(path: &Path, files: &Files) -> Result<()> {
    fs::remove_file(path.join(CONFIG)).and_then(|()| sync(path)).map_err(failed(path))?;
    files.iter().try_for_each(|(name, bytes)| write_file(&path.join(name), bytes, path))
}

/// Writes one file; errors name the result.
fn write_file(file: &Path, bytes: &[u8], result: &Path) -> Result<()> {
    write_atomic(file, |mut out| match out.write_all(bytes) {
        Ok(()) => Ok(out),
        Err(source) => Err(gguf_rs_lite::Error::File { action: "write", path: file.to_owned(), source }),
    })
    .map_err(failed(result))
}

/// Makes names in a folder durable. Only Unix can flush a folder.
fn sync(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// Folder that is removed unless renamed.
struct Temporary(PathBuf);

impl Temporary {
    /// Creates a folder beside `target`.
    fn create(target: &Path) -> io::Result<Self> {
        let name = target.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.tmp", process::id()));
        let path = target.with_file_name(hidden);
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After the rename there is nothing of this name; before it, the first error is reported.
        let _ = fs::remove_dir_all(&self.0);
    }
}
