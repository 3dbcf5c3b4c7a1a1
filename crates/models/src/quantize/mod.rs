//! Model files in another storage type: reads a GGUF file, writes one whose matrices follow a [`Recipe`].
//!
//! A batch of rows at a time is in memory: decoded to f32, encoded, written. Rows are independent, so threads share a
//! batch and the file does not depend on their number.

mod recipe;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use gguf_rs_lite::{FileWriter, Gguf, Metadata, TensorInfo, TensorType, write_file};
use ruvllm_kernels::{BlockFormat, ThreadPool};

use crate::error::{Error, Result};
use crate::weights::{block_format, format_of};

pub use self::recipe::{Assignment, Recipe};

/// Values that are in memory at a time, unless a single row has more.
const BATCH_VALUES: usize = 1 << 21;

/// Values that a thread converts at a time.
const PART_VALUES: usize = 1 << 14;

/// Largest half-precision number: the scales of all quantized types are of that kind.
const HALF_MAX: f32 = 65_504.0;

/// Keys that describe how a model was split into several files; the result is one file.
const SPLIT_KEYS: [&str; 3] = ["split.no", "split.count", "split.tensors.count"];

/// How far the work has come.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct QuantizeProgress<'a> {
    /// The tensor being written.
    pub tensor: &'a str,
    /// Bytes of the input's tensors that are done.
    pub bytes_done: u64,
    /// Bytes of all tensors of the input.
    pub bytes_total: u64,
}

/// A tensor that did not get the type of its recipe, because its rows are not whole blocks of that.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fallback {
    /// Name of the tensor.
    pub tensor: String,
    /// The recipe's type.
    pub wanted: TensorType,
    /// The type it has in the file.
    pub used: TensorType,
}

/// What was written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuantizeReport {
    /// Number of tensors.
    pub tensors: usize,
    /// Tensors that did not get the type of their recipe.
    pub fallbacks: Vec<Fallback>,
}

/// Writes `gguf` to `output` with the types of `recipe` (its base type for every matrix if `pure`).
///
/// All metadata are kept, except that `general.file_type` and `general.quantization_version` say what the file is now.
/// Tensors that are not matrices keep their type, and whatever keeps its type keeps its bytes. The file appears complete
/// or not at all; `progress` is called after each batch and may stop the work.
///
/// # Errors
/// [`Error::UnsupportedTensorType`] for a matrix that cannot be decoded; [`Error::WeightValue`] for a weight that is not
/// finite or too large for the type it gets; [`Error::Cancelled`] after a `Break`; [`Error::Gguf`] if the input is damaged
/// or the output cannot be written.
pub fn quantize(
    gguf: &Gguf,
    output: &Path,
    recipe: Recipe,
    pure: bool,
    pool: &ThreadPool,
    progress: &mut dyn FnMut(QuantizeProgress<'_>) -> ControlFlow<()>,
) -> Result<QuantizeReport> {
    let tensors: Vec<TensorInfo> = gguf.tensors().cloned().collect();
    let assignments = recipe.assign(&tensors, heads_per_kv_head(gguf.metadata())?, pure);
    let mut report = QuantizeReport { tensors: tensors.len(), ..QuantizeReport::default() };
    let mut declared = Vec::with_capacity(tensors.len());
    for (tensor, assignment) in tensors.iter().zip(&assignments) {
        let used = assignment.tensor_type;
        if used != tensor.tensor_type {
            format_of(tensor)?;
        }
        if let Some(wanted) = assignment.instead_of {
            report.fallbacks.push(Fallback { tensor: tensor.name.clone(), wanted, used });
        }
        declared.push(TensorInfo::new(&tensor.name, tensor.dims.clone(), used)?);
    }

    let bytes_total = tensors.iter().map(TensorInfo::bytes).fold(0, u64::saturating_add);
    let mut bytes_done = 0;
    let fill = |writer: &mut FileWriter| -> Result<()> {
        for (tensor, assignment) in tensors.iter().zip(&assignments) {
            let mut advance = |bytes: usize| {
                bytes_done += bytes as u64;
                match progress(QuantizeProgress { tensor: &tensor.name, bytes_done, bytes_total }) {
                    ControlFlow::Continue(()) => Ok(()),
                    ControlFlow::Break(()) => Err(Error::Cancelled),
                }
            };
            let data = gguf.data(tensor)?;
            write_tensor(writer, tensor, data.as_bytes(), assignment.tensor_type, pool, &mut advance)?;
        }
        Ok(())
    };
    write_file(output, &metadata(gguf.metadata(), recipe), declared, fill)?;
    Ok(report)
}

/// The metadata of the result.
fn metadata(input: &Metadata, recipe: Recipe) -> Metadata {
    let mut metadata = input.clone();
    for key in SPLIT_KEYS {
        metadata.remove(key);
    }
    metadata.insert("general.file_type", recipe.file_type());
    metadata.insert("general.quantization_version", 2_u32);
    metadata
}

/// How many query heads share a key/value head; 1 where the file does not say, or says it per layer.
fn heads_per_kv_head(metadata: &Metadata) -> Result<u64> {
    let Some(architecture) = metadata.get_str("general.architecture")? else { return Ok(1) };
    let count = |key: &str| metadata.get_u64(&format!("{architecture}.attention.{key}")).ok().flatten();
    Ok(match (count("head_count"), count("head_count_kv")) {
        (Some(heads), Some(kv_heads)) => heads.checked_div(kv_heads).unwrap_or(1),
        _ => 1,
    })
}

/// Writes one tensor, a batch of rows at a time; `advance` is told how many bytes of the input are done.
fn write_tensor(
    writer: &mut FileWriter,
    tensor: &TensorInfo,
    data: &[u8],
    to: TensorType,
    pool: &ThreadPool,
    advance: &mut dyn FnMut(usize) -> Result<()>,
) -> Result<()> {
    // A tensor of a type that is unknown here keeps it: the caller has checked.
    let (Some(from), Some(to)) = (block_format(tensor.tensor_type), block_format(to)) else {
        writer.write_chunk(data)?;
        return advance(data.len());
    };
    let cols = tensor.dims.first().map_or(1, |&cols| cols as usize);
    let (Some(from_row), Some(to_row)) = (from.row_bytes(cols), to.row_bytes(cols)) else {
        return Ok(());
    };
    if data.is_empty() {
        return Ok(());
    }
    let rows = Rows { name: &tensor.name, from, to, cols, from_row, to_row };
    let rows_per_batch = (BATCH_VALUES / cols).max(1);
    let mut encoded = Vec::new();
    for (i, batch) in data.chunks(rows_per_batch * from_row).enumerate() {
        encoded.resize(batch.len() / from_row * to_row, 0);
        rows.convert(batch, &mut encoded, i * rows_per_batch, pool)?;
        writer.write_chunk(&encoded)?;
        advance(batch.len())?;
    }
    Ok(())
}

/// The rows of one tensor and what becomes of them.
struct Rows<'a> {
    name: &'a str,
    from: BlockFormat,
    to: BlockFormat,
    cols: usize,
    from_row: usize, // bytes
    to_row: usize,   // bytes
}

impl Rows<'_> {
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
            BlockFormat::F32 | BlockFormat::BF16 => f32::MAX,
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
            self.to.quantize(&values, encoded);
        }
        Ok(())
    }
}
