//! Memory mapping of files: the only `unsafe` code of the crate.

use std::{
    fs::{self, File},
    path::Path,
};

use memmap2::Mmap;

use crate::error::{Error, Result};

/// Opens a regular file for reading.
pub(crate) fn open_file(path: &Path) -> Result<File> {
    let failed = |source| Error::File { action: "open", path: path.to_owned(), source };
    // Before opening, because opening a pipe would wait for its other end.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(Error::NotAFile { path: path.to_owned() });
    }
    File::open(path).map_err(failed)
}

/// Maps a file read-only.
#[allow(unsafe_code, reason = "a file mapping cannot be had without")]
pub(crate) fn map_file(path: &Path) -> Result<Mmap> {
    let file = open_file(path)?;
    // SAFETY: the mapping is private, read-only and only seen as `&[u8]`, for which any content is
    // valid. That nobody changes or shortens the file meanwhile is the caller's obligation, which
    // `Gguf::open` documents.
    unsafe { Mmap::map(&file) }.map_err(|source| Error::File { action: "map", path: path.to_owned(), source })
}
