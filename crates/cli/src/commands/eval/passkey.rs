//! `ruvllm eval passkey`: passkey retrieval from long texts.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ruvllm::{CancelToken, Engine, PasskeyOptions, PasskeyResult, TokenId};
use serde::Serialize;

use super::engine::EngineArgs;
use crate::args::{fraction, positive, whole_number};
use crate::commands::load;
use crate::commands::setup::EngineSetup;
use crate::device::Loaded;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::{input, output, signal};

const HELP: &str = "\
A sentence with a random key of five digits is put into the text at each depth, and the text ends with the same
sentence up to the key: \"The pass key is \". A key is found when greedy decoding writes down all of it. Small models
often miss some of it, so the mean of -ln p over the key's tokens is told too, beside that of the same text without
the sentence: the distance shows whether the key was seen at all. Run it with two --kv policies to see what the
smaller one loses.

The file is encoded once, without BOS or other additions; each trial takes another part of it and another key.

Ctrl-C ends the measurement with the contexts so far and exit code 130.

JSON: {version, commit, model: {name, fingerprint}, isa, threads, kv, complete,
results: [{context, depth, trials, found, nll, nll_without}]}

Examples:
  ruvllm eval passkey --file validation.txt
  ruvllm eval passkey --file validation.txt --context 1024,4096 --depths 0.1,0.5 --trials 8 --kv tiered --json";

/// Passkey retrieval test
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct PasskeyArgs {
    /// The text around the keys, UTF-8; `-` reads standard input
    #[arg(long, short, value_name = "FILE")]
    file: PathBuf,

    /// Tokens of a prompt with its key; a list is measured one by one
    #[arg(
        long,
        short,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "1024",
        value_parser = positive
    )]
    context: Vec<usize>,

    /// Positions of the keys, as shares of the text before them
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "0.1,0.3,0.5,0.7,0.9",
        value_parser = fraction
    )]
    depths: Vec<f32>,

    /// Keys per depth
    #[arg(long, value_name = "N", default_value = "4", value_parser = positive)]
    trials: usize,

    /// Random seed
    #[arg(long, value_name = "SEED", default_value_t = 0, value_parser = whole_number)]
    seed: u64,

    #[command(flatten)]
    engine: EngineArgs,
}

/// The JSON document.
#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    setup: EngineSetup,
    /// False after Ctrl-C.
    complete: bool,
    results: Vec<DepthDocument>,
}

/// Result of one context length and depth.
#[derive(Serialize)]
struct DepthDocument {
    context: usize,
    depth: f32,
    trials: usize,
    found: usize,
    nll: f64,
    nll_without: f64,
}

pub(crate) fn run(args: &PasskeyArgs, json: bool) -> Result<ExitCode> {
    let text = input::file_text(&args.file)?;
    let engine = args.engine.load_engine("eval passkey")?;
    let tokens = load::encode_plain(&engine, &text)?;
    let cancel = signal::cancel_on_interrupt();
    let mut results = Vec::new();
    let mut complete = true;
    for &context in &args.context {
        match measure(&engine, &tokens, args, context, &cancel) {
            Err(Error::Engine(ruvllm::Error::Cancelled)) => {
                complete = false;
                break;
            }
            measured => results.extend(measured?),
        }
    }
    if json {
        let setup = EngineSetup::new(&args.engine.model, &Loaded::Cpu(Box::new(engine)))?;
        output::write_json(&Document { setup, complete, results })?;
    } else {
        output::write_text(&table(&results))?;
    }
    Ok(if complete { ExitCode::SUCCESS } else { signal::exit_code() })
}

fn measure(
    engine: &Engine,
    tokens: &[TokenId],
    args: &PasskeyArgs,
    context: usize,
    cancel: &CancelToken,
) -> Result<impl Iterator<Item = DepthDocument>> {
    let options = PasskeyOptions::new(context)
        .with_depths(args.depths.clone())
        .with_trials(args.trials)
        .with_seed(args.seed);
    let mut progress = Progress::tokens("searching");
    let results = engine.passkey(tokens, &options, &mut |done, total| {
        progress.update(done as u64, total as u64);
        if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(results.into_iter().map(move |PasskeyResult { depth, trials, found, nll, nll_without, .. }| {
        DepthDocument { context, depth, trials, found, nll, nll_without }
    }))
}

fn table(results: &[DepthDocument]) -> String {
    let head = ["context", "depth", "found", "nll", "without"].map(str::to_owned).to_vec();
    let cells = |row: &DepthDocument| {
        let DepthDocument { context, depth, trials, found, nll, nll_without } = row;
        vec![
            context.to_string(),
            depth.to_string(),
            format!("{found}/{trials}"),
            format!("{nll:.3}"),
            format!("{nll_without:.3}"),
        ]
    };
    let rows: Vec<_> = std::iter::once(head).chain(results.iter().map(cells)).collect();
    output::table(&rows, &[0, 1, 2, 3, 4])
}
