//! Bytes of a file that can be handed around: a shared owner and a range in it.

use std::{fmt, ops::Range, sync::Arc};

/// The bytes of a whole file: a mapping, static bytes, or whatever a caller owns.
pub(crate) type FileBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The bytes of one tensor.
///
/// Cheap to clone, and independent of the [`Gguf`](crate::Gguf) it came from: it keeps the mapping or the owner of
/// the bytes alive.
#[derive(Clone)]
pub struct TensorData {
    file: FileBytes,
    range: Range<usize>,
}

impl TensorData {
    /// The bytes `range` of `file`, or `None` if they are not all there.
    pub(crate) fn new(file: FileBytes, range: Range<usize>) -> Option<Self> {
        (*file).as_ref().get(range.clone())?;
        Some(Self { file, range })
    }

    /// The bytes.
    ///
    /// # Panics
    /// If the owner of the bytes given to [`Gguf::from_owner`](crate::Gguf::from_owner) has since made them fewer.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &(*self.file).as_ref()[self.range.clone()]
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are no bytes.
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
