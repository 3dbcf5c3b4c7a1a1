//! `ruvllm eval`: measurements of a model's output rather than of its speed.

mod engine;
pub(crate) mod logits;
pub(crate) mod passkey;
pub(crate) mod perplexity;

use clap::Subcommand;

/// Evaluate a model: perplexity, passkey retrieval, logits
#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    Perplexity(perplexity::PerplexityArgs),
    Passkey(passkey::PasskeyArgs),
    Logits(logits::LogitsArgs),
}
