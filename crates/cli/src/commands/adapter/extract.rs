//! `ruvllm adapter extract`: a LoRA adapter from the difference of two models.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use ruvllm_adapters::merge::Rank;
use ruvllm_models::merge::{Extracted, extract};
use ruvllm_models::quantize::Recipe;
use serde::Serialize;

use super::result::{self, MatrixDocument};
use crate::args::{positive, recipe};
use crate::default_model::ModelChoice;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::{output, signal};

const HELP: &str = "\
The difference TUNED - BASE of each projection of attention and of the feed-forward network, and of the output matrix,
is decomposed (randomized SVD); equal matrices are left out. The relative error in the Frobenius norm is printed, and
with --json that of each matrix. A full fine-tuning has a difference of high rank: try --error 0.3 and look at the ranks.
Norms and embeddings that differ are named in a warning; no LoRA changes them. Quantization of either model counts as
difference: give F32, F16 or BF16. OUT ending in .gguf is a GGUF adapter (llama.cpp's form), else a PEFT folder.

JSON: {base, tuned, output, format, type, relative_error, bytes, matrices: [{name, rank, relative_error}], left_out}

Examples:
  ruvllm adapter extract Llama-3.2-1B my-tuned-1B -o my-lora --rank 32
  ruvllm adapter extract base-F16.gguf tuned-F16.gguf -o lora.gguf --error 0.1 --type f16";

/// Extract a LoRA adapter from the difference of two models
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ExtractArgs {
    /// Base model: GGUF file, Hugging Face folder or name in the store
    #[arg(value_name = "BASE")]
    base: PathBuf,

    /// Tuned model of the same architecture and size
    #[arg(value_name = "TUNED")]
    tuned: PathBuf,

    /// The GGUF file or folder to write
    #[arg(long, short, value_name = "OUT")]
    output: PathBuf,

    /// Largest rank of a matrix [default: 16]
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with = "error")]
    rank: Option<usize>,

    /// Lowest rank with at most this relative error, for each matrix
    #[arg(long, value_name = "E", value_parser = result::relative_error)]
    error: Option<f64>,

    /// Type of the factors: f32, f16 or bf16 [default: f32]
    #[arg(long, value_name = "TYPE", value_parser = recipe)]
    r#type: Option<Recipe>,

    /// Replace OUT if it is an adapter
    #[arg(long)]
    force: bool,

    /// Number of threads [default: the number of cores]
    #[arg(long, short, value_name = "N", value_parser = positive)]
    threads: Option<usize>,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    base: &'a Path,
    tuned: &'a Path,
    output: &'a Path,
    format: String,
    r#type: &'static str,
    relative_error: f64,
    bytes: usize,
    matrices: Vec<MatrixDocument>,
    left_out: &'a [String],
}

pub(crate) fn run(args: &ExtractArgs, json: bool) -> Result<ExitCode> {
    let (format, factors) = (result::format_of(&args.output), result::factor_type(args.r#type)?);
    format.check_output(&args.output, args.force)?;
    let base = ModelChoice::new(Some(&args.base)).open()?;
    let tuned = ModelChoice::new(Some(&args.tuned)).open()?;
    let rank = result::rank(args.rank, args.error).unwrap_or(Rank::AtMost(16));
    let pool = result::pool(args.threads)?;
    let cancel = signal::cancel_on_interrupt();
    let mut progress = Progress::steps(format!("extracting {}", args.output.display()));
    let extracted = extract(&*base, &*tuned, rank, (format, factors), &pool, &mut |done, total| {
        progress.update(done as u64, total as u64);
        if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    drop(progress);
    let Extracted { compressed, left_out, .. } = match extracted {
        Err(ruvllm_models::Error::Cancelled) => return Ok(signal::exit_code()),
        Err(ruvllm_models::Error::Adapter(error)) => return Err(error.into()),
        other => other.map_err(|source| Error::Rewrite {
            action: "extract an adapter from",
            input: args.tuned.clone(),
            output: args.output.clone(),
            source: Box::new(source),
        })?,
    };
    if !left_out.is_empty() {
        let shown: Vec<String> = left_out.iter().take(3).map(|name| crate::error::printable(name)).collect();
        let more = if left_out.len() > shown.len() { ", ..." } else { "" };
        let differ = output::counted(left_out.len(), "tensor");
        output::warn(&format!(
            "{differ} that no LoRA changes differ between the models: {}{more}",
            shown.join(", ")
        ));
    }
    compressed.adapter.write(&args.output, args.force)?;
    if json {
        output::write_json(&Document {
            base: &args.base,
            tuned: &args.tuned,
            output: &args.output,
            format: format.to_string().to_lowercase(),
            r#type: factors.name(),
            relative_error: compressed.relative_error(),
            bytes: compressed.adapter.bytes(),
            matrices: result::matrices(&compressed),
            left_out: &left_out,
        })?;
    } else {
        output::write_text(&format!("{}: {}\n", args.output.display(), result::summary(&compressed)))?;
    }
    Ok(ExitCode::SUCCESS)
}
