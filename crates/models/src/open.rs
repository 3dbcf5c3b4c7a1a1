//! Opening a model by its path, whichever form it has.

use std::path::Path;

use gguf_rs_lite::Gguf;

use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::hf::HfFolder;

/// Opens a GGUF file (of a split model any part) or a Hugging Face folder.
///
/// # Errors
/// Those of [`Gguf::open`] and [`HfFolder::open`].
pub fn open_checkpoint(path: impl AsRef<Path>) -> Result<Box<dyn Checkpoint>> {
    let path = path.as_ref();
    Ok(if path.is_dir() { Box::new(HfFolder::open(path)?) } else { Box::new(Gguf::open(path)?) })
}
