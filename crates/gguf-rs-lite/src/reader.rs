//! Reader of a file from a stream, without mapping: for sources other than files, or for low memory
//! use.

use std::{
    collections::HashMap,
    io::{Read, Seek, SeekFrom},
};

use crate::{
    error::{Error, Field, Place, Result},
    header::{Header, TensorInfo},
};

/// File read from a seekable stream: header in memory, tensor data read on demand.
///
/// Reads one file; of a split model, one part.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    header: Header,
    /// Tensor name to index in the header's list.
    index: HashMap<String, usize>,
}

impl<R: Read + Seek> Reader<R> {
    /// Reads and checks the header, see [`Header::read`].
    ///
    /// # Errors
    /// If the stream fails, is not a well-formed file, or does not hold all tensor data.
    pub fn new(mut input: R) -> Result<Self> {
        let header = Header::read(&mut input)?;
        let index = header.tensors.iter().enumerate().map(|(i, tensor)| (tensor.name.clone(), i)).collect();
        Ok(Self { input, header, index })
    }

    /// Header: metadata and tensor list.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Tensor with the given name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&i| &self.header.tensors[i])
    }

    /// Reads all data of a tensor into `out`, replacing its content.
    ///
    /// # Errors
    /// If there is no such tensor, or the stream fails.
    pub fn read(&mut self, name: impl AsRef<str>, out: &mut Vec<u8>) -> Result<()> {
        let name = name.as_ref();
        let tensor = self.find(name)?;
        let bytes = tensor.bytes();
        let len = usize::try_from(bytes).map_err(|_| beyond(tensor, 0, bytes))?;
        out.clear();
        out.resize(len, 0);
        self.read_at(name, 0, out)
    }

    /// Reads bytes of a tensor, from `start` bytes into its data, to fill `out`.
    ///
    /// # Errors
    /// If there is no such tensor, `out` reaches beyond its end, or the stream fails.
    pub fn read_at(&mut self, name: impl AsRef<str>, start: u64, out: &mut [u8]) -> Result<()> {
        let name = name.as_ref();
        let tensor = self.find(name)?;
        let end = start.saturating_add(out.len() as u64);
        if end > tensor.bytes() {
            return Err(beyond(tensor, start, end));
        }
        let at = self.header.data_start(tensor) + start;
        self.input
            .seek(SeekFrom::Start(at))
            .and_then(|_| self.input.read_exact(out))
            .map_err(|source| Error::Read { place: Place::at(at, Field::Named(name, "data")), source })
    }

    /// Returns the stream, at an unspecified position.
    pub fn into_inner(self) -> R {
        self.input
    }

    fn find(&self, name: &str) -> Result<&TensorInfo> {
        self.tensor(name).ok_or_else(|| Error::NoTensor { name: name.to_owned() })
    }
}

fn beyond(tensor: &TensorInfo, start: u64, end: u64) -> Error {
    Error::BeyondTensor { name: tensor.name.clone(), start, end, bytes: tensor.bytes() }
}
