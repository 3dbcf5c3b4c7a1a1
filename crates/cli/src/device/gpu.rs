//! The GPU backend for a command.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ruvllm::{
    BackendQueue, EngineOptions, GpuAdapter, GpuAdapterKind, GpuBackend, GpuOptions, InferenceBackend,
    ModelSource, gpu_adapters,
};
use ruvllm_server::{BackendLoader, LoadedBackend};

use super::choice::Wanted;
use super::error::DeviceError;
use super::loaded::{GpuFacts, GpuModel, Loaded};
use crate::args::{AdapterArgs, ModelArgs};
use crate::commands::offer;
use crate::error::{Error, Result, one_line};
use crate::output;

/// Backend options for the adapter with an index, which may be a software one, or for the best GPU.
pub(crate) fn gpu_options(index: Option<usize>) -> GpuOptions {
    GpuOptions {
        adapter: index.map(|index| index.to_string()),
        software: index.is_some(),
        ..GpuOptions::default()
    }
}

/// Loads the model of a command on a GPU; `lora` become the default adapters.
///
/// # Errors
/// An absent adapter; a model that cannot be opened or that the backend does not support; LoRA
/// adapters that cannot be used.
pub(super) fn open(
    model: &ModelArgs,
    options: &EngineOptions,
    wanted: Wanted,
    lora: Option<&AdapterArgs>,
) -> Result<Loaded> {
    let (index, layers) = (wanted.index, wanted.layers);
    let choice = offer::model(model.model.as_deref())?;
    let (load_time, mut backend) = load(&choice.source(), &backend_options(options, wanted), index)?;
    if let (Some(lora), Some(adapters)) = (lora, backend.backend_adapters()) {
        let loaded = lora.load_in(adapters)?;
        backend.set_adapters(&loaded)?;
    }
    let facts = GpuFacts {
        adapter: backend.adapter(),
        weights_bytes: backend.weight_bytes(),
        host_weights_bytes: backend.host_weight_bytes(),
        kv_bytes: backend.kv_bytes(),
    };
    load_warnings(&backend, layers).iter().for_each(|warning| output::warn(warning));
    output::detail(&load_details(&backend, load_time));
    let backend = Rc::new(backend);
    let finished = Rc::clone(&backend);
    let finish = Box::new(move || {
        if finished.cache_file().is_some() {
            finished.finish_kernels();
        }
        warn(&finished);
        output::detail(&kernel_details(&finished));
    });
    Ok(Loaded::Gpu(GpuModel { backend, load_time, facts, finish }))
}

/// Fails unless there is an adapter with an index, or a GPU that is chosen without one.
///
/// # Errors
/// [`DeviceError::NoGpu`], [`DeviceError::NoAdapter`].
pub(super) fn present(index: Option<usize>) -> Result<()> {
    absent(&gpu_adapters(), index).map_or(Ok(()), |error| Err(error.into()))
}

/// Loader of a served model. `falls_back`: the engine computes what the GPU cannot load.
pub(super) fn served(
    source: ModelSource,
    options: &EngineOptions,
    wanted: Wanted,
    falls_back: bool,
) -> BackendLoader {
    let options = backend_options(options, wanted);
    BackendLoader::new(move || match GpuBackend::load(&source, &options) {
        Ok(backend) => {
            let warnings = load_warnings(&backend, options.layers);
            let queue = BackendQueue::start(Arc::new(backend))?;
            Ok(LoadedBackend::Queue { queue, warnings })
        }
        Err(error) if falls_back => Ok(LoadedBackend::Engine { reason: one_line(&error) }),
        Err(error) => Err(error),
    })
}

