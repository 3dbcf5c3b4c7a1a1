//! The file of measured tiles, beside that of the pipelines.

use std::path::{Path, PathBuf};

use super::{CacheError, files};
use crate::adapter::AdapterInfo;
use crate::kernel::Target;
use crate::tuning::Tuning;

/// Maximum size of the file in bytes: some thousand lines.
const LIMIT: u64 = 1 << 20;

impl AdapterInfo {
    /// File in `folder` of the tiles that were measured on this adapter with its driver.
    pub fn tiles_file(&self, folder: &Path) -> PathBuf {
        let name = format!("{} {} {}", self.backend, self.name, self.driver);
        let safe = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '_' };
        folder.join(format!("{}.tiles", name.chars().map(safe).take(200).collect::<String>()))
    }
}

/// Reads tiles; `None` without a file.
///
/// # Errors
/// [`CacheError`] for a file that cannot be read or used.
pub(crate) fn read(path: &Path, info: &AdapterInfo, target: Target) -> Result<Option<Tuning>, CacheError> {
    let Some(bytes) = files::read(path, LIMIT)? else { return Ok(None) };
    let text = std::str::from_utf8(&bytes).or(Err("it is no text"));
    let tuning = text.and_then(|text| Tuning::from_text(text, info, target));
    tuning.map(Some).map_err(|reason| CacheError::Damaged { path: path.to_owned(), reason })
}

/// Replaces the file.
///
/// # Errors
/// [`CacheError`] if the folder cannot be used or the file not be written.
pub(crate) fn write(path: &Path, tuning: &Tuning) -> Result<(), CacheError> {
    if let Some(folder) = path.parent() {
        files::prepare_folder(folder)?;
    }
    files::write(path, &[tuning.to_text().as_bytes()])
}
