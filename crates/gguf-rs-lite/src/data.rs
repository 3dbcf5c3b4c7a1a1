//! Shared bytes of a file: a reference-counted owner and a range.

use std::{fmt, ops::Range, path::Path, sync::Arc};

use memmap2::Mmap;

use crate::{
    error::Result,
    memory::{self, FileMemory},
};

/// Bytes of a whole file: a mapping, static bytes, or a caller's buffer.
pub(crate) type FileBytes = Arc<dyn Bytes>;

pub(crate) trait Bytes: Send + Sync {
    fn as_bytes(&self) -> &[u8];

    /// Starts to read a range from the file. Default: does nothing, for bytes in memory.
    fn read_ahead(&self, _range: Range<usize>) {}
}

impl Bytes for Mmap {
    fn as_bytes(&self) -> &[u8] {
        self
    }

    fn read_ahead(&self, range: Range<usize>) {
        // A hint: without it the pages are read when they are used.
        #[cfg(unix)]
        let _ = self.advise_range(memmap2::Advice::WillNeed, range.start, range.len());
        #[cfg(not(unix))]
        let _ = range;
    }
}

/// A caller's bytes.
pub(crate) struct Owned<T>(pub(crate) T);

impl<T: AsRef<[u8]> + Send + Sync> Bytes for Owned<T> {
    fn as_bytes(&self) -> &[u8] {
        self.0.as_ref()
    }
}

/// Bytes of one tensor.
///
/// Cheap to clone, and independent of its [`Gguf`](crate::Gguf): it keeps the mapping or the owner
/// of the bytes alive.
#[derive(Clone)]
pub struct TensorData {
    file: FileBytes,
    range: Range<usize>,
}

impl TensorData {
    /// Bytes `range` of `file`, or `None` if out of bounds.
    pub(crate) fn new(file: FileBytes, range: Range<usize>) -> Option<Self> {
        file.as_bytes().get(range.clone())?;
        Some(Self { file, range })
    }

    /// Maps a whole file of any format, for weights stored outside of GGUF files.
    ///
    /// The restrictions of [`Gguf::open`](crate::Gguf::open) on changes of the file apply.
    ///
    /// # Errors
    /// If the file cannot be opened or mapped, or is no regular file.
    pub fn map_file(path: impl AsRef<Path>) -> Result<Self> {
        Self::load_file(path, FileMemory::default())
    }

    /// Loads a whole file, mapped or read as `memory` specifies; see [`TensorData::map_file`].
    ///
    /// # Errors
    /// If the file cannot be opened, mapped, read or locked, or is no regular file.
    pub fn load_file(path: impl AsRef<Path>, memory: FileMemory) -> Result<Self> {
        let bytes = memory::load(path.as_ref(), memory)?;
        let range = 0..bytes.len();
        Ok(Self { file: Arc::new(bytes), range })
    }

    /// All bytes of an owner, whose length must not change while they are shared.
    pub fn from_owner(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let range = 0..owner.as_ref().len();
        Self { file: Arc::new(Owned(owner)), range }
    }

    /// Range `range` of these bytes, relative to their start; `None` if out of bounds. No copy.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.range.len() {
            return None;
        }
        let start = self.range.start;
        Some(Self { file: Arc::clone(&self.file), range: start + range.start..start + range.end })
    }

    /// Bytes of the data.
    ///
    /// # Panics
    /// If the owner given to [`Gguf::from_owner`](crate::Gguf::from_owner) has since returned fewer
    /// bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.file.as_bytes()[self.range.clone()]
    }

    /// Starts to read these bytes of a mapped file in the background (`MADV_WILLNEED` on Unix), so
    /// that the threads that use them wait for fewer pages. Without effect on pages in memory and
    /// on bytes that are not mapped.
    pub fn read_ahead(&self) {
        self.file.read_ahead(self.range.clone());
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// True if the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}

impl AsRef<[u8]> for TensorData {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl fmt::Debug for TensorData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorData").field("file_range", &self.range).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_file_can_be_cut_into_parts_that_outlive_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        std::fs::write(&path, b"0123456789").unwrap();
        let file = TensorData::map_file(&path).unwrap();
        let part = file.slice(2..8).unwrap();
        let inner = part.slice(1..3).unwrap();
        assert_eq!((file.len(), part.as_bytes()), (10, &b"234567"[..]));
        drop((file, part));
        assert_eq!(inner.as_bytes(), b"34");
        inner.read_ahead();
        TensorData::from_owner(b"0123").read_ahead();
        assert!(inner.slice(0..3).is_none() && inner.slice(2..2).is_some_and(|none| none.is_empty()));
        let backwards = std::ops::Range { start: 2, end: 1 };
        assert!(inner.slice(backwards).is_none());
        assert!(TensorData::map_file(folder.path()).is_err(), "a folder is no file");
    }
}