/// Layers without room that nobody chose, a prediction head without room, matrices that were
/// converted, and the reasons not to use the file of the compiled kernels. `layers`: as wanted.
fn load_warnings(backend: &GpuBackend, layers: Option<usize>) -> Vec<String> {
    let converted = backend.converted();
    let first = converted.first().map(|first| {
        let n = converted.len();
        format!("{n} matrices of types without GPU kernels are kept in F16, first {first}")
    });
    let (all, on_host) = (backend.config().n_layers, backend.host_layers());
    let slow = (on_host > 0 && layers.is_none()).then(|| {
        let bytes = output::bytes(backend.host_weight_bytes());
        format!("weights of {on_host} of {all} layers ({bytes}) are in host memory, read over the bus")
    });
    let head = backend.head_is_left_out().then(|| {
        "the model's prediction head has no room on the GPU: drafts come from look-up alone".to_owned()
    });
    slow.into_iter().chain(head).chain(first).chain(backend.take_cache_warnings()).collect()
}

/// Prints the reasons not to use the file of the compiled kernels.
fn warn(backend: &GpuBackend) {
    for warning in backend.take_cache_warnings() {
        output::warn(&warning);
    }
}

/// Parts of the load time, for `--verbose`.
fn load_details(backend: &GpuBackend, load_time: Duration) -> String {
    let times = backend.load_times();
    let rows = [
        ("open the device", times.open),
        ("read the model", times.read),
        ("allocate and prepare", times.allocate),
        ("upload weights", times.upload),
    ];
    let cache = match backend.cache_file() {
        Some(file) => format!("{}, {} read", file.path.display(), output::bytes(file.loaded_bytes)),
        None => "none".to_owned(),
    };
    let head = match backend.head_bytes() {
        0 => String::new(),
        bytes => format!("\n  prediction head: {} of its own on the device", output::bytes(bytes)),
    };
    format!(
        "model loaded in {:.0} ms on {}\n{}  file of compiled kernels: {cache}{head}",
        milliseconds(load_time),
        backend.adapter(),
        times_table(&rows)
    )
}

/// Times of the kernels, for `--verbose`.
fn kernel_details(backend: &GpuBackend) -> String {
    let times = backend.compile_times();
    let rows = [
        ("generate WGSL", times.source),
        ("parse and validate (naga)", times.module),
        ("translate (naga) and compile (driver)", times.pipeline),
        ("submissions that waited", times.waited),
    ];
    format!("{} kernels, all threads together\n{}", times.kernels, times_table(&rows))
}

fn times_table(rows: &[(&str, Duration)]) -> String {
    let row =
        |&(name, time): &(&str, Duration)| vec![format!("  {name}"), format!("{:.1} ms", milliseconds(time))];
    output::table(&rows.iter().map(row).collect::<Vec<_>>(), &[1])
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Loads the backend; also returns the load time.
///
/// # Errors
/// As [`open`].
pub(crate) fn backend(
    model: &ModelArgs,
    options: &EngineOptions,
    index: Option<usize>,
    cache_dir: Option<PathBuf>,
) -> Result<(Duration, GpuBackend)> {
    let choice = offer::model(model.model.as_deref())?;
    let wanted = Wanted {
        index,
        sequences: None,
        layers: None,
        memory: None,
        kv_bytes: None,
        host_kv_bytes: 0,
        slots: None,
        cache: cache_dir,
    };
    load(&choice.source(), &backend_options(options, wanted), index)
}

/// Options of the backend for those of the engine.
fn backend_options(options: &EngineOptions, wanted: Wanted) -> GpuOptions {
    let Wanted { index, sequences, layers, memory, kv_bytes, host_kv_bytes, slots, cache } = wanted;
    let usual = gpu_options(index);
    GpuOptions {
        adapter_slots: slots.unwrap_or(usual.adapter_slots),
        context: options.context,
        kv_bytes,
        host_kv_bytes,
        kv: options.kv.unwrap_or(usual.kv),
        sequences: sequences.unwrap_or(1),
        layers,
        budget: memory,
        tokenizer: options.tokenizer.clone(),
        prefill_chunk: options.prefill_chunk,
        speculation: options.speculation,
        draft: options.draft.clone(),
        draft_head: options.draft_head,
        cache_dir: cache,
        ..usual
    }
}

fn load(source: &ModelSource, options: &GpuOptions, index: Option<usize>) -> Result<(Duration, GpuBackend)> {
    let start = Instant::now();
    let backend = GpuBackend::load(source, options).map_err(|error| explain(error, index))?;
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
