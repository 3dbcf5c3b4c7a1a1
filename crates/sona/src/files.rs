//! Files that their owner alone can read: replaced as a whole, or opened for a database.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use crate::error::{Error, Result};

/// Writes a file that its owner alone can read; it replaces a former one as a whole.
///
/// # Errors
/// [`Error::File`]; a former file stays as it was.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let part = path.with_extension("part");
    let write = || -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&part)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&part, path)?;
        // The new name is on the disk once its folder is.
        #[cfg(unix)]
        if let Some(folder) = path.parent() {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    };
    write().map_err(|error| {
        // The first error is the one to report.
        let _ = fs::remove_file(&part);
        Error::File { path: path.to_owned(), error }
    })
}

/// Opens a file for reading and writing, made now if there is none.
///
/// # Errors
/// Errors of the system.
pub(crate) fn open_private(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let is_new = !path.exists();
    let file = options.open(path)?;
    #[cfg(unix)]
    if is_new {
        // The file's name is durable too.
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(file)
}
