//! Opened model: header and bytes of one file, or of all parts of a split model.

use std::{collections::HashMap, fmt, path::Path, sync::Arc};

use crate::{
    data::{Owned, TensorData},
    error::{Error, Field, Place, Result},
    header::{Header, TensorInfo},
    memory::{self, FileMemory},
    metadata::Metadata,
    part::Part,
    split,
};

/// Opened model; tensor data stay in the mapped file or in the caller's memory.
///
/// Cheap to clone. Tensors of a split model are presented as in one file.
#[derive(Clone)]
pub struct Gguf(Arc<Inner>);

struct Inner {
    /// At least one.
    parts: Vec<Part>,
    /// Tensor name to (part, index in the part's list).
    index: HashMap<String, (usize, usize)>,
}

impl Gguf {
    /// Opens a file by mapping it into memory.
    ///
    /// For a split model `path` may be any part; the others are found beside it by their names
    /// (`-00001-of-00003.gguf`).
    ///
    /// Only the header is read; tensor data are paged in on first access.
    ///
    /// While the model or any of its [`TensorData`] is alive, the file must not be truncated or
    /// overwritten in place: access to a missing page kills the process (SIGBUS), and changed bytes
    /// change the weights. Replacing the file by a rename is safe. [`Gguf::open_in`] can read
    /// changing files into private memory.
    ///
    /// # Errors
    /// If the file or one of its parts cannot be opened, is malformed, or lacks tensor data.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_in(path, FileMemory::default())
    }

    /// Opens a file, mapped or read, locked or not, as `memory` specifies; see [`Gguf::open`].
    ///
    /// # Errors
    /// See [`Gguf::open`]; [`Error::Lock`] if the bytes cannot be locked.
    pub fn open_in(path: impl AsRef<Path>, memory: FileMemory) -> Result<Self> {
        split::open(path.as_ref(), memory).and_then(Self::from_parts)
    }

    /// Opens a model embedded in the program, for example by `include_bytes!`.
    ///
    /// # Errors
    /// See [`Gguf::from_owner`].
    pub fn from_static(bytes: &'static [u8]) -> Result<Self> {
        Self::from_owner(bytes)
    }

    /// Opens an embedded model in place, or copied to be read or locked.
    ///
    /// See [`Gguf::from_static`].
    ///
    /// # Errors
    /// See [`Gguf::from_owner`]; [`Error::File`] if the copy cannot be allocated, [`Error::Lock`]
    /// if it cannot be locked.
    pub fn from_static_in(bytes: &'static [u8], memory: FileMemory) -> Result<Self> {
        if memory == FileMemory::default() {
            return Self::from_static(bytes);
        }
        Self::from_owner(memory::copy(bytes, memory)?)
    }

    /// Opens a model in memory owned by `owner`, such as a `Vec<u8>` or a caller's mapping.
    ///
    /// The owner must return the same bytes on every call.
    ///
    /// # Errors
    /// If the bytes are not a well-formed file or lack tensor data, or are one part of a split
    /// model.
    pub fn from_owner(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<Self> {
        let part = Part::new(Arc::new(Owned(owner)))?;
        if let Some(split) = split::Membership::of(&part.header.metadata)? {
            return Err(Error::SplitInMemory { count: split.count });
        }
        Self::from_parts(vec![part])
    }

    fn from_parts(parts: Vec<Part>) -> Result<Self> {
        let mut index = HashMap::with_capacity(parts.iter().map(|part| part.header.tensors.len()).sum());
        for (p, part) in parts.iter().enumerate() {
            for (t, tensor) in part.header.tensors.iter().enumerate() {
                if index.insert(tensor.name.clone(), (p, t)).is_some() {
                    // Names are unique within a part, so this one is in two.
                    let place = Place::of(Field::Named(&tensor.name, "name in another part"));
                    return Err(Error::DuplicateTensor { place });
                }
            }
        }
        Ok(Self(Arc::new(Inner { parts, index })))
    }

    /// Metadata; of a split model, that of the first part.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.header().metadata
    }

    /// Header of the file; of a split model, that of the first part.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.0.parts[0].header
    }

    /// Headers of all parts in order.
    pub fn headers(&self) -> impl ExactSizeIterator<Item = &Header> {
        self.0.parts.iter().map(|part| &part.header)
    }

    /// Format version, 2 or 3; of a split model, that of the first part.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.header().version
    }

    /// Number of files: 1 unless the model is split.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.0.parts.len()
    }

    /// Total length of all files in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.0.parts.iter().map(|part| part.bytes.as_bytes().len() as u64).sum()
    }

    /// All tensors in file order, part by part.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.headers().flat_map(|header| &header.tensors)
    }

    /// Tensor with the given name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.find(name).map(|(_, tensor)| tensor)
    }

    /// Data of a tensor, by name or [`TensorInfo`]. No copy.
    ///
    /// # Errors
    /// [`Error::NoTensor`] if the model has no tensor of that name.
    ///
    /// # Panics
    /// If the owner given to [`Gguf::from_owner`] returns fewer bytes than when the model was
    /// opened.
    pub fn data(&self, tensor: impl AsRef<str>) -> Result<TensorData> {
        let name = tensor.as_ref();
        let (part, tensor) = self.find(name).ok_or_else(|| Error::NoTensor { name: name.to_owned() })?;
        let start = part.header.data_start(tensor);
        // The header's checks hold these numbers below the length of a slice, so they fit a usize.
        let data = usize::try_from(start)
            .ok()
            .zip(usize::try_from(start + tensor.bytes()).ok())
            .and_then(|(start, end)| TensorData::new(Arc::clone(&part.bytes), start..end));
        Ok(data.expect("the owner of the model's bytes has made them fewer"))
    }

    fn find(&self, name: &str) -> Option<(&Part, &TensorInfo)> {
        let &(part, tensor) = self.0.index.get(name)?;
        let part = &self.0.parts[part];
        Some((part, &part.header.tensors[tensor]))
    }
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gguf")
            .field("version", &self.version())
            .field("parts", &self.parts())
            .field("metadata", &self.metadata().len())
            .field("tensors", &self.0.index.len())
            .finish_non_exhaustive()
    }
}
