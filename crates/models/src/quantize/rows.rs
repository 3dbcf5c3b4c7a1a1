//! Rows of a tensor in another storage type, on all threads.

use std::sync::{Mutex, PoisonError};

use gguf_rs_lite::{FileWriter, TensorInfo, TensorType};
use ruvllm_kernels::ThreadPool;
use ruvllm_kernels::quant::WeightFormat;

use crate::error::{Error, Result};
use crate::weights::{format_of, weight_format};

/// Values that are in memory at a time, unless a single row has more.
const BATCH_VALUES: usize = 1 << 20;

/// Values that a thread converts at a time.
const PART_VALUES: usize = 1 << 14;

/// Largest half-precision number: the scales of all quantized types are of that kind.
const HALF_MAX: f32 = 65_504.0;

/// Type of a tensor, and the importance of its columns.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) tensor_type: TensorType,
    /// `[matrices, columns]`
    pub(super) importance: Option<&'a [f32]>,
}

/// Writes one tensor, a batch of rows at a time; `advance` is told how many bytes of the input are
/// done.
pub(super) fn write_tensor(
    writer: &mut FileWriter,
    tensor: &TensorInfo,
    data: &[u8],
    Target { tensor_type, importance }: Target<'_>,
    pool: &ThreadPool,
    advance: &mut dyn FnMut(usize) -> Result<()>,
) -> Result<()> {
    // A tensor of a type that is unknown here keeps it: the caller has checked.
    let (Some(from), Some(to)) = (weight_format(tensor.tensor_type), weight_format(tensor_type)) else {
        writer.write_chunk(data)?;
        return advance(data.len());
    };
    let Some(rows) = Rows::new(tensor, from, to, importance).filter(|_| !data.is_empty()) else {
        return Ok(());
    };
    let rows_per_batch = (BATCH_VALUES / rows.cols).max(1);
    let mut encoded = Vec::new();
    for (i, batch) in data.chunks(rows_per_batch * rows.from_row).enumerate() {
        encoded.resize(batch.len() / rows.from_row * rows.to_row, 0);
        rows.convert(batch, &mut encoded, i * rows_per_batch, pool)?;
        writer.write_chunk(&encoded)?;
        advance(batch.len())?;
    }
    Ok(())
}

/// Writes so many copies of the first row of a matrix, whose data are these.
pub(super) fn write_padding(
    writer: &mut FileWriter,
    matrix: &TensorInfo,
    (data, padding): (&[u8], u64),
    to: Target<'_>,
    pool: &ThreadPool,
) -> Result<()> {
    let n_rows = matrix.dims.get(1).map_or(1, |&rows| rows as usize).max(1);
    let row = &data[..data.len() / n_rows];
    (0..padding).try_for_each(|_| write_tensor(writer, matrix, row, to, pool, &mut |_| Ok(())))
}

/// All of a tensor in another type. `data` are those of `tensor`.
pub(crate) fn convert_tensor(
    tensor: &TensorInfo,
    data: &[u8],
    to: WeightFormat,
    pool: &ThreadPool,
) -> Result<Vec<u8>> {
    let Some(rows) = Rows::new(tensor, format_of(tensor)?, to, None).filter(|_| !data.is_empty()) else {
        return Ok(Vec::new());
    };
    let mut encoded = vec![0; data.len() / rows.from_row * rows.to_row];
    rows.convert(data, &mut encoded, 0, pool)?;
    Ok(encoded)
}

/// The rows of one tensor and what becomes of them.
struct Rows<'a> {
    name: &'a str,
    from: WeightFormat,
    to: WeightFormat,
    cols: usize,
    from_row: usize, // bytes
    to_row: usize,   // bytes
    /// Rows of each matrix of the tensor.
    matrix_rows: usize,
    /// `[matrices, cols]`
    importance: Option<&'a [f32]>,
}

impl<'a> Rows<'a> {
    /// `None` if rows are not whole blocks of both types.
    fn new(
        tensor: &'a TensorInfo,
        from: WeightFormat,
        to: WeightFormat,
        importance: Option<&'a [f32]>,
    ) -> Option<Self> {
        let cols = tensor.dims.first().map_or(1, |&cols| cols as usize);
        let (from_row, to_row) = (from.row_bytes(cols)?, to.row_bytes(cols)?);
        let matrix_rows = tensor.dims.get(1).map_or(1, |&rows| rows as usize).max(1);
        let n_matrices = tensor.dims.iter().skip(2).product::<u64>() as usize;
        let importance = importance.filter(|importance| importance.len() == cols * n_matrices);
        Some(Self { name: &tensor.name, from, to, cols, from_row, to_row, matrix_rows, importance })
    }

    /// Converts whole rows on all threads. `first` is the number of the first row in the tensor.
    fn convert(&self, data: &[u8], encoded: &mut [u8], first: usize, pool: &ThreadPool) -> Result<()> {
        let rows = (PART_VALUES / self.cols).max(1);
        // Each part is taken by one thread only: the locks are never contended.
        let parts: Vec<_> = data
            .chunks(rows * self.from_row)
            .zip(encoded.chunks_mut(rows * self.to_row))
            .map(|(data, encoded)| Mutex::new((data, encoded, Ok(()))))
            .collect();
        pool.for_each_chunk(parts.len(), 1, &|range| {
            for i in range {
                let mut part = parts[i].lock().unwrap_or_else(PoisonError::into_inner);
                let (data, encoded, result) = &mut *part;
                *result = self.convert_part(data, encoded, first + i * rows);
            }
        });
        parts.into_iter().try_for_each(|part| part.into_inner().unwrap_or_else(PoisonError::into_inner).2)
    }

    fn convert_part(&self, data: &[u8], encoded: &mut [u8], first: usize) -> Result<()> {
        let mut values = vec![0.0; data.len() / self.from_row * self.cols];
        self.from.dequantize(data, &mut values);
        let limit = match self.to {
            WeightFormat::F32 | WeightFormat::BF16 => f32::MAX,
            _ => HALF_MAX,
        };
        if let Some(index) = values.iter().position(|x| x.is_nan() || x.abs() > limit) {
            return Err(Error::WeightValue {
                name: self.name.to_owned(),
                row: first + index / self.cols,
                found: values[index],
                format: self.to.name(),
            });
        }
        if self.from == self.to {
            encoded.copy_from_slice(data);
        } else {
            self.quantize(&values, encoded, first);
        }
        Ok(())
    }

    /// Quantizes rows, each by the importance of the matrix that it belongs to.
    fn quantize(&self, mut values: &[f32], mut encoded: &mut [u8], mut row: usize) {
        let Some(importance) = self.importance else {
            return self.to.quantize_weighted(values, None, encoded);
        };
        while !values.is_empty() {
            let (matrix, within) = (row / self.matrix_rows, row % self.matrix_rows);
            let n_rows = (self.matrix_rows - within).min(values.len() / self.cols);
            let (here, rest) = values.split_at(n_rows * self.cols);
            let (out, others) = encoded.split_at_mut(n_rows * self.to_row);
            let columns = &importance[matrix * self.cols..][..self.cols];
            self.to.quantize_weighted(here, Some(columns), out);
            (values, encoded, row) = (rest, others, row + n_rows);
        }
    }
}
