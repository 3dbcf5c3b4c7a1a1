//! Quantization: [`quantize`] and [`convert`] write a GGUF file whose matrices follow a [`Recipe`];
//! [`InSitu`] does the same while a model is loaded.
//!
//! Of a file a batch of rows at a time is in memory: decoded to f32, encoded, written. Rows are
//! independent, so threads share a batch and the result does not depend on their number.

mod in_situ;
mod options;
mod recipe;
mod rows;

use std::ops::ControlFlow;
use std::path::Path;

use gguf_rs_lite::{FileWriter, Metadata, TensorInfo, TensorType, write_file};
use ruvllm_kernels::ThreadPool;

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::importance::ImportanceMatrix;
use crate::weights::format_of;

pub use self::in_situ::InSitu;
pub use self::options::{QuantizeOptions, TypeOverride};
pub use self::recipe::{Assignment, Recipe};
#[cfg(feature = "merge")]
pub(crate) use self::rows::convert_tensor;

/// Keys that describe how a model was split into several files; the result is one file.
const SPLIT_KEYS: [&str; 3] = ["split.no", "split.count", "split.tensors.count"];

/// Progress of a quantization, in bytes.
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

/// Tensor stored in another type than its recipe's, because its rows are not whole blocks of that
/// type.
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

/// Result of a quantization.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuantizeReport {
    /// Number of tensors.
    pub tensors: usize,
    /// Tensors that did not get the type of their recipe.
    pub fallbacks: Vec<Fallback>,
}

