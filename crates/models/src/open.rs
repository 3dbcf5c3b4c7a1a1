//! Opening a model of either format by its path.

use std::path::Path;

use gguf_rs_lite::{FileMemory, Gguf};

use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::hf::HfFolder;

/// Opens a GGUF file (of a split model any part) or a Hugging Face folder, mapped.
///
/// # Errors
/// As [`Gguf::open`] and [`HfFolder::open`].
pub fn open_checkpoint(path: impl AsRef<Path>) -> Result<Box<dyn Checkpoint>> {
    open_checkpoint_in(path, FileMemory::default())
}

/// As [`open_checkpoint`], with the weight files mapped or read (`memory`).
///
/// # Errors
/// As [`Gguf::open_in`] and [`HfFolder::open_in`].
pub fn open_checkpoint_in(path: impl AsRef<Path>, memory: FileMemory) -> Result<Box<dyn Checkpoint>> {
    let path = path.as_ref();
    Ok(match path.is_dir() {
        true => Box::new(HfFolder::open_in(path, memory)?),
        false => Box::new(Gguf::open_in(path, memory)?),
    })
}
