//! Source of tensors: reads them by name with checked types and shapes, and counts bytes.

use std::collections::HashSet;
use std::ops::Range;

use gguf_rs_lite::{TensorData, TensorInfo, TensorType};
use ruvllm_kernels::quant::{PackedMatrix, SharedBytes, WeightFormat};

use super::ReadAhead;
use crate::checkpoint::{Checkpoint, TensorBytes};
use crate::error::{Error, Result};

/// The storage types that have kernels, and their weight formats.
const FORMATS: &[(TensorType, WeightFormat)] = &[
    (TensorType::F32, WeightFormat::F32),
    (TensorType::F16, WeightFormat::F16),
    (TensorType::BF16, WeightFormat::BF16),
    (TensorType::Q8_0, WeightFormat::Q8_0),
    (TensorType::Q4_0, WeightFormat::Q4_0),
    (TensorType::Q4_1, WeightFormat::Q4_1),
    (TensorType::Q5_0, WeightFormat::Q5_0),
    (TensorType::Q5_1, WeightFormat::Q5_1),
    (TensorType::Q2_K, WeightFormat::Q2K),
    (TensorType::Q3_K, WeightFormat::Q3K),
    (TensorType::Q4_K, WeightFormat::Q4K),
    (TensorType::Q5_K, WeightFormat::Q5K),
    (TensorType::Q6_K, WeightFormat::Q6K),
    (TensorType::IQ4_NL, WeightFormat::IQ4NL),
    (TensorType::IQ4_XS, WeightFormat::IQ4XS),
    (TensorType::MXFP4, WeightFormat::MXFP4),
    (TensorType::IQ2_XXS, WeightFormat::IQ2XXS),
    (TensorType::IQ2_XS, WeightFormat::IQ2XS),
    (TensorType::IQ2_S, WeightFormat::IQ2S),
    (TensorType::IQ3_XXS, WeightFormat::IQ3XXS),
    (TensorType::IQ3_S, WeightFormat::IQ3S),
    (TensorType::IQ1_S, WeightFormat::IQ1S),
    (TensorType::IQ1_M, WeightFormat::IQ1M),
    (TensorType::TQ1_0, WeightFormat::TQ1_0),
    (TensorType::TQ2_0, WeightFormat::TQ2_0),
];

/// Progress of loading; one report follows each tensor.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct LoadProgress<'a> {
    /// Name of the tensor that was just loaded.
    pub tensor: &'a str,
    /// Tensors loaded so far, this one included.
    pub tensors_done: usize,
    /// Tensors in the file.
    pub tensors_total: usize,
    /// Bytes of the tensors loaded so far.
    pub bytes_done: u64,
    /// Bytes of all tensors in the file.
    pub bytes_total: u64,
}

/// Bytes of a model's weights in shared and in private memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WeightBytes {
    /// Bytes used in place: mapped, as the whole file was read, or in the buffer that the caller
    /// gave.
    pub shared: u64,
    /// Bytes in private memory: vectors, and what matrices were repacked into.
    pub private: u64,
}

impl WeightBytes {
    /// Bytes beyond those counted before.
    pub(crate) fn since(self, before: Self) -> Self {
        Self { shared: self.shared - before.shared, private: self.private - before.private }
    }
}

/// A checkpoint being loaded.
pub(crate) struct TensorSource<'a> {
    checkpoint: &'a dyn Checkpoint,
    progress: &'a mut dyn FnMut(LoadProgress<'_>),
    used: HashSet<String>,
    tensors_total: usize,
    bytes_done: u64,
    bytes_total: u64,
    bytes: WeightBytes,
}

