//! Files that are replaced as a whole.

use std::fs::{self, OpenOptions};
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
            fs::File::open(folder)?.sync_all()?;
        }
        Ok(())
    };
    write().map_err(|error| {
        // The first error is the one to report.
        let _ = fs::remove_file(&part);
        Error::File { path: path.to_owned(), error }
    })
}
