//! Flags of the model and the engine: threads, instruction set, device, loading, memory.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use ruvllm::{EngineOptions, Isa, KvCalibration, KvPolicy, PressurePolicy};
use ruvllm_models::quantize::Recipe;

use super::kernel_pack::KernelPackArgs;
use super::values::{bytes, isa, kv_calibration, positive, recipe};
use crate::device::DeviceArgs;
use crate::error::Result;

/// The model of a command.
#[derive(Debug, Clone, Args)]
pub(crate) struct ModelArgs {
    #[arg(
        long,
        short,
        value_name = "MODEL",
        help = "GGUF file, HF folder, pulled model, or ORG/REPO[/FILE] on the Hugging Face hub, with or \
                without hf:// [default: RUVLLM_MODEL, or the built-in one]"
    )]
    pub(crate) model: Option<PathBuf>,
}

/// Threads, instruction set and memory of the engine.
#[derive(Debug, Clone, Args)]
pub(crate) struct ComputeArgs {
    /// Number of threads [default: one for each core]
    #[arg(long, short, value_name = "N", value_parser = positive)]
    pub(crate) threads: Option<usize>,

    /// Instruction set by name; `ruvllm doctor` lists those of this machine [default: the best]
    #[arg(long, value_name = "ISA", value_parser = isa)]
    pub(crate) isa: Option<Isa>,

    #[command(flatten)]
    pub(crate) device: DeviceArgs,

    #[command(flatten)]
    pub(crate) loading: LoadingArgs,

    /// Memory budget of the KV cache, e.g. 512MiB [default: 4 contexts, as memory allows]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) kv_budget: Option<usize>,

    /// On memory pressure: lower-precision (default), evict-prefixes, spill, reject, drop-oldest
    #[arg(long, value_name = "POLICY", default_value_t, hide_default_value = true)]
    pub(crate) pressure: PressurePolicy,

    #[command(flatten)]
    pub(crate) calibration: CalibrationArgs,

    #[command(flatten)]
    kernel_pack: KernelPackArgs,
}

impl ComputeArgs {
    /// Engine options of these flags.
    ///
    /// # Errors
    /// As [`KernelPackArgs::apply`].
    pub(crate) fn options(&self, kv: Option<KvPolicy>) -> Result<EngineOptions> {
        let Self { threads, isa, ref loading, kv_budget, pressure, ref calibration, .. } = *self;
        let kv_calibration = calibration.kv_calibration.clone();
        let options = loading
            .options()
            .with_threads(threads)
            .with_isa(isa)
            .with_kv(kv)
            .with_kv_calibration(kv_calibration)
            .with_kv_budget(kv_budget)
            .with_pressure(pressure);
        self.kernel_pack.apply(options)
    }
}

/// Form and place of the weights in memory.
#[derive(Debug, Clone, Args)]
pub(crate) struct LoadingArgs {
    /// Quantize the weights while loading; TYPE as for `ruvllm quantize` [default: as they are]
    #[arg(long, value_name = "TYPE", value_parser = recipe)]
    quantize: Option<Recipe>,

    /// Read the model's files into memory instead of mapping them: they may change meanwhile
    #[arg(long)]
    no_mmap: bool,

    /// Lock the model's files in memory, as far as `ulimit -l` allows
    #[arg(long, conflicts_with = "quantize")]
    mlock: bool,
}

impl LoadingArgs {
    /// Engine options of these flags.
    pub(crate) fn options(&self) -> EngineOptions {
        let Self { quantize, no_mmap, mlock } = *self;
        EngineOptions::default().with_quantize(quantize).with_mmap(!no_mmap).with_mlock(mlock)
    }
}

/// Model, loading and threads of a command that computes on the CPU alone.
#[derive(Debug, Clone, Args)]
pub(crate) struct CpuArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten)]
    loading: LoadingArgs,

    /// Number of threads [default: one for each core]
    #[arg(long, short, value_name = "N", value_parser = positive)]
    threads: Option<usize>,
}

impl CpuArgs {
    /// A model with the defaults of the other flags; `None` = the one without `--model`.
    pub(crate) fn of_model(model: Option<PathBuf>) -> Self {
        let loading = LoadingArgs { quantize: None, no_mmap: false, mlock: false };
        Self { model: ModelArgs { model }, loading, threads: None }
    }

    /// Engine options of these flags.
    pub(crate) fn options(&self) -> EngineOptions {
        self.loading.options().with_threads(self.threads)
    }
}

/// Options of the KV-cache calibration.
#[derive(Debug, Clone, Args)]
pub(crate) struct CalibrationArgs {
    /// File of `ruvllm calibrate-kv`, for a --kv with nuq3
    #[arg(long, value_name = "FILE", value_parser = kv_calibration)]
    pub(crate) kv_calibration: Option<Arc<KvCalibration>>,
}