impl<'a> TensorSource<'a> {
    pub(crate) fn new(checkpoint: &'a dyn Checkpoint, progress: &'a mut dyn FnMut(LoadProgress<'_>)) -> Self {
        Self {
            checkpoint,
            progress,
            used: HashSet::new(),
            tensors_total: checkpoint.tensors().count(),
            bytes_done: 0,
            bytes_total: checkpoint.tensors().map(TensorInfo::bytes).sum(),
            bytes: WeightBytes::default(),
        }
    }

    /// The matrix `name` of shape [`rows`, `cols`], left where it is if a file holds it in this
    /// form.
    pub(crate) fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<PackedMatrix> {
        self.matrix_rows(name, rows, cols)?.next(rows)
    }

    /// As [`Self::matrix`], to be taken apart.
    pub(crate) fn matrix_rows(&mut self, name: &str, rows: usize, cols: usize) -> Result<MatrixRows> {
        self.stacked_rows(name, cols, &[cols, rows])
    }

    /// Matrices of one shape in a tensor, [`n`, `rows`, `cols`], left where they are.
    pub(crate) fn matrices(
        &mut self,
        name: &str,
        n: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Vec<PackedMatrix>> {
        Ok(self.expert_matrices(name, n, rows, cols)?.0)
    }

    /// As [`Self::matrices`], with their read-ahead where they are in a file.
    pub(super) fn expert_matrices(
        &mut self,
        name: &str,
        n: usize,
        rows: usize,
        cols: usize,
    ) -> Result<(Vec<PackedMatrix>, Option<ReadAhead>)> {
        let mut stacked = self.stacked_rows(name, cols, &[cols, rows, n])?;
        let read_ahead = stacked.read_ahead(n);
        let matrices = (0..n).map(|_| stacked.next(rows)).collect::<Result<_>>()?;
        Ok((matrices, read_ahead))
    }

    /// Two matrices of a tensor of shape [`rows`, `cols`], of the rows that each part names in its
    /// order; copied to private memory.
    pub(crate) fn gathered(
        &mut self,
        name: &str,
        (rows, cols): (usize, usize),
        [first, second]: [&[Range<usize>]; 2],
    ) -> Result<[PackedMatrix; 2]> {
        let shared = self.bytes.shared;
        let stored = self.matrix_rows(name, rows, cols)?;
        // The copies take the place of the mapped bytes.
        self.bytes.private += self.bytes.shared - shared;
        self.bytes.shared = shared;
        Ok([stored.gather(first)?, stored.gather(second)?])
    }

    /// The rows of all matrices of a tensor of these dimensions, columns first.
    pub(super) fn stacked_rows(&mut self, name: &str, cols: usize, dims: &[usize]) -> Result<MatrixRows> {
        let info = find(self.checkpoint, name)?;
        let format = format_of(info)?;
        check_shape(info, dims)?;
        let rows = dims[1..].iter().product();
        let data = self.checkpoint.data(info)?;
        match data {
            TensorBytes::Shared(_) => self.bytes.shared += info.bytes(),
            TensorBytes::Made(_) => self.bytes.private += info.bytes(),
        }
        let file = match &data {
            TensorBytes::Shared(data) => Some(data.clone()),
            TensorBytes::Made(_) => None,
        };
        let bytes = SharedBytes::new(data);
        // A matrix of the whole holds the bytes to the shape.
        PackedMatrix::new(format, rows, cols, bytes.clone())?;
        self.report(info);
        Ok(MatrixRows { format, cols, row_bytes: bytes.as_ref().len() / rows, bytes, file })
    }

    /// The vector `name` of `len` values, as f32.
    pub(crate) fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        self.values(name, &[len])
    }

    /// A tensor of these dimensions, columns first, as f32.
    pub(crate) fn values(&mut self, name: &str, dims: &[usize]) -> Result<Vec<f32>> {
        let values = read_values(self.checkpoint, name, dims)?;
        self.bytes.private += (values.len() * size_of::<f32>()) as u64;
        self.report(find(self.checkpoint, name)?);
        Ok(values)
    }

    /// As [`Self::vector`], or `None` when the checkpoint does not have it.
    pub(crate) fn optional_vector(&mut self, name: &str, len: usize) -> Result<Option<Vec<f32>>> {
        if self.has(name) { self.vector(name, len).map(Some) } else { Ok(None) }
    }

    /// Rows of a tensor.
    pub(crate) fn rows(&self, name: &str) -> Result<usize> {
        let rows = find(self.checkpoint, name)?.dims.get(1).copied().unwrap_or(1);
        Ok(usize::try_from(rows).unwrap_or(usize::MAX))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.checkpoint.tensor(name).is_some()
    }

    /// True if the name of a tensor begins so.
    pub(crate) fn has_any(&self, beginning: &str) -> bool {
        self.checkpoint.tensors().any(|info| info.name.starts_with(beginning))
    }

    /// Bytes of the weights so far.
    pub(crate) fn bytes(&self) -> WeightBytes {
        self.bytes
    }

    /// Counts a tensor as used that is read elsewhere, or rightly left alone.
    pub(crate) fn skip(&mut self, name: &str) {
        if let Some(info) = self.checkpoint.tensor(name) {
            self.report(info);
        }
    }

    /// As [`Self::skip`], for the tensors of these layers.
    pub(crate) fn skip_layers(&mut self, layers: Range<usize>) {
        let checkpoint = self.checkpoint;
        let layer_of = |name: &str| name.strip_prefix("blk.")?.split_once('.')?.0.parse::<usize>().ok();
        let of_layers = |name: &str| layer_of(name).is_some_and(|layer| layers.contains(&layer));
        checkpoint.tensors().filter(|info| of_layers(&info.name)).for_each(|info| self.report(info));
    }

    /// Checks that no tensor was left over, and returns where the weights are.
    pub(crate) fn finish(self, architecture: &str) -> Result<WeightBytes> {
        match self.checkpoint.tensors().find(|info| !self.used.contains(&info.name)) {
            None => Ok(self.bytes),
            Some(info) => Err(Error::UnexpectedTensor {
                name: info.name.clone(),
                architecture: architecture.to_owned(),
            }),
        }
    }

    fn report(&mut self, info: &TensorInfo) {
        self.used.insert(info.name.clone());
        self.bytes_done += info.bytes();
        (self.progress)(LoadProgress {
            tensor: &info.name,
            tensors_done: self.used.len(),
            tensors_total: self.tensors_total,
            bytes_done: self.bytes_done,
            bytes_total: self.bytes_total,
        });
    }
}

/// A matrix in the file from which rows are taken, from the top.
pub(crate) struct MatrixRows {
    format: WeightFormat,
    cols: usize,
    row_bytes: usize,
    /// The rows that are left.
    bytes: SharedBytes,
    /// The whole tensor, where a file holds it in this form.
    file: Option<TensorData>,
}

impl MatrixRows {
    /// Read-ahead of the tensor as the matrices of `n` experts; `None` for one in private memory.
    pub(super) fn read_ahead(&self, n: usize) -> Option<ReadAhead> {
        self.file.clone().map(|tensor| ReadAhead::new(tensor, n))
    }

