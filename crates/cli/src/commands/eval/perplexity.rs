//! `ruvllm eval perplexity`: perplexity of a text.

use std::process::ExitCode;

use clap::Args;
use ruvllm::Perplexity;
use serde::Serialize;

use super::engine::EngineArgs;
use super::text::{TextArgs, measured};
use crate::commands::load;
use crate::commands::setup::EngineSetup;
use crate::error::Result;
use crate::{output, signal};

const HELP: &str = "\
The file is encoded once, without BOS or other additions, and cut into consecutive windows of N tokens without
overlap. Each window starts from an empty cache; its first token is not scored, and a last window that is not full is
left out.

Ctrl-C ends the measurement with the result so far and exit code 130.

JSON: {version, commit, model: {name, fingerprint}, isa, threads, kv, context, perplexity, perplexity_error, nll,
nll_error, tokens, kv_bytes_per_token, complete, gpu}; nll is the mean of -ln p over the scored tokens, nll_error its
standard error s / sqrt(tokens) with the standard deviation s of -ln p, perplexity is exp(nll), perplexity_error is
perplexity * nll_error, kv_bytes_per_token the size of keys and values at the end of a window, complete is false after
Ctrl-C. With a tiered --kv the text is computed a block at a time, so that each token sees what generating it would.
With --device gpu tokens are computed one by one; isa and threads are absent then, and gpu names the adapter.

Examples:
  ruvllm eval perplexity --file validation.txt --context 512
  ruvllm eval perplexity --file validation.txt --context 4096 --limit 131072 --json";

/// Perplexity of the model on a text
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    text: TextArgs,

    #[command(flatten)]
    engine: EngineArgs,
}

/// The JSON document.
#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    setup: EngineSetup,
    context: usize,
    perplexity: f64,
    perplexity_error: f64,
    nll: f64,
    nll_error: f64,
    tokens: usize,
    kv_bytes_per_token: f64,
    complete: bool,
}

pub(crate) fn run(args: &PerplexityArgs, json: bool) -> Result<ExitCode> {
    let text = args.text.read()?;
    let TextArgs { context, limit, .. } = args.text;
    let model = args.engine.load(context)?;
    let tokens = load::encode_plain(model.backend(), &text)?;
    let measure =
        measured("scoring", |progress| model.backend().perplexity(&tokens, context, limit, progress));
    let Some(result) = measure? else { return Ok(signal::exit_code()) };
    let perplexity_error = result.perplexity_error();
    let Perplexity { perplexity, nll, nll_error, tokens, kv_bytes_per_token, complete, .. } = result;
    if json {
        output::write_json(&Document {
            setup: EngineSetup::new(&args.engine.model, &model)?,
            context,
            perplexity,
            perplexity_error,
            nll,
            nll_error,
            tokens,
            kv_bytes_per_token: output::rounded(kv_bytes_per_token),
            complete,
        })?;
    } else {
        let stopped = if complete { "" } else { " (stopped)" };
        let over = output::counted(tokens, "token");
        output::write_text(&format!(
            "perplexity {perplexity:.4} +- {perplexity_error:.4}, nll {nll:.6} +- {nll_error:.6}\n\
             {over} in windows of {context}{stopped}\n"
        ))?;
    }
    Ok(if complete { ExitCode::SUCCESS } else { signal::exit_code() })
}
