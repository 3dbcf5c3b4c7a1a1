//! `ruvllm eval`: measurements of a model's output rather than of its speed.

mod engine;
pub(crate) mod logits;
pub(crate) mod passkey;
pub(crate) mod perplexity;
pub(crate) mod tools;

use clap::Subcommand;

/// Evaluate a model: perplexity, passkey retrieval, logits, tool calls
#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    Perplexity(perplexity::PerplexityArgs),
    Passkey(passkey::PasskeyArgs),
    Logits(logits::LogitsArgs),
    Tools(tools::ToolsArgs),
}
