//! Mapping a file into memory: the only `unsafe` code of the crate.

use std::{
    fs::{self, File},
    path::Path,
};

use memmap2::Mmap;

use crate::error::{Error, Result};

/// Maps a file read-only.
#[allow(unsafe_code, reason = "a file mapping cannot be had without")]
pub(crate) fn map_file(path: &Path) -> Result<Mmap> {
    let failed = |action| move |source| Error::File { action, path: path.to_owned(), source };
    // Before opening, because opening a pipe would wait for its other end.
    if !fs::metadata(path).map_err(failed("open"))?.is_file() {
        return Err(Error::NotAFile { path: path.to_owned() });
    }
    let file = File::open(path).map_err(failed("open"))?;
    // SAFETY: the mapping is private, read-only and only seen as `&[u8]`, for which any content is
    // valid. That nobody changes or shortens the file meanwhile is the caller's obligation, which
    // `Gguf::open` documents.
    unsafe { Mmap::map(&file) }.map_err(failed("map"))
}
