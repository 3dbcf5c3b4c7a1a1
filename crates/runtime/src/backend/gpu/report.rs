//! Reports about adapters: selection, self-test, generated kernels.

use std::time::{Duration, Instant};

use ruvllm_gpu::self_test;

use super::refusal::{NAME, Refusal};
use super::states::StateNumbers;
use super::{GpuAdapter, GpuBackend, GpuCacheFile, GpuCompileTimes, GpuOptions, open, selection};
use crate::error::{Error, Result};

/// WGSL source of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuKernel {
    /// Name, unique per device: operation, format and shape.
    pub name: String,
    /// Generated WGSL source.
    pub source: String,
}

/// Times of [`GpuBackend::load`], one after the other, with those of the draft model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GpuLoadTimes {
    /// Driver, adapter and device.
    pub open: Duration,
    /// Mapping and checking the model's files, tokenizer included.
    pub read: Duration,
    /// Device memory, vectors, and preparing the passes whose kernels are compiled meanwhile.
    pub allocate: Duration,
    /// Repacking and uploading matrices.
    pub upload: Duration,
}

/// Counts of the states of a model whose layers keep one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuStates {
    /// Sequences that the device has states for.
    pub sequences: usize,
    /// States for drafts and stored prefixes ([`GpuOptions::spare_states`]).
    pub spare: usize,
    /// Bytes of all states, a part of [`GpuBackend::kv_bytes`].
    pub bytes: u64,
}

impl GpuBackend {
    /// States on the device; `None` for a model whose layers keep none.
    pub fn states(&self) -> Option<GpuStates> {
        let pool = self.executor.pool.states.as_ref()?;
        let StateNumbers { sequences, spare, .. } = pool.numbers();
        Some(GpuStates { sequences, spare, bytes: pool.bytes() })
    }
}

impl GpuLoadTimes {
    /// Adds the times of another load on the same device.
    pub(super) fn add(&mut self, other: Self) {
        self.read += other.read;
        self.allocate += other.allocate;
        self.upload += other.upload;
    }
}

/// Result of [`gpu_self_test`].
#[derive(Debug, Clone)]
pub struct GpuSelfTest {
    /// Tested adapter.
    pub adapter: GpuAdapter,
    /// Worst case of each operation and property.
    pub checks: Vec<self_test::Check>,
    /// Number of compiled kernels.
    pub kernels: usize,
    /// Duration of the test, without opening the device.
    pub time: Duration,
}

impl GpuSelfTest {
    /// True if every check passed.
    pub fn passed(&self) -> bool {
        self.checks.iter().all(self_test::Check::passed)
    }
}

/// Index of the adapter in `all` that the options select; opens no device.
///
/// # Errors
/// [`Error::Backend`] if no adapter matches.
pub fn gpu_choose(all: &[GpuAdapter], options: &GpuOptions) -> Result<usize> {
    selection(options).choose(all).map_err(|source| Error::Backend {
        backend: NAME.to_owned(),
        action: "open a GPU".to_owned(),
        source: source.into(),
    })
}

/// Runs every kernel on random shapes, `rounds` times, and compares with a float64 reference; then
/// kernels of all kinds on `shapes` small random shapes or a few more, in checks of their own.
///
/// # Errors
/// [`Error::Backend`] without an adapter and if the device fails; a wrong result is a failed check,
/// not an error.
pub fn gpu_self_test(options: &GpuOptions, rounds: usize, shapes: usize) -> Result<GpuSelfTest> {
    let failed = |refusal: Refusal| refusal.into_error("the self-test");
    let gpu = open(options).map_err(failed)?;
    let start = Instant::now();
    let run = || -> std::result::Result<_, ruvllm_gpu::Error> {
        let mut checks = self_test::run(&gpu, SEED, rounds)?;
        for mut check in self_test::shapes(&gpu, SEED, shapes, None)?.checks {
            check.name.push_str(", small");
            checks.push(check);
        }
        Ok(checks)
    };
    let checks =
        run().map_err(|source| failed(Refusal::Gpu { action: "run the self-test".to_owned(), source }))?;
    let (adapter, kernels) = (gpu.info().clone(), gpu.kernels().len());
    Ok(GpuSelfTest { adapter, checks, kernels, time: start.elapsed() })
}

