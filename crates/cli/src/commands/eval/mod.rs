//! `ruvllm eval`: measurements of a model's output rather than of its speed.

pub(crate) mod agents;
mod engine;
pub(crate) mod kl;
pub(crate) mod logits;
pub(crate) mod passkey;
pub(crate) mod perplexity;
mod routing;
mod text;
pub(crate) mod tools;

use clap::Subcommand;

/// Evaluate a model: perplexity, KL divergence, passkey retrieval, logits, tool calls, routing,
/// embeddings
#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    Perplexity(perplexity::PerplexityArgs),
    Kl(kl::KlArgs),
    Passkey(passkey::PasskeyArgs),
    Logits(logits::LogitsArgs),
    Tools(tools::ToolsArgs),
    Routing(agents::RoutingArgs),
    Embedding(agents::EmbeddingArgs),
    Full(agents::FullArgs),
}
