//! `ruvllm quantize`: writes a model in another storage type.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use gguf_rs_lite::TensorInfo;
use ruvllm_models::quantize::{Fallback, QuantizeOptions, QuantizeReport, Recipe, TypeOverride, quantize};
use ruvllm_models::{Checkpoint, ImportanceMatrix};
use serde::Serialize;

use super::rewrite::Rewrite;
use crate::args::{positive, recipe, type_override};
use crate::default_model::ModelChoice;
use crate::error::{Error, Result};
use crate::{output, signal};

/// Help text below the list of types.
const HELP: &str = "
A type names the storage of most matrices. Types with _S, _M, _L or IQ4 in their name, and Q2_K, give more bits to the
matrices that lose most; the output matrix gets Q6_K (or the type itself, from Q8_0 up) unless --pure is given.
--tensor-type comes before both; of several that match a matrix the first counts. An importance matrix lowers the loss
at the same size, most of all with fewer than 4 bits.
Norms and other vectors stay as they are. Rows that are not whole blocks of a type get one with smaller blocks;
the result says which. All metadata are kept; a Hugging Face folder is converted on the way. The file appears
complete or not at all.

Start from F32, F16 or BF16: a file that is quantized already can be read too, but its losses add up.

JSON: {input, output, type, tensor_count, bytes_before, bytes_after, fallbacks: [{tensor, wanted, type}]}

Examples:
  ruvllm quantize model-F16.gguf model-Q4_K_M.gguf Q4_K_M
  ruvllm quantize model-F16.gguf smaller.gguf iq4_xs --force
  ruvllm quantize model-F16.gguf small.gguf iq2_m --imatrix model.imatrix.gguf --tensor-type 'blk.0.*=q6_k'";

/// Quantize a model, or convert it to another storage type
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

    /// Importance matrix of the model: a file of `ruvllm imatrix` or of llama.cpp
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,

    /// Type of the matrices whose names contain PATTERN, in which `*` is any text; repeatable
    #[arg(long, value_name = "PATTERN=TYPE", value_parser = type_override)]
    tensor_type: Vec<TypeOverride>,

    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,

    /// Number of threads [default: the number of cores]
    #[arg(long, short, value_name = "N", value_parser = positive)]
    threads: Option<usize>,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    input: &'a Path,
    output: &'a Path,
    r#type: &'static str,
    tensor_count: usize,
    bytes_before: u64,
    bytes_after: u64,
    fallbacks: Vec<FallbackDocument<'a>>,
}

/// Tensor with another type than its recipe's.
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
    let importance = args.imatrix.as_deref().map(read_imatrix).transpose()?;
    let options =
        QuantizeOptions { pure: args.pure, overrides: &args.tensor_type, importance: importance.as_ref() };
    let checkpoint = ModelChoice::new(Some(&args.input)).open()?;
    if let Some(kind) = grows_from(&*checkpoint, args, &options) {
        output::warn(&format!(
            "{} is quantized already ({kind}): {} makes it larger and restores no precision",
            args.input.display(),
            args.recipe.name()
        ));
    }
    let job = Rewrite {
        action: "quantize",
        input: &args.input,
        output: &args.output,
        force: args.force,
        threads: args.threads,
    };
    let written = job.run(|output, pool, progress| {
        quantize(&*checkpoint, output, args.recipe, &options, pool, progress)
    })?;
    let Some((report, bytes_after)) = written else { return Ok(signal::exit_code()) };
    let bytes_before = checkpoint.file_bytes();
    if json {
        output::write_json(&Document {
            input: &args.input,
            output: &args.output,
            r#type: args.recipe.name(),
            tensor_count: report.tensors,
            bytes_before,
            bytes_after,
            fallbacks: report.fallbacks.iter().map(Into::into).collect(),
        })?;
    } else {
        output::write_text(&human(args, &report, bytes_before, bytes_after))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads an importance matrix.
fn read_imatrix(path: &Path) -> Result<ImportanceMatrix> {
    let bytes = fs::read(path).map_err(|source| Error::ReadFile { path: path.to_owned(), source })?;
    ImportanceMatrix::from_bytes(bytes)
        .map_err(|source| Error::Imatrix { path: path.to_owned(), source: Box::new(source) })
}

/// Type of the largest quantized tensor of the input, if the output would be larger than the input.
fn grows_from(
    checkpoint: &dyn Checkpoint,
    args: &QuantizeArgs,
    options: &QuantizeOptions<'_>,
) -> Option<&'static str> {
    let tensors: Vec<TensorInfo> = checkpoint.tensors().cloned().collect();
    let quantized = tensors.iter().filter(|tensor| tensor.tensor_type.block_len() > 1);
    let kind = quantized.max_by_key(|tensor| tensor.bytes())?.tensor_type.name();
    // The grouped-query ratio (here 1) changes the type of a few matrices only: too few to matter.
    let assigned = options.assign(args.recipe, &tensors, 1).ok()?;
    let after = tensors.iter().zip(&assigned).filter_map(|(tensor, to)| {
        TensorInfo::new(&tensor.name, tensor.dims.clone(), to.tensor_type).ok().map(|tensor| tensor.bytes())
    });
    let before = tensors.iter().map(TensorInfo::bytes).fold(0, u64::saturating_add);
    (after.fold(0, u64::saturating_add) > before).then_some(kind)
}

fn human(args: &QuantizeArgs, report: &QuantizeReport, before: u64, after: u64) -> String {
    let mut text = format!(
        "{}: {}, {}, {} (was {})\n",
        args.output.display(),
        args.recipe.name(),
        output::counted(report.tensors, "tensor"),
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

/// Help text: the list of types, then [`HELP`].
fn help() -> String {
    let row = |recipe: &Recipe| vec![format!("  {}", recipe.name()), recipe.about().to_owned()];
    let rows: Vec<Vec<String>> = Recipe::ALL.iter().map(row).collect();
    format!("Types:\n{}{HELP}", output::table(&rows, &[]))
}
