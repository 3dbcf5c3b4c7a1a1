//! Engine flags of `ruvllm eval`.

use clap::Args;
use ruvllm::{Engine, KvPolicy};
use ruvllm_kernels::attention::KvFormat;

use crate::args::{AdapterArgs, ComputeArgs, KV_HELP, ModelArgs, kv_policy};
use crate::commands::load;
use crate::device::{Defaults, Loaded};
use crate::error::Result;

/// KV format on the CPU without `--kv`.
const EXACT: KvFormat = KvFormat::F32;

/// The engine that is measured. Keys and values are exact unless others are asked for.
#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    #[arg(
        long,
        value_name = "POLICY",
        help = format!("{KV_HELP}\n[default: f32; f16 on a GPU]"),
        value_parser = kv_policy
    )]
    kv: Option<KvPolicy>,

    #[command(flatten)]
    pub(super) model: ModelArgs,

    #[command(flatten)]
    adapters: AdapterArgs,

    #[command(flatten)]
    compute: ComputeArgs,
}

impl EngineArgs {
    /// Loads the model on its device, for sequences of `context` tokens.
    pub(super) fn load(&self, context: usize) -> Result<Loaded> {
        let defaults =
            Defaults { gpu_context: Some(context), cpu_kv: Some(EXACT.into()), ..Defaults::default() };
        self.compute.device.load(&self.model, &self.adapters, self.compute.options(self.kv)?, defaults)
    }

    /// Loads a reference for the engine on the CPU, with the same threads: another model or policy,
    /// weights as stored, no adapters and no kernel pack.
    pub(super) fn load_reference(&self, model: &ModelArgs, kv: KvPolicy) -> Result<Engine> {
        let mut options = self.compute.options(Some(kv))?;
        options.quantize = None;
        options.row_kernels = None;
        // A calibration without a tier for it is an error.
        options.kv_calibration = options.kv_calibration.filter(|_| kv.needs_calibration());
        load::engine(model, options)
    }

    /// Loads the engine for a `command` that runs on the CPU alone.
    pub(super) fn load_engine(&self, command: &'static str) -> Result<Engine> {
        self.compute.device.cpu_only(command)?;
        let kv = self.kv.unwrap_or(EXACT.into());
        let mut engine = load::engine(&self.model, self.compute.options(Some(kv))?)?;
        self.adapters.apply(&mut engine)?;
        Ok(engine)
    }
}
