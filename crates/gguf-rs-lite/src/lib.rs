//! Reads and writes GGUF, the file format of quantized language models.
//!
//! **What it is:** a reader for versions 2 and 3 that maps the file and copies no tensor data ([`Gguf`]), a reader for
//! any seekable stream ([`Reader`]), and a streaming writer of version 3 ([`Writer`], [`write_file`]). It knows every
//! metadata type, every tensor type and its block geometry, and models split into several files. Files are not
//! trusted: whatever the bytes, the answer is a value or a typed [`Error`] that names the byte and the field, never a
//! panic, and never an allocation out of proportion to the file.
//!
//! **What it is not:** it does not know what a model does with its tensors, it does not quantize or dequantize, and it
//! gives metadata keys no meaning beyond `general.alignment` and `split.*`. Files of version 1 and big-endian files
//! are refused.
//!
//! # Example: look into a file
//!
//! ```
//! use gguf_rs_lite::Gguf;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("model.gguf");
//! # let metadata = [("general.architecture", "llama")].into_iter().collect();
//! # let tensors = [gguf_rs_lite::TensorInfo::new("t", [32, 2], gguf_rs_lite::TensorType::Q8_0)?];
//! # gguf_rs_lite::write_file(&path, &metadata, tensors, |w| w.write_tensor("t", &[0; 68]))?;
//! let model = Gguf::open(&path)?;
//! println!("GGUF version {} in {} file(s)", model.version(), model.parts());
//! println!("architecture: {:?}", model.metadata().get_str("general.architecture")?);
//! for tensor in model.tensors() {
//!     let (rows, cols) = tensor.rows_cols();
//!     println!("{:40} {} {rows} x {cols}, {} bytes", tensor.name, tensor.tensor_type, tensor.bytes());
//!     let data = model.data(tensor)?; // no copy: borrows the mapping, and keeps it alive
//!     assert_eq!(data.len() as u64, tensor.bytes());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Main types
//!
//! ```text
//! Gguf ── Header (one per file) ─┬─ Metadata ── Value ── Array
//!   │                            └─ TensorInfo ── TensorType
//!   └─ TensorData (shares the mapping)
//! Reader<R> ── Header            Writer<W> takes Metadata and TensorInfos
//! ```
//!
//! # Choices where the format leaves room
//!
//! Accepted: gaps between tensors, data in another order than the list, bytes after the last tensor, nested arrays
//! (up to [`MAX_ARRAY_DEPTH`]), scalars without dimensions, tensors without elements, non-finite floats.
//! Refused: keys, names and string values that are not UTF-8, empty keys and names, names longer than the format's
//! limits, booleans other than 0 and 1, alignments that are not a power of two of at least 8.
//!
//! # Source
//! The GGUF specification in ggml's documentation, `docs/gguf.md`.

#![deny(unsafe_code)]

mod data;
mod error;
mod file;
mod format;
mod gguf;
mod header;
mod layout;
mod map;
mod metadata;
mod parse;
mod part;
mod reader;
mod split;
mod tensor_type;
mod value;
mod writer;

pub use data::TensorData;
pub use error::{Error, Place, Result};
pub use file::{FileWriter, write_file};
pub use format::{
    DEFAULT_ALIGNMENT, MAX_ARRAY_DEPTH, MAX_DIMS, MAX_HEADER_BYTES, MAX_KEY_BYTES, MAX_NAME_BYTES,
};
pub use gguf::Gguf;
pub use header::{Header, TensorInfo};
pub use metadata::Metadata;
pub use reader::Reader;
pub use tensor_type::TensorType;
pub use value::{Array, Value, ValueType};
pub use writer::Writer;
