//! The formats of adapter files.

mod compact;
pub(crate) mod gguf;
mod names;
mod patterns;
pub(crate) mod peft;
mod refused;
mod simple;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, Result};
use crate::file::LoraFile;

impl LoraFile {
    /// Opens a PEFT folder (`adapter_config.json` beside `adapter_model.safetensors`), its
    /// `.safetensors` file, a GGUF adapter, or a compact file.
    ///
    /// # Errors
    /// A file that cannot be read, is damaged or no LoRA adapter, and adapters that do more than
    /// LoRA does.
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_dir() {
            return peft::open(path);
        }
        let mut magic = [0; 4];
        let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
        match read {
            Ok(()) if &magic == b"GGUF" => gguf::open(path),
            Ok(()) if magic == compact::MAGIC => compact::open(path),
            Ok(()) if path.extension().is_some_and(|extension| extension == "safetensors") => {
                peft::open_weights(path)
            }
            Ok(()) => Err(Error::Unknown { path: path.to_owned() }),
            Err(source) if source.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(Error::Unknown { path: path.to_owned() })
            }
            Err(source) => Err(Error::Read { path: path.to_owned(), source }),
        }
    }
}
