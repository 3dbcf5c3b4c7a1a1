//! `ruvllm eval`: measurements of a model's output rather than of its speed.

pub(crate) mod logits;
pub(crate) mod passkey;
pub(crate) mod perplexity;

use clap::{Args, Subcommand};
use ruvllm::{Engine, KvPolicy};

use super::load;
use crate::args::{AdapterArgs, ComputeArgs, KV_HELP, ModelArgs, kv_policy};
use crate::error::Result;

/// Measure a model: perplexity of a text, retrieval from a text, logits of given tokens
#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    Perplexity(perplexity::PerplexityArgs),
    Passkey(passkey::PasskeyArgs),
    Logits(logits::LogitsArgs),
}

/// The engine that is measured. Keys and values are exact unless others are asked for.
#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    #[arg(long, value_name = "POLICY", help = KV_HELP, default_value = "f32", value_parser = kv_policy)]
    kv: KvPolicy,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    adapters: AdapterArgs,

    #[command(flatten)]
    compute: ComputeArgs,
}

impl EngineArgs {
    fn load(&self) -> Result<Engine> {
        let mut engine = load::engine(&self.model, self.compute.options(Some(self.kv)))?;
        self.adapters.apply(&mut engine)?;
        Ok(engine)
    }
}
