//! The engine of a measurement.

use clap::Args;
use ruvllm::{Engine, KvPolicy};

use crate::args::{AdapterArgs, ComputeArgs, KV_HELP, ModelArgs, kv_policy};
use crate::commands::load;
use crate::error::Result;

/// The engine that is measured. Keys and values are exact unless others are asked for.
#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    #[arg(long, value_name = "POLICY", help = KV_HELP, default_value = "f32", value_parser = kv_policy)]
    kv: KvPolicy,

    #[command(flatten)]
    pub(super) model: ModelArgs,

    #[command(flatten)]
    adapters: AdapterArgs,

    #[command(flatten)]
    compute: ComputeArgs,
}

impl EngineArgs {
    pub(super) fn load(&self) -> Result<Engine> {
        let mut engine = load::engine(&self.model, self.compute.options(Some(self.kv)))?;
        self.adapters.apply(&mut engine)?;
        Ok(engine)
    }
}
