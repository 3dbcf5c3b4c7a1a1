//! Weight matrices as stored in a model file: shared bytes and their interpretation, without
//! copies.

use std::ops::Range;
use std::sync::Arc;

use crate::quant::WeightFormat;
use crate::{Error, Kernels, Result};

/// Reference-counted bytes: a memory-mapped file, an embedded model, a buffer.
///
/// Clones and slices are cheap and share the same bytes.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl SharedBytes {
    /// Takes ownership of `owner`, whose byte length must not change while it is shared.
    pub fn new(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let range = 0..owner.as_ref().len();
        Self { owner: Arc::new(owner), range }
    }

    /// Range `range` of these bytes, relative to their start.
    ///
    /// # Panics
    /// If `range` is out of bounds.
    pub fn slice(&self, range: Range<usize>) -> Self {
        let len = self.range.len();
        assert!(range.start <= range.end && range.end <= len, "slice {range:?} of {len} shared bytes");
        let start = self.range.start;
        Self { owner: Arc::clone(&self.owner), range: start + range.start..start + range.end }
    }
}

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

impl std::fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedBytes").field("len", &self.range.len()).finish_non_exhaustive()
    }
}

/// A weight matrix in a [`WeightFormat`]: `[rows, cols]`, row-major, rows of whole quant blocks.
///
/// The matrix refers to the bytes of the file; products read them in place.
#[derive(Debug, Clone)]
pub struct PackedMatrix {
    format: WeightFormat,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    bytes: SharedBytes,
}

impl PackedMatrix {
    /// Creates a matrix over `bytes` of any alignment; every bit pattern is a valid quant block.
    ///
    /// # Errors
    /// [`Error::MatrixCols`] if a row is not whole quant blocks, [`Error::MatrixBytes`] if the byte
    /// length does not match the shape.
    pub fn new(format: WeightFormat, rows: usize, cols: usize, bytes: SharedBytes) -> Result<Self> {
        let row_bytes = format.row_bytes(cols).ok_or(Error::MatrixCols {
            format: format.name(),
            cols,
            block_len: format.block_len(),
        })?;
        let found = bytes.as_ref().len();
        if row_bytes.checked_mul(rows) != Some(found) {
            return Err(Error::MatrixBytes { format: format.name(), rows, cols, row_bytes, found });
        }
        Ok(Self { format, rows, cols, row_bytes, bytes })
    }

    /// Number of rows: output values of a product.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns: input values of a product.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Weight format.
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// Quant blocks, row-major.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    /// Quant blocks of one row.
    fn row(&self, row: usize) -> &[u8] {
        assert!(row < self.rows, "row {row} of a matrix of {} rows", self.rows);
        &self.bytes()[row * self.row_bytes..][..self.row_bytes]
    }

    /// Dequantizes row `row` (an embedding lookup). `values`: `[cols]`.
    ///
    /// # Panics
    /// If `row` is out of range or `values` is not `cols` long.
    pub fn dequantize_row(&self, row: usize, values: &mut [f32]) {
        assert_eq!(values.len(), self.cols, "dequantize_row: the output is not one row");
        self.format.dequantize(self.row(row), values);
    }

    /// Dequantizes row `row` with the instruction set of `kernels`, to the same bits.
    ///
    /// # Panics
    /// As [`dequantize_row`](Self::dequantize_row).
    pub fn dequantize_row_with(&self, kernels: &Kernels, row: usize, values: &mut [f32]) {
        assert_eq!(values.len(), self.cols, "dequantize_row: the output is not one row");
        kernels.dequantize(self.format, self.row(row), values);
    }
}
