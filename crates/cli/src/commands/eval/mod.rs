//! `ruvllm eval`: measurements of a model's output rather than of its speed.

mod engine;
pub(crate) mod logits;
pub(crate) mod passkey;
pub(crate) mod perplexity;

use clap::Subcommand;

/// Measure a model: perplexity of a text, retrieval from a text, logits of given tokens
#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    Perplexity(perplexity::PerplexityArgs),
    Passkey(passkey::PasskeyArgs),
    Logits(logits::LogitsArgs),
}