/// Writes `checkpoint` to `output` with the types of `recipe` and `options`.
///
/// All metadata are kept, except that `general.file_type` and `general.quantization_version` say
/// what the file is now. Tensors that are not matrices keep their type, and whatever keeps its type
/// keeps its bytes. The file appears complete or not at all; `progress` is called after each batch
/// and may stop the work.
///
/// # Errors
/// [`Error::UnsupportedTensorType`] for a matrix that cannot be decoded; [`Error::WeightValue`] for
/// a weight that is not finite or too large for the type it gets; [`Error::Cancelled`] after a
/// `Break`; [`Error::Gguf`] if the input is damaged or the output cannot be written;
/// [`Error::OverrideUnmatched`]; [`Error::ImportanceTensor`], [`Error::ImportanceColumns`] or
/// [`Error::ImportanceLayers`] for an importance matrix of another model; those of
/// [`Checkpoint::file_metadata`].
pub fn quantize(
    checkpoint: &dyn Checkpoint,
    output: &Path,
    recipe: Recipe,
    options: &QuantizeOptions<'_>,
    pool: &ThreadPool,
    progress: &mut dyn FnMut(QuantizeProgress<'_>) -> ControlFlow<()>,
) -> Result<QuantizeReport> {
    let assignments = assign(checkpoint, recipe, options)?;
    if let Some(importance) = options.importance {
        importance.check(&checkpoint.tensors().collect::<Vec<_>>())?;
    }
    let mut metadata = file_metadata(checkpoint)?;
    metadata.insert("general.file_type", recipe.file_type());
    metadata.insert("general.quantization_version", 2_u32);
    write(checkpoint, output, &metadata, (&assignments, options.importance), pool, progress)
}

/// Writes `checkpoint`, such as a Hugging Face folder, to `output` as a GGUF file: every matrix in
/// type `matrices`, or in its own if that is `None`.
///
/// # Errors
/// As [`quantize`].
pub fn convert(
    checkpoint: &dyn Checkpoint,
    output: &Path,
    matrices: Option<Recipe>,
    pool: &ThreadPool,
    progress: &mut dyn FnMut(QuantizeProgress<'_>) -> ControlFlow<()>,
) -> Result<QuantizeReport> {
    if let Some(recipe) = matrices {
        let options = QuantizeOptions { pure: true, ..QuantizeOptions::default() };
        return quantize(checkpoint, output, recipe, &options, pool, progress);
    }
    let keep = |tensor: &TensorInfo| Assignment { tensor_type: tensor.tensor_type, instead_of: None };
    let assignments: Vec<Assignment> = checkpoint.tensors().map(keep).collect();
    write(checkpoint, output, &file_metadata(checkpoint)?, (&assignments, None), pool, progress)
}

/// The types that a recipe and options give to the tensors of a checkpoint, in their order.
///
/// # Errors
/// [`Error::UnsupportedTensorType`] for a matrix that would change its type and cannot be decoded;
/// [`Error::OverrideUnmatched`].
fn assign(
    checkpoint: &dyn Checkpoint,
    recipe: Recipe,
    options: &QuantizeOptions<'_>,
) -> Result<Vec<Assignment>> {
    let tensors: Vec<TensorInfo> = checkpoint.tensors().cloned().collect();
    let assignments = options.assign(recipe, &tensors, heads_per_kv_head(checkpoint.metadata())?)?;
    for (tensor, assignment) in tensors.iter().zip(&assignments) {
        if assignment.tensor_type != tensor.tensor_type {
            format_of(tensor)?;
        }
    }
    Ok(assignments)
}

/// Writes a file with the tensors of a checkpoint in the types assigned to them.
fn write(
    checkpoint: &dyn Checkpoint,
    output: &Path,
    metadata: &Metadata,
    (assignments, importance): (&[Assignment], Option<&ImportanceMatrix>),
    pool: &ThreadPool,
    progress: &mut dyn FnMut(QuantizeProgress<'_>) -> ControlFlow<()>,
) -> Result<QuantizeReport> {
    let mut report = QuantizeReport { tensors: assignments.len(), ..QuantizeReport::default() };
    let mut declared = Vec::with_capacity(assignments.len());
    for (tensor, assignment) in checkpoint.tensors().zip(assignments) {
        let used = assignment.tensor_type;
        if let Some(wanted) = assignment.instead_of {
            report.fallbacks.push(Fallback { tensor: tensor.name.clone(), wanted, used });
        }
        let mut dims = tensor.dims.clone();
        if let [_, rows] = &mut dims[..] {
            *rows += checkpoint.padding_rows(tensor);
        }
        declared.push(TensorInfo::new(&tensor.name, dims, used)?);
    }
    let bytes_total = checkpoint.tensors().map(TensorInfo::bytes).fold(0, u64::saturating_add);
    let mut bytes_done = 0;
    let fill = |writer: &mut FileWriter| -> Result<()> {
        for (tensor, assignment) in checkpoint.tensors().zip(assignments) {
            let mut advance = |bytes: usize| {
                bytes_done += bytes as u64;
                match progress(QuantizeProgress { tensor: &tensor.name, bytes_done, bytes_total }) {
                    ControlFlow::Continue(()) => Ok(()),
                    ControlFlow::Break(()) => Err(Error::Cancelled),
                }
            };
            let data = checkpoint.data(tensor)?;
            let means = importance.and_then(|importance| importance.means(&tensor.name));
            let to = rows::Target { tensor_type: assignment.tensor_type, importance: means.as_deref() };
            rows::write_tensor(writer, tensor, data.as_ref(), to, pool, &mut advance)?;
            if let padding @ 1.. = checkpoint.padding_rows(tensor) {
                rows::write_padding(writer, tensor, (data.as_ref(), padding), to, pool)?;
            }
        }
        Ok(())
    };
    write_file(output, metadata, declared, fill)?;
    Ok(report)
}

/// The metadata of a single file with the model.
fn file_metadata(checkpoint: &dyn Checkpoint) -> Result<Metadata> {
    let mut metadata = checkpoint.file_metadata()?;
    for key in SPLIT_KEYS {
        metadata.remove(key);
    }
    Ok(metadata)
}

/// Number of query heads per key/value head; 1 if the file does not say, or says it per layer.
fn heads_per_kv_head(metadata: &Metadata) -> Result<u64> {
    let Some(architecture) = metadata.get_str("general.architecture")? else { return Ok(1) };
    let count = |key: &str| metadata.get_u64(&format!("{architecture}.attention.{key}")).ok().flatten();
    Ok(match (count("head_count"), count("head_count_kv")) {
        (Some(heads), Some(kv_heads)) => heads.checked_div(kv_heads).unwrap_or(1),
        _ => 1,
    })
}