    /// The next `rows` rows; there must be so many left.
    pub(crate) fn next(&mut self, rows: usize) -> Result<PackedMatrix> {
        let (taken, len) = (rows * self.row_bytes, self.bytes.as_ref().len());
        let matrix = PackedMatrix::new(self.format, rows, self.cols, self.bytes.slice(0..taken))?;
        self.bytes = self.bytes.slice(taken..len);
        Ok(matrix)
    }

    /// A copy of these rows, which must be there.
    fn gather(&self, rows: &[Range<usize>]) -> Result<PackedMatrix> {
        let n_rows = rows.iter().map(ExactSizeIterator::len).sum();
        let mut bytes = Vec::with_capacity(n_rows * self.row_bytes);
        for rows in rows {
            bytes.extend_from_slice(
                &self.bytes.as_ref()[rows.start * self.row_bytes..rows.end * self.row_bytes],
            );
        }
        Ok(PackedMatrix::new(self.format, n_rows, self.cols, SharedBytes::new(bytes))?)
    }
}

/// Reads a vector of `len` values of any supported type as f32.
pub(crate) fn read_vector(checkpoint: &dyn Checkpoint, name: &str, len: usize) -> Result<Vec<f32>> {
    read_values(checkpoint, name, &[len])
}

fn read_values(checkpoint: &dyn Checkpoint, name: &str, dims: &[usize]) -> Result<Vec<f32>> {
    let info = find(checkpoint, name)?;
    let format = format_of(info)?;
    check_shape(info, dims)?;
    let data = checkpoint.data(info)?;
    // As many as the file has: its dimensions are those asked for.
    let mut values = vec![0.0; dims.iter().product()];
    format.dequantize(data.as_ref(), &mut values);
    Ok(values)
}

fn find<'a>(checkpoint: &'a dyn Checkpoint, name: &str) -> Result<&'a TensorInfo> {
    checkpoint.tensor(name).ok_or_else(|| Error::MissingTensor { name: name.to_owned() })
}

/// The weight format of a storage type; `None` for a type without kernels.
pub fn weight_format(tensor_type: TensorType) -> Option<WeightFormat> {
    FORMATS.iter().find(|(known, _)| *known == tensor_type).map(|&(_, format)| format)
}

/// The weight format of a tensor.
pub(crate) fn format_of(info: &TensorInfo) -> Result<WeightFormat> {
    weight_format(info.tensor_type).ok_or_else(|| Error::UnsupportedTensorType {
        name: info.name.clone(),
        found: info.tensor_type.name(),
        supported: FORMATS.iter().map(|(tensor_type, _)| tensor_type.name()).collect::<Vec<_>>().join(", "),
    })
}

/// Compares shapes in file order (columns first); trailing dimensions of 1 do not count.
fn check_shape(info: &TensorInfo, expected: &[usize]) -> Result<()> {
    let expected: Vec<u64> = expected.iter().map(|&dim| dim as u64).collect();
    let trimmed = |dims: &[u64]| dims.iter().rposition(|&dim| dim != 1).map_or(0, |last| last + 1);
    if info.dims[..trimmed(&info.dims)] == expected[..trimmed(&expected)] {
        return Ok(());
    }
    Err(Error::TensorShape { name: info.name.clone(), expected, found: info.dims.clone() })
}
