//! Error type of the crate, and the position in a file that it refers to.

use std::{fmt, io, path::PathBuf};

use crate::TensorType;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Position of an error in a file: byte offset and field.
///
/// The offset is relative to the start of the file. It is absent without a position, as in errors
/// of a writer about its input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Byte offset from the start of the file, if known.
    pub offset: Option<u64>,
    /// Field in words, for example `tensor "output.weight" dimension 1`.
    pub field: String,
}

impl Place {
    pub(crate) fn at(offset: u64, field: impl fmt::Display) -> Self {
        Self { offset: Some(offset), field: field.to_string() }
    }

    pub(crate) fn of(field: impl fmt::Display) -> Self {
        Self { offset: None, field: field.to_string() }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.offset {
            Some(offset) => write!(f, "byte {offset}, {}", self.field),
            None => f.write_str(&self.field),
        }
    }
}

/// Field being read; formatted only when an error needs the text.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Field<'a> {
    /// Field of the file header.
    File(&'static str),
    /// Metadata entry with an unknown key.
    Entry(u64, &'static str),
    /// Metadata entry, by key.
    Key(&'a str, &'static str),
    /// Tensor with an unknown name.
    Tensor(u64, &'static str),
    /// Tensor, by name.
    Named(&'a str, &'static str),
}

impl fmt::Display for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::File(part) => f.write_str(part),
            Self::Entry(index, part) => write!(f, "metadata entry {index} {part}"),
            Self::Key(key, part) => write!(f, "metadata {} {part}", Quoted(key)),
            Self::Tensor(index, part) => write!(f, "tensor {index} {part}"),
            Self::Named(name, part) => write!(f, "tensor {} {part}", Quoted(name)),
        }
    }
}

/// Name from an untrusted file, escaped and truncated for one line of a terminal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quoted<'a>(pub(crate) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_CHARS: usize = 80;
        match self.0.char_indices().nth(MAX_CHARS) {
            Some((end, _)) => write!(f, "{:?}...", &self.0[..end]),
            None => write!(f, "{:?}", self.0),
        }
    }
}

