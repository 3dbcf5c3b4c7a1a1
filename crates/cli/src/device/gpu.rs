//! The GPU backend for a command.

use std::time::{Duration, Instant};

use ruvllm::{EngineOptions, GpuAdapter, GpuAdapterKind, GpuBackend, GpuOptions, gpu_adapters};

use super::error::DeviceError;
use super::loaded::{GpuFacts, GpuModel, Loaded};
use crate::args::ModelArgs;
use crate::commands::offer;
use crate::error::{Error, Result};
use crate::output;

/// Backend options for the adapter with an index, which may be a software one, or for the best GPU.
pub(crate) fn gpu_options(index: Option<usize>) -> GpuOptions {
    GpuOptions {
        adapter: index.map(|index| index.to_string()),
        software: index.is_some(),
        ..GpuOptions::default()
    }
}

/// Loads the model of a command on a GPU.
///
/// # Errors
/// An absent adapter; a model that cannot be opened or that the backend does not support.
pub(super) fn open(model: &ModelArgs, options: &EngineOptions, index: Option<usize>) -> Result<Loaded> {
    let (load_time, backend) = backend(model, options, index)?;
    let facts = GpuFacts {
        adapter: backend.adapter(),
        weights_bytes: backend.weight_bytes(),
        kv_bytes: backend.kv_bytes(),
    };
    if let [first, ..] = backend.converted() {
        let n = backend.converted().len();
        output::warn(&format!("{n} matrices of types without GPU kernels are kept in F16, first {first}"));
    }
    Ok(Loaded::Gpu(GpuModel { backend: Box::new(backend), load_time, facts }))
}

/// Loads the backend; also returns the load time.
///
/// # Errors
/// As [`open`].
pub(crate) fn backend(
    model: &ModelArgs,
    options: &EngineOptions,
    index: Option<usize>,
) -> Result<(Duration, GpuBackend)> {
    let choice = offer::model(model.model.as_deref())?;
    let start = Instant::now();
    let gpu_options = GpuOptions {
        context: options.context,
        tokenizer: options.tokenizer.clone(),
        prefill_chunk: options.prefill_chunk,
        ..gpu_options(index)
    };
    let backend = GpuBackend::load(&choice.source(), &gpu_options).map_err(|error| explain(error, index))?;
    Ok((start.elapsed(), backend))
}

/// Converts the error of a load; if no adapter was found, to a [`DeviceError`] that names the
/// flags.
pub(crate) fn explain(error: ruvllm::Error, index: Option<usize>) -> Error {
    if !matches!(error, ruvllm::Error::Backend { .. }) {
        return error.into();
    }
    absent(&gpu_adapters(), index).map_or_else(|| error.into(), Into::into)
}

/// The reason that no adapter of `all` is selected; `None` if one is.
pub(crate) fn absent(all: &[GpuAdapter], index: Option<usize>) -> Option<DeviceError> {
    let name = |adapter: &GpuAdapter| format!("gpu:{} is {}", adapter.index, adapter.name);
    let names = |adapters: &[GpuAdapter]| match adapters {
        [] => "the driver lists none".to_owned(),
        list => list.iter().map(name).collect::<Vec<_>>().join(", "),
    };
    match index {
        Some(index) if all.iter().any(|adapter| adapter.index == index) => None,
        Some(_) if all.is_empty() => Some(DeviceError::NoGpu { reason: names(all) }),
        Some(index) => Some(DeviceError::NoAdapter { index, present: names(all) }),
        None if all.iter().any(|adapter| adapter.kind != GpuAdapterKind::Software) => None,
        None if all.is_empty() => Some(DeviceError::NoGpu { reason: names(all) }),
        None => Some(DeviceError::NoGpu { reason: format!("{} (software, only by its number)", names(all)) }),
    }
}
