//! Constants and rules of the format shared by reader and writer.

use crate::{
    TensorType,
    error::{Error, Field, Place, Result},
    value::Value,
};

/// Magic bytes of a GGUF file.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";

/// Format version written by this crate.
pub(crate) const WRITTEN_VERSION: u32 = 3;

/// Metadata key of the alignment of tensor data.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";

/// Alignment of tensor data in bytes without `general.alignment`.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// Largest number of dimensions of a tensor.
pub const MAX_DIMS: usize = 4;

/// Largest length of a tensor name in bytes.
pub const MAX_NAME_BYTES: u64 = 64;

/// Largest length of a metadata key in bytes.
pub const MAX_KEY_BYTES: u64 = 65_535;

/// Maximum nesting depth of arrays; an array of numbers has depth 1. A limit of this crate: the
/// format has none.
pub const MAX_ARRAY_DEPTH: usize = 16;

/// Largest header (everything before the tensor data) in bytes.
///
/// A limit of this crate: it keeps a wrong length in a large file from loading gigabytes of tensor
/// data. The largest vocabularies take a few per cent.
pub const MAX_HEADER_BYTES: u64 = 1 << 30;

/// The next multiple of `alignment`, which must not be 0; `None` on overflow.
pub(crate) fn align_up(position: u64, alignment: u64) -> Option<u64> {
    position.checked_next_multiple_of(alignment)
}

/// Alignment given by a value of `general.alignment`.
pub(crate) fn alignment_of(value: &Value, place: impl FnOnce() -> Place) -> Result<u64> {
    match *value {
        Value::U32(alignment) if alignment >= 8 && alignment.is_power_of_two() => Ok(alignment.into()),
        ref other => Err(Error::BadAlignment {
            place: place(),
            found: match other {
                Value::U32(alignment) => alignment.to_string(),
                other => format!("a value of type {}", other.describe()),
            },
        }),
    }
}

/// Number of elements and bytes of a tensor.
///
/// `offset`: position of the dimensions in the file, if read from one.
pub(crate) fn tensor_size(
    name: &str,
    dims: &[u64],
    tensor_type: TensorType,
    offset: Option<u64>,
) -> Result<(u64, u64)> {
    let place = |part| Place { offset, field: Field::Named(name, part).to_string() };
    if dims.len() > MAX_DIMS {
        return Err(Error::TooManyDims {
            place: place("dimension count"),
            n_dims: dims.len() as u64,
            limit: MAX_DIMS,
        });
    }
    // Signed 63 bits, because other readers of the format hold these numbers in an i64.
    let fits = |n: &u64| *n <= i64::MAX as u64;
    let overflow = || Error::ShapeOverflow { place: place("dimensions"), dims: dims.to_vec() };
    let elements =
        dims.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim).filter(fits)).ok_or_else(overflow)?;
    let row_len = dims.first().copied().unwrap_or(1);
    if !row_len.is_multiple_of(tensor_type.block_len()) {
        return Err(Error::BlockMisfit {
            place: place("dimension 0"),
            row_len,
            tensor_type,
            block_len: tensor_type.block_len(),
        });
    }
    let bytes = tensor_type.row_bytes(elements).filter(fits).ok_or_else(overflow)?;
    Ok((elements, bytes))
}
