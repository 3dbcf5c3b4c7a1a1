//! LoRA adapter from the difference of two models.

use std::ops::ControlFlow;

use gguf_rs_lite::TensorInfo;
use ruvllm_adapters::Projection;
use ruvllm_adapters::export::{AdapterFormat, FactorType, NewAdapter};
use ruvllm_adapters::merge::{Compressed, Module, Progress, Rank, compress_dense, reorder_rows};
use ruvllm_kernels::ThreadPool;

use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::weights::format_of;

/// Adapter and the differences that it leaves out.
#[derive(Debug)]
#[non_exhaustive]
pub struct Extracted {
    /// The adapter, and the error of each matrix.
    pub compressed: Compressed,
    /// Tensors that differ and that no LoRA of this engine changes: norms, embeddings, biases.
    pub left_out: Vec<String>,
}

/// Decomposes the difference `tuned - base` of each matrix that adapters change. Equal matrices are
/// left out.
///
/// Both models are read a matrix at a time; two in f32 are in memory, and panels of one in f64.
///
/// # Errors
/// [`Error::TensorDiffers`] for models of other sizes or architectures; an error of the adapter for
/// equal models, a rank of 0, and values that are not finite; [`Error::Cancelled`].
pub fn extract(
    base: &dyn Checkpoint,
    tuned: &dyn Checkpoint,
    rank: Rank,
    (format, factors): (AdapterFormat, FactorType),
    pool: &ThreadPool,
    progress: &mut Progress<'_>,
) -> Result<Extracted> {
    let shape = ModelConfig::from_checkpoint(base)?.adapter_base();
    let other = ModelConfig::from_checkpoint(tuned)?.adapter_base();
    if shape.architecture != other.architecture {
        let (found, expected) = (other.architecture, shape.architecture);
        return Err(ruvllm_adapters::Error::Architecture { found, expected }.into());
    }
    let tensors: Vec<&TensorInfo> = base.tensors().collect();
    let (mut updates, mut deviations, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
    for (done, tensor) in tensors.iter().enumerate() {
        advance(progress, done, tensors.len())?;
        let Some(difference) = difference(base, tuned, tensor)? else { continue };
        let place = Projection::of_gguf_name(&tensor.name).filter(|_| tensor.dims.len() == 2);
        let Some((named, layer)) = place else {
            left_out.push(tensor.name.clone());
            continue;
        };
        let projection =
            if shape.joint_feed_forward && named == Projection::Up { Projection::GateUp } else { named };
        let sizes = [tensor.dims[0] as usize, tensor.dims[1] as usize];
        let module = Module::new((projection, layer), sizes, &tensor.name);
        let difference = reorder_rows(difference, &module, &shape, true, format);
        let (update, deviation) = compress_dense(&module, &difference, rank, factors, pool)?;
        updates.push(update);
        deviations.push(deviation);
    }
    advance(progress, tensors.len(), tensors.len())?;
    let more = tuned.tensors().filter(|tensor| base.tensor(&tensor.name).is_none());
    left_out.extend(more.map(|tensor| tensor.name.clone()));
    let adapter = NewAdapter::new(format, Some(shape.architecture), factors, updates)?;
    Ok(Extracted { compressed: Compressed { adapter, deviations }, left_out })
}

fn advance(progress: &mut Progress<'_>, done: usize, total: usize) -> Result<()> {
    match progress(done, total) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Cancelled),
    }
}

/// `tuned - base` of a tensor; `None` if they are equal.
fn difference(
    base: &dyn Checkpoint,
    tuned: &dyn Checkpoint,
    tensor: &TensorInfo,
) -> Result<Option<Vec<f32>>> {
    let other = tuned.tensor(&tensor.name);
    let Some(other) = other.filter(|other| other.dims == tensor.dims) else {
        return Err(Error::TensorDiffers {
            name: tensor.name.clone(),
            base: tensor.dims.clone(),
            tuned: other.map(|other| other.dims.clone()).unwrap_or_default(),
        });
    };
    let (data, tuned_data) = (base.data(tensor)?, tuned.data(other)?);
    if tensor.tensor_type == other.tensor_type && data.as_ref() == tuned_data.as_ref() {
        return Ok(None);
    }
    let n = tensor.elements() as usize;
    let (mut before, mut after) = (vec![0.0; n], vec![0.0; n]);
    format_of(tensor)?.dequantize(data.as_ref(), &mut before);
    format_of(other)?.dequantize(tuned_data.as_ref(), &mut after);
    after.iter_mut().zip(&before).for_each(|(after, before)| *after -= before);
    Ok(after.iter().any(|&value| value != 0.0).then_some(after))
}
