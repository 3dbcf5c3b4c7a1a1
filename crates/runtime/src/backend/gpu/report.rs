//! Reports about adapters: selection, self-test, generated kernels.

use std::time::{Duration, Instant};

use ruvllm_gpu::self_test;

use super::refusal::{NAME, Refusal};
use super::{GpuAdapter, GpuBackend, GpuOptions, open, selection};
use crate::error::{Error, Result};

/// WGSL text of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuKernel {
    /// Name, unique per device: operation, format and shape.
    pub name: String,
    /// The generated text.
    pub source: String,
}

/// Result of [`gpu_self_test`].
#[derive(Debug, Clone)]
pub struct GpuSelfTest {
    /// The adapter that was tested.
    pub adapter: GpuAdapter,
    /// Worst case of each operation and property.
    pub checks: Vec<self_test::Check>,
    /// Kernels that were compiled.
    pub kernels: usize,
    /// Time of the test without opening the device.
    pub time: Duration,
}

impl GpuSelfTest {
    /// True if every bound holds.
    pub fn passed(&self) -> bool {
        self.checks.iter().all(self_test::Check::passed)
    }
}

/// Position of the adapter of `all` that the options select; none is opened.
///
/// # Errors
/// [`Error::Backend`] if there is none, or none that the options name.
pub fn gpu_choose(all: &[GpuAdapter], options: &GpuOptions) -> Result<usize> {
    selection(options).choose(all).map_err(|source| Error::Backend {
        backend: NAME.to_owned(),
        action: "open a GPU".to_owned(),
        source: source.into(),
    })
}

/// Runs every kernel on random shapes, `rounds` times, and compares with float64.
///
/// # Errors
/// [`Error::Backend`] without an adapter and if the device fails; a wrong result is no error but a
/// check that did not pass.
pub fn gpu_self_test(options: &GpuOptions, rounds: usize) -> Result<GpuSelfTest> {
    let failed = |refusal: Refusal| refusal.into_error("the self-test");
    let gpu = open(options).map_err(failed)?;
    let start = Instant::now();
    let checks = self_test::run(&gpu, SEED, rounds)
        .map_err(|source| failed(Refusal::Gpu { action: "run the self-test".to_owned(), source }))?;
    let (adapter, kernels) = (gpu.info().clone(), gpu.kernels().len());
    Ok(GpuSelfTest { adapter, checks, kernels, time: start.elapsed() })
}

/// Seed of the self-test's shapes and values: reports of two devices are of the same work.
const SEED: u64 = 20;

impl GpuBackend {
    /// Texts of the kernels that the model uses on this device, by name. Compiles those of short
    /// and long prompts and contexts first.
    ///
    /// # Errors
    /// [`Error::Backend`] if another sequence has the KV blocks, and if the device fails.
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
