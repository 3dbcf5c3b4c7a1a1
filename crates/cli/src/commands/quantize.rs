//! `ruvllm quantize`: a model in another storage type.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use ruvllm_models::quantize::{Fallback, QuantizeReport, Recipe, quantize};
use serde::Serialize;

use super::rewrite::Rewrite;
use crate::args::{positive, recipe};
use crate::default_model::ModelChoice;
use crate::error::Result;
use crate::{output, signal};

/// Help text below the list of types.
const HELP: &str = "
A type names the storage of most matrices. Types with _S, _M, _L or IQ4 in their name, and Q2_K, give more bits to the
matrices that lose most; the output matrix gets Q6_K (or the type itself, from Q8_0 up) unless --pure is given.
Norms and other vectors stay as they are. Rows that are not whole blocks of a type get one with smaller blocks;
the result says which. All metadata are kept; a Hugging Face folder is converted on the way. The file appears
complete or not at all.

Start from F32, F16 or BF16: a file that is quantized already can be read too, but its losses add up.

JSON: {input, output, type, tensors, bytes_before, bytes_after, fallbacks: [{tensor, wanted, type}]}

Examples:
  ruvllm quantize model-F16.gguf model-Q4_K_M.gguf Q4_K_M
  ruvllm quantize model-F16.gguf smaller.gguf iq4_xs --force";

/// Write a model in another storage type, to make it smaller and faster
#[derive(Debug, Args)]
#[command(after_help = help())]
pub(crate) struct QuantizeArgs {
    /// The GGUF file (of a split model, its first part) or Hugging Face folder to read
    #[arg(value_name = "IN")]
    input: PathBuf,

    /// The GGUF file to write
    #[arg(value_name = "OUT")]
    output: PathBuf,

    /// The type, in upper or lower case: see the list below
    #[arg(value_name = "TYPE", value_parser = recipe)]
    recipe: Recipe,

    /// Give every matrix the same type
    #[arg(long)]
    pure: bool,

    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,

    /// Threads to compute with [default: the number of cores]
    #[arg(long, short, value_name = "N", value_parser = positive)]
    threads: Option<usize>,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    input: &'a Path,
    output: &'a Path,
    r#type: &'static str,
    tensors: usize,
    bytes_before: u64,
    bytes_after: u64,
    fallbacks: Vec<FallbackDocument<'a>>,
}

/// A tensor with another type than its recipe's.
#[derive(Serialize)]
struct FallbackDocument<'a> {
    tensor: &'a str,
    wanted: &'static str,
    r#type: &'static str,
}

impl<'a> From<&'a Fallback> for FallbackDocument<'a> {
    fn from(fallback: &'a Fallback) -> Self {
        Self { tensor: &fallback.tensor, wanted: fallback.wanted.name(), r#type: fallback.used.name() }
    }
}

pub(crate) fn run(args: &QuantizeArgs, json: bool) -> Result<ExitCode> {
    let checkpoint = ModelChoice::new(Some(&args.input)).open()?;
    let job = Rewrite {
        action: "quantize",
        input: &args.input,
        output: &args.output,
        force: args.force,
        threads: args.threads,
    };
    let written = job.run(|output, pool, progress| {
        quantize(&*checkpoint, output, args.recipe, args.pure, pool, progress)
    })?;
    let Some((report, bytes_after)) = written else { return Ok(signal::exit_code()) };
    let bytes_before = checkpoint.file_bytes();
    if json {
        output::write_json(&Document {
            input: &args.input,
            output: &args.output,
            r#type: args.recipe.name(),
            tensors: report.tensors,
            bytes_before,
            bytes_after,
            fallbacks: report.fallbacks.iter().map(Into::into).collect(),
        })?;
    } else {
        output::write_text(&human(args, &report, bytes_before, bytes_after))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn human(args: &QuantizeArgs, report: &QuantizeReport, before: u64, after: u64) -> String {
    let mut text = format!(
        "{}: {}, {} tensors, {} (was {})\n",
        args.output.display(),
        args.recipe.name(),
        report.tensors,
        output::bytes(after),
        output::bytes(before),
    );
    if !report.fallbacks.is_empty() {
        let row = |fallback: &Fallback| {
            let used = format!("{} instead of {}", fallback.used.name(), fallback.wanted.name());
            vec![format!("  {}", crate::error::printable(&fallback.tensor)), used]
        };
        let rows: Vec<Vec<String>> = report.fallbacks.iter().map(row).collect();
        text.push_str("rows that are not whole blocks of their type:\n");
        text.push_str(&output::table(&rows, &[]));
    }
    text
}

/// The list of types, and the rest of the help.
fn help() -> String {
    let row = |recipe: &Recipe| vec![format!("  {}", recipe.name()), recipe.about().to_owned()];
    let rows: Vec<Vec<String>> = Recipe::ALL.iter().map(row).collect();
    format!("Types:\n{}{HELP}", output::table(&rows, &[]))
}
