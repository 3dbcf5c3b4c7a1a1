#![doc = include_str!("../README.md")]
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
//! Accepted: gaps between tensors, data in another order than the list, bytes after the last
//! tensor, nested arrays (up to [`MAX_ARRAY_DEPTH`]), scalars without dimensions, tensors without
//! elements, non-finite floats. Refused: keys, names and string values that are not UTF-8, empty
//! keys and names, names longer than the format's limits, booleans other than 0 and 1, alignments
//! that are not a power of two of at least 8.
//!
//! # Source
//! The GGUF specification in ggml's documentation, `docs/gguf.md`.

#![deny(unsafe_code)]

mod bounded;
mod data;
mod error;
mod file;
mod format;
mod gguf;
mod header;
mod layout;
mod map;
mod memory;
mod metadata;
mod parse;
mod part;
mod reader;
mod split;
mod tensor_type;
mod value;
mod writer;

pub use bounded::read_bounded;
pub use data::TensorData;
pub use error::{Error, Place, Result};
pub use file::{FileWriter, write_atomic, write_file};
pub use format::{
    DEFAULT_ALIGNMENT, MAX_ARRAY_DEPTH, MAX_DIMS, MAX_HEADER_BYTES, MAX_KEY_BYTES, MAX_NAME_BYTES,
};
pub use gguf::Gguf;
pub use header::{Header, TensorInfo};
pub use memory::FileMemory;
pub use metadata::Metadata;
pub use reader::Reader;
pub use tensor_type::TensorType;
pub use value::{Array, Value, ValueType};
pub use writer::Writer;
