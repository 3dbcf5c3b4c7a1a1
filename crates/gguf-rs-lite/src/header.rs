//! File header: version, metadata, and the list of tensors.

use crate::{
    TensorType,
    error::{Error, Field, Place, Result},
    format::{self, MAX_NAME_BYTES},
    metadata::Metadata,
};

/// Tensor entry: name, shape, type and offset of the data.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// Name, unique in the model.
    pub name: String,
    /// Dimensions, fastest-varying first: a matrix is `[cols, rows]`. A scalar has none.
    pub dims: Vec<u64>,
    /// Element type.
    pub tensor_type: TensorType,
    /// Start of the data, in bytes from the start of the data section of its file.
    pub offset: u64,
    elements: u64,
    bytes: u64,
}

impl TensorInfo {
    /// Creates an entry for a [`Writer`](crate::Writer), which assigns the offset.
    ///
    /// # Shapes
    /// `dims`: at most 4 dimensions, fastest-varying first.
    ///
    /// # Errors
    /// If the name is empty or longer than [`MAX_NAME_BYTES`], if there are too many dimensions, if
    /// their product overflows, or if a row is not a whole number of the type's blocks.
    pub fn new(name: impl Into<String>, dims: impl Into<Vec<u64>>, tensor_type: TensorType) -> Result<Self> {
        let name = name.into();
        check_name(&name, None)?;
        Self::located(name, dims.into(), tensor_type, 0, None)
    }

    /// An entry whose name has been checked; `dims_at` is where the dimensions stand in the file.
    pub(crate) fn located(
        name: String,
        dims: Vec<u64>,
        tensor_type: TensorType,
        offset: u64,
        dims_at: Option<u64>,
    ) -> Result<Self> {
        let (elements, bytes) = format::tensor_size(&name, &dims, tensor_type, dims_at)?;
        Ok(Self { name, dims, tensor_type, offset, elements, bytes })
    }

    /// Size of the data in bytes, without padding.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of elements: the product of the dimensions, 1 for a scalar.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// Shape as a matrix, `(rows, cols)`: `cols` is the first dimension, `rows` the product of the
    /// others.
    #[must_use]
    pub fn rows_cols(&self) -> (u64, u64) {
        let cols = self.dims.first().copied().unwrap_or(1);
        // With zero columns the product of the other dimensions is unchecked, and any answer is as
        // good as 0.
        let rows = self.elements.checked_div(cols).unwrap_or(0);
        (rows, cols)
    }
}

/// Name of the tensor, for lookups by name.
impl AsRef<str> for TensorInfo {
    fn as_ref(&self) -> &str {
        &self.name
    }
}

/// Checks a tensor name against the rules of the format; `offset`: its position in the file.
pub(crate) fn check_name(name: &str, offset: Option<u64>) -> Result<()> {
    let place = || Place { offset, field: Field::Named(name, "name").to_string() };
    let len = name.len() as u64;
    if len == 0 {
        Err(Error::EmptyName { place: place() })
    } else if len > MAX_NAME_BYTES {
        Err(Error::StringTooLong { place: place(), len, limit: MAX_NAME_BYTES })
    } else {
        Ok(())
    }
}

/// Header of a file (everything but tensor data), checked against the length of the file.
///
/// Guarantees: names are unique; every tensor's data lies inside the file, starts at a multiple of
/// the alignment and overlaps no other tensor's; sizes do not overflow.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Header {
    /// Format version, 2 or 3.
    pub version: u32,
    /// Alignment of tensor data in bytes, a power of two.
    pub alignment: u64,
    /// Metadata of the file.
    pub metadata: Metadata,
    /// Tensors in list order, which may differ from the order of their data.
    pub tensors: Vec<TensorInfo>,
    /// Start of the data section, in bytes from the start of the file.
    pub data_offset: u64,
}

impl Header {
    /// Start of the data of a tensor of this header, in bytes from the start of the file.
    pub(crate) fn data_start(&self, tensor: &TensorInfo) -> u64 {
        // Cannot overflow for a checked tensor; for a changed copy of one, any answer out of range
        // will do.
        self.data_offset.saturating_add(tensor.offset)
    }
}