/// Errors of opening, reading and writing GGUF files.
///
/// Errors about the content of a file carry the [`Place`]; see [`Error::place`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a file operation.
    #[error("cannot {action} {}", path.display())]
    File {
        /// Failed action, for example `open`.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The path names a directory, a device or a pipe.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// Path of the file.
        path: PathBuf,
    },
    /// The bytes of a model could not be locked in memory (`mlock`).
    #[error(
        "cannot lock {bytes} bytes of {name} in memory: the limit of locked memory (RLIMIT_MEMLOCK) {}; \
         raise it with `ulimit -l`",
        limit.map_or_else(|| "may be too low".to_owned(), |limit| format!("is {limit} bytes"))
    )]
    Lock {
        /// Name of the file.
        name: String,
        /// Length in bytes.
        bytes: u64,
        /// Limit of lockable bytes of the process; `None` if unknown or unlimited.
        limit: Option<u64>,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// Reading from the given source failed.
    #[error("{place}: cannot read")]
    Read {
        /// Position and field of the read.
        place: Place,
        /// Error of the source.
        #[source]
        source: io::Error,
    },
    /// Writing to the given sink failed; what was written so far is not a valid file.
    #[error("cannot write GGUF data")]
    Write {
        /// Error of the sink.
        #[source]
        source: io::Error,
    },
    /// The file ends before a field does.
    #[error("{place}: the file ends here: {needed} bytes needed, {available} left")]
    Truncated {
        /// Truncated field.
        place: Place,
        /// Bytes required by the field.
        needed: u64,
        /// Bytes left in the file.
        available: u64,
    },
    /// The header exceeds [`MAX_HEADER_BYTES`](crate::MAX_HEADER_BYTES).
    #[error("{place}: metadata and tensor list take more than {limit} bytes")]
    HeaderTooLarge {
        /// Field that crosses the limit.
        place: Place,
        /// Limit in bytes.
        limit: u64,
    },
    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file: it begins with bytes {:02x} {:02x} {:02x} {:02x}", found[0], found[1], found[2], found[3])]
    BadMagic {
        /// Bytes found.
        found: [u8; 4],
    },
    /// The format version is neither 2 nor 3.
    #[error("byte 4, version: GGUF version {version} is not supported, only 2 and 3 are")]
    UnsupportedVersion {
        /// Version found.
        version: u32,
    },
    /// The file was written on a big-endian machine; convert it first.
    #[error(
        "byte 4, version: the file is big-endian GGUF version {version}; only little-endian files are supported"
    )]
    BigEndian {
        /// Version, read as big-endian.
        version: u32,
    },
    /// A count exceeds the number of items that the rest of the file can hold.
    #[error("{place}: {count} items announced, but at most {limit} fit into the rest of the file")]
    CountTooLarge {
        /// Position of the count.
        place: Place,
        /// Count found.
        count: u64,
        /// Largest count that fits the remaining bytes.
        limit: u64,
    },
    /// A string exceeds the limit of the format, or the rest of the file.
    #[error("{place}: a string of {len} bytes, at most {limit} are possible here")]
    StringTooLong {
        /// Position of the string.
        place: Place,
        /// Length in bytes.
        len: u64,
        /// Largest possible length.
        limit: u64,
    },
    /// A string is not UTF-8.
    #[error("{place}: not valid UTF-8")]
    InvalidUtf8 {
        /// Position of the string; the offset is that of the first invalid byte.
        place: Place,
    },
    /// A key or a tensor name is empty.
    #[error("{place}: empty name")]
    EmptyName {
        /// Position of the name.
        place: Place,
    },
    /// A metadata key occurs twice.
    #[error("{place}: duplicate key")]
    DuplicateKey {
        /// Position of the second occurrence.
        place: Place,
    },
    /// A value type tag that the format does not define.
    #[error("{place}: unknown value type {tag}")]
    UnknownValueType {
        /// Position of the tag.
        place: Place,
        /// Tag found.
        tag: u32,
    },
    /// A boolean byte that is neither 0 nor 1.
    #[error("{place}: a boolean must be 0 or 1, found {value}")]
    BadBool {
        /// Position of the boolean.
        place: Place,
        /// Byte found.
        value: u8,
    },
    /// Arrays are nested deeper than [`MAX_ARRAY_DEPTH`](crate::MAX_ARRAY_DEPTH).
    #[error("{place}: arrays nested deeper than {limit}")]
    ArrayTooDeep {
        /// Position of the array that exceeds the depth.
        place: Place,
        /// Depth limit.
        limit: usize,
    },
    /// `general.alignment` is not a `u32` power of two of at least 8.
    #[error("{place}: alignment must be a u32 power of two of at least 8, found {found}")]
    BadAlignment {
        /// Position of the value.
        place: Place,
        /// Value found.
        found: String,
    },
    /// A tensor type tag that the format does not define.
    #[error("{place}: unknown tensor type {tag}")]
    UnknownTensorType {
        /// Position of the tag.
        place: Place,
        /// Tag found.
        tag: u32,
    },
    /// A tensor type removed from the format; convert the model again with a current type.
    #[error("{place}: tensor type {tag} ({name}) was removed from the format")]
    RemovedTensorType {
        /// Position of the tag.
        place: Place,
        /// Tag found.
        tag: u32,
        /// Former name of the type.
        name: &'static str,
    },
    /// A tensor has more dimensions than [`MAX_DIMS`](crate::MAX_DIMS).
    #[error("{place}: {n_dims} dimensions, at most {limit} are allowed")]
    TooManyDims {
        /// Position of the dimension count.
        place: Place,
        /// Dimension count found.
        n_dims: u64,
        /// Limit of dimensions.
        limit: usize,
    },
    /// The number of elements or bytes of a tensor exceeds 63 bits.
    #[error("{place}: shape {dims:?} overflows")]
    ShapeOverflow {
        /// Position of the dimensions.
        place: Place,
        /// Dimensions, fastest first.
        dims: Vec<u64>,
    },
    /// A tensor's rows are not whole blocks of its type.
    #[error("{place}: rows of {row_len} values are not whole {tensor_type} blocks of {block_len}")]
    BlockMisfit {
        /// Position of the dimensions.
        place: Place,
        /// Values per row.
        row_len: u64,
        /// Type of the tensor.
        tensor_type: TensorType,
        /// Values per block of that type.
        block_len: u64,
    },
    /// Two tensors have the same name.
    #[error("{place}: duplicate tensor name")]
    DuplicateTensor {
        /// Position of the second tensor.
        place: Place,
    },
    /// A tensor's data does not start at a multiple of the alignment.
    #[error("{place}: data offset {data_offset} is not a multiple of the alignment {alignment}")]
    MisalignedTensor {
        /// Position of the offset field.
        place: Place,
        /// Offset found, relative to the data section.
        data_offset: u64,
        /// Alignment of the file in bytes.
        alignment: u64,
    },
    /// A tensor's data exceeds the file: truncated file or wrong header.
    #[error(
        "{place}: {bytes} bytes at data offset {data_offset} reach beyond the end of the file ({file_len} bytes, data section at {data_start})"
    )]
    TensorOutOfFile {
        /// Position of the tensor entry.
        place: Place,
        /// Offset found, relative to the data section.
        data_offset: u64,
        /// Size of the tensor in bytes.
        bytes: u64,
        /// Start of the data section, in bytes from the start of the file.
        data_start: u64,
        /// Length of the file in bytes.
        file_len: u64,
    },
    /// The data of two tensors overlap.
    #[error("{place}: data overlaps that of tensor {other:?}")]
    TensorOverlap {
        /// Position of the tensor that starts inside another one.
        place: Place,
        /// Name of the other tensor.
        other: String,
    },
    /// A metadata value has another type than requested.
    #[error("metadata {key:?} is {found}, expected {expected}")]
    MetadataType {
        /// Requested key.
        key: String,
        /// Requested type.
        expected: &'static str,
        /// Type found.
        found: String,
    },
    /// A metadata number is outside of the requested range.
    #[error("metadata {key:?} is {value}, expected {expected}")]
    MetadataRange {
        /// Requested key.
        key: String,
        /// Requested range.
        expected: &'static str,
        /// Value found.
        value: String,
    },
    /// No tensor has the requested name.
    #[error("no tensor named {}", Quoted(name))]
    NoTensor {
        /// Requested name.
        name: String,
    },
    /// A read beyond the end of one tensor's data.
    #[error("tensor {}: bytes {start}..{end} asked for, it has {bytes}", Quoted(name))]
    BeyondTensor {
        /// Name of the tensor.
        name: String,
        /// Start of the requested range.
        start: u64,
        /// End of the requested range.
        end: u64,
        /// Length of the tensor data.
        bytes: u64,
    },
    /// A part of a split model with a name that does not identify the other parts.
    ///
    /// The name must end in `-00001-of-00003.gguf` (with the part's own numbers).
    #[error(
        "{} says it is part {part} of {count}, but its name does not end in \"-{part:05}-of-{count:05}.gguf\"",
        path.display()
    )]
    SplitName {
        /// The file opened.
        path: PathBuf,
        /// Its part number from its metadata, counted from 1.
        part: u64,
        /// The number of parts from its metadata.
        count: u64,
    },
    /// Bytes in memory are one part of a split model; such a model can only be opened by path.
    #[error("these bytes are one part of a model split into {count} files; open it by path")]
    SplitInMemory {
        /// The number of parts.
        count: u64,
    },
    /// The parts of a split model do not belong together.
    #[error("{}: {key} is {found}, expected {expected}", path.display())]
    SplitMismatch {
        /// The part in question.
        path: PathBuf,
        /// The metadata key that disagrees.
        key: &'static str,
        /// The value that the other parts imply.
        expected: u64,
        /// The value found, or `absent`.
        found: String,
    },
    /// A part of a split model could not be opened.
    #[error("part {} of a split model", path.display())]
    SplitPart {
        /// The part.
        path: PathBuf,
        /// The reason.
        #[source]
        source: Box<Error>,
    },
    /// Tensor data was given to a writer for another tensor than the next one declared.
    #[error("data for tensor {} given, but {} comes next", Quoted(given), expected.as_deref().unwrap_or("the end"))]
    TensorOrder {
        /// The tensor whose data was given.
        given: String,
        /// The tensor declared next, or none when all are written.
        expected: Option<String>,
    },
    /// A writer got more or fewer bytes for a tensor than its declaration says.
    #[error("tensor {} takes {expected} bytes, {given} given", Quoted(name))]
    TensorSize {
        /// The tensor.
        name: String,
        /// Bytes its declaration says.
        expected: u64,
        /// Bytes given.
        given: u64,
    },
    /// A writer was given bytes after the last declared tensor was complete.
    #[error("{bytes} bytes given after the last declared tensor was complete")]
    NoMoreTensors {
        /// Bytes given.
        bytes: u64,
    },
    /// A writer was finished before all declared tensors had their data.
    #[error("tensor {} has only {written} of its {expected} bytes", Quoted(name))]
    MissingData {
        /// The first incomplete tensor.
        name: String,
        /// Bytes written so far.
        written: u64,
        /// Bytes its declaration says.
        expected: u64,
    },
}

impl Error {
    /// Position in the file, for errors about a file's content.
    #[must_use]
    pub fn place(&self) -> Option<&Place> {
        match self {
            Self::Read { place, .. }
            | Self::Truncated { place, .. }
            | Self::HeaderTooLarge { place, .. }
            | Self::CountTooLarge { place, .. }
            | Self::StringTooLong { place, .. }
            | Self::InvalidUtf8 { place }
            | Self::EmptyName { place }
            | Self::DuplicateKey { place }
            | Self::UnknownValueType { place, .. }
            | Self::BadBool { place, .. }
            | Self::ArrayTooDeep { place, .. }
            | Self::BadAlignment { place, .. }
            | Self::UnknownTensorType { place, .. }
            | Self::RemovedTensorType { place, .. }
            | Self::TooManyDims { place, .. }
            | Self::ShapeOverflow { place, .. }
            | Self::BlockMisfit { place, .. }
            | Self::DuplicateTensor { place }
            | Self::MisalignedTensor { place, .. }
            | Self::TensorOutOfFile { place, .. }
            | Self::TensorOverlap { place, .. } => Some(place),
            _ => None,
        }
    }

    pub(crate) fn write(source: io::Error) -> Self {
        Self::Write { source }
    }
}
