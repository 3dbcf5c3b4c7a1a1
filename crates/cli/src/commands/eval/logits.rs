//! `ruvllm eval logits`: logits of given tokens.

use std::collections::HashMap;
use std::path::PathBuf;

use clap::Args;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde::Serialize;

use super::engine::EngineArgs;
use crate::args::count;
use crate::error::{Error, Result};
use crate::result_file::{Destination, Readers};
use crate::{input, output};

const HELP: &str = "\
The file gets one tensor `logits`, f32, [positions, vocabulary]: row i belongs to the i-th listed position and
scores the token that follows it. The file appears complete or not at all. The ids are a JSON array, a JSON object
with the array under `tokens` or `ids`, or plain numbers.

JSON: {output, positions, vocab_size}

Examples:
  ruvllm eval logits --tokens ids.json --out logits.safetensors
  ruvllm tokenize \"Once upon a time\" | ruvllm eval logits --tokens - --out logits.safetensors --positions 2,3";

/// Logits of given tokens, as a safetensors file
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct LogitsArgs {
    /// The token ids, as JSON or separated by spaces or commas; `-` is standard input
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,

    /// The file to write; `-` is standard output
    #[arg(long, short, value_name = "FILE")]
    out: PathBuf,

    /// Replace the file if it exists
    #[arg(long)]
    force: bool,

    /// Positions to score, counted from 0 and separated by commas [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = count)]
    positions: Option<Vec<usize>>,

    #[command(flatten)]
    engine: EngineArgs,
}

/// The JSON document.
#[derive(Serialize)]
struct Document {
    output: PathBuf,
    positions: usize,
    vocab_size: usize,
}

pub(crate) fn run(args: &LogitsArgs, json: bool) -> Result<()> {
    let destination = Destination::find(&args.out, args.force)?;
    if json && destination == Destination::Stdout {
        return Err(Error::StdoutTwice);
    }
    let tokens = input::file_tokens(&args.tokens)?;
    check(args, tokens.len())?;
    let positions = args.positions.clone().unwrap_or_else(|| (0..tokens.len()).collect());
    let model = args.engine.load(tokens.len())?;
    let logits = model.backend().logits(&tokens, &positions)?;
    let vocab_size = model.backend().config().vocab_size;
    let document = tensor_file(&logits, [positions.len(), vocab_size])
        .map_err(|source| Error::WriteFile { path: args.out.clone(), source })?;
    destination.write(&document, Readers::Umask)?;
    if destination == Destination::Stdout {
        return Ok(());
    }
    if json {
        return output::write_json(&Document {
            output: args.out.clone(),
            positions: positions.len(),
            vocab_size,
        });
    }
    let text = format!("{}: logits [{}, {vocab_size}] f32\n", args.out.display(), positions.len());
    output::write_text(&text).map(|_| ())
}

/// Rejects an empty list and positions beyond it, before a model is loaded.
fn check(args: &LogitsArgs, n_tokens: usize) -> Result<()> {
    let failed = |reason: String| Err(Error::Input { origin: args.tokens.display().to_string(), reason });
    if n_tokens == 0 {
        return failed("there are no token ids in it".to_owned());
    }
    let beyond = args.positions.iter().flatten().find(|position| **position >= n_tokens);
    match beyond {
        Some(position) => failed(format!(
            "position {position} was asked for, the last of {n_tokens} tokens is {}",
            n_tokens - 1
        )),
        None => Ok(()),
    }
}

/// Serializes `logits`, `[positions, vocab_size]`, as a safetensors file.
fn tensor_file(logits: &[f32], shape: [usize; 2]) -> std::io::Result<Vec<u8>> {
    let bytes: Vec<u8> = logits.iter().flat_map(|x| x.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, shape.to_vec(), &bytes).map_err(std::io::Error::other)?;
    safetensors::serialize([("logits", view)], None::<HashMap<String, String>>).map_err(std::io::Error::other)
}