/// Fixed seed of the self-test, so that reports of two devices are comparable.
const SEED: u64 = 20;

impl GpuBackend {
    /// Name and driver of the adapter.
    pub fn adapter(&self) -> String {
        self.executor.gpu.info().to_string()
    }

    /// Names and formats of matrices stored as F16 because their format has no kernels. Values are
    /// rounded once, to 11 bits.
    pub fn converted(&self) -> &[String] {
        &self.converted
    }

    /// Bytes of the matrices in memory of the device, with those of the prediction head.
    pub fn weight_bytes(&self) -> u64 {
        self.executor.weights.bytes.device
    }

    /// Bytes of the matrices in memory of the host that the device reads over the bus.
    pub fn host_weight_bytes(&self) -> u64 {
        self.executor.weights.bytes.host
    }

    /// Number of layers whose weights lie in memory of the host.
    pub fn host_layers(&self) -> usize {
        self.executor.weights.host_layers
    }

    /// Bytes of the KV pool on the device, for all sequences, with the states of layers that keep
    /// one.
    pub fn kv_bytes(&self) -> u64 {
        self.executor.pool.bytes()
    }

    /// Bytes of the places in memory of the host for prefixes.
    pub fn host_kv_bytes(&self) -> u64 {
        self.executor.pool.host_bytes()
    }

    /// Bytes of the factors of adapters on the device.
    pub fn adapter_bytes(&self) -> u64 {
        self.executor.passes().adapter_bytes()
    }

    /// Bytes of device memory in use.
    pub fn device_bytes(&self) -> u64 {
        self.executor.gpu.used()
    }

    /// Bytes of the matrices that the prediction head has of its own; 0 without one.
    pub fn head_bytes(&self) -> u64 {
        self.head.as_deref().map_or(0, |head| head.executor.weights.bytes.device)
    }

    /// True if the model has a prediction head that the options ask for, and the device no room or
    /// no kernel for it.
    pub fn head_is_left_out(&self) -> bool {
        self.head_is_left_out
    }

    /// Times of the load.
    pub fn load_times(&self) -> GpuLoadTimes {
        self.times
    }

    /// Times of the compilation of kernels up to now, all threads together.
    pub fn compile_times(&self) -> GpuCompileTimes {
        self.executor.gpu.compile_times()
    }

    /// File of the compiled kernels; `None` without one.
    pub fn cache_file(&self) -> Option<&GpuCacheFile> {
        self.executor.gpu.cache_file()
    }

    /// Reasons since the last call not to use the file of the compiled kernels. Each is one line.
    pub fn take_cache_warnings(&self) -> Vec<String> {
        self.executor.gpu.take_cache_warnings().iter().map(ToString::to_string).collect()
    }

    /// Waits for the kernels that are being compiled and writes their file. Dropping the backend
    /// writes it too.
    pub fn finish_kernels(&self) {
        self.executor.gpu.finish_kernels();
    }

    /// Sources of the kernels that the model uses on this device, with their names. Prepares the
    /// passes of short and long prompts and contexts first.
    ///
    /// # Errors
    /// [`Error::Backend`] if other sequences occupy the KV blocks, and if the device fails.
    pub fn kernels(&self) -> Result<Vec<GpuKernel>> {
        self.gpu_session(self.context)?.prepare_sizes()?;
        let gpu = &self.executor.gpu;
        let text = |kernel: &ruvllm_gpu::Kernel| GpuKernel {
            name: kernel.name(),
            source: kernel.source(gpu.target()),
        };
        Ok(gpu.kernels().iter().map(text).collect())
    }
}
