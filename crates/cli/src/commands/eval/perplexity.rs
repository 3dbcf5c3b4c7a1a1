//! `ruvllm eval perplexity`: how well a model predicts a text.

use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;
use ruvllm::Perplexity;
use serde::Serialize;

use super::engine::EngineArgs;
use crate::args::positive;
use crate::commands::load;
use crate::error::Result;
use crate::progress::Progress;
use crate::{input, output};

const HELP: &str = "\
The file is encoded once, without BOS or other additions, and cut into consecutive windows of N tokens without
overlap. Each window starts from an empty cache; its first token is not scored, and a last window that is not full is
left out.

JSON: {perplexity, nll, tokens, kv_bytes_per_token}; nll is the mean of -ln p over the scored tokens, perplexity is
exp(nll), tokens is the number of scored tokens, and the last field tells the size of keys and values at the end of a
window. With a tiered --kv the text is computed a block at a time, so that each token sees what generating it would.
With --device gpu tokens are computed one by one.

Examples:
  ruvllm eval perplexity --file validation.txt --context 512
  ruvllm eval perplexity --file validation.txt --context 4096 --limit 131072 --json";

/// Perplexity of the model on a text
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct PerplexityArgs {
    /// The text, UTF-8; `-` reads standard input
    #[arg(long, short, value_name = "FILE")]
    file: PathBuf,

    /// Tokens in a window
    #[arg(long, short, value_name = "N", default_value = "512", value_parser = positive)]
    context: usize,

    /// Use only the first TOKENS tokens of the file
    #[arg(long, value_name = "TOKENS", value_parser = positive)]
    limit: Option<usize>,

    #[command(flatten)]
    engine: EngineArgs,
}

/// The JSON document.
#[derive(Serialize)]
struct Document {
    perplexity: f64,
    nll: f64,
    tokens: usize,
    kv_bytes_per_token: f64,
}

pub(crate) fn run(args: &PerplexityArgs, json: bool) -> Result<()> {
    let text = input::file_text(&args.file)?;
    let model = args.engine.load(args.context)?;
    let tokens = load::encode_plain(model.backend(), &text)?;
    let mut progress = Progress::tokens("scoring");
    let result = model.backend().perplexity(&tokens, args.context, args.limit, &mut |done, total| {
        progress.update(done as u64, total as u64);
        ControlFlow::Continue(())
    })?;
    drop(progress);
    let Perplexity { perplexity, nll, tokens, kv_bytes_per_token, .. } = result;
    if json {
        return output::write_json(&Document { perplexity, nll, tokens, kv_bytes_per_token });
    }
    let window = args.context;
    let text =
        format!("perplexity {perplexity:.4}, nll {nll:.6} over {tokens} tokens in windows of {window}\n");
    output::write_text(&text).map(|_| ())
}
