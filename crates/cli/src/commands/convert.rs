//! `ruvllm convert`: a Hugging Face folder as one GGUF file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use ruvllm_models::HfFolder;
use ruvllm_models::quantize::{Recipe, convert};
use serde::Serialize;

use super::rewrite::Rewrite;
use crate::args::positive;
use crate::error::{Error, Result};
use crate::{output, signal};

const HELP: &str = "\
The folder has config.json, model.safetensors (or shards with their index), and tokenizer.json or tokenizer.model;
the chat template and the special tokens come from the files beside them. Quantized folders (GPTQ, AWQ, FP8) are
refused. For smaller types, give the folder to `ruvllm quantize`. The file appears complete or not at all.

JSON: {input, output, type, tensor_count, bytes_before, bytes_after}

Examples:
  ruvllm convert Qwen2.5-0.5B-Instruct qwen.gguf
  ruvllm convert Llama-3.2-1B llama-F16.gguf --type f16";

/// Convert a Hugging Face folder to a GGUF file
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ConvertArgs {
    /// The folder to read
    #[arg(value_name = "HF_DIR")]
    input: PathBuf,

    /// The GGUF file to write
    #[arg(value_name = "OUT")]
    output: PathBuf,

    /// Type of the matrices: f32, f16, bf16, or auto: as they are in the folder
    #[arg(long, value_name = "TYPE", default_value = "auto", value_parser = matrices)]
    r#type: Matrices,

    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,

    /// Number of threads [default: the number of cores]
    #[arg(long, short, value_name = "N", value_parser = positive)]
    threads: Option<usize>,
}

/// Target type of all matrices; `None` keeps the type of each.
#[derive(Debug, Clone, Copy)]
struct Matrices(Option<Recipe>);

impl Matrices {
    fn name(self) -> &'static str {
        self.0.map_or("auto", |recipe| recipe.name())
    }
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
}

pub(crate) fn run(args: &ConvertArgs, json: bool) -> Result<ExitCode> {
    if args.input.is_file() {
        return Err(Error::NotAFolder { path: args.input.clone() });
    }
    let opened = HfFolder::open(&args.input);
    let folder = opened.map_err(|source| Error::Open { path: args.input.display().to_string(), source })?;
    let job = Rewrite {
        action: "convert",
        input: &args.input,
        output: &args.output,
        force: args.force,
        threads: args.threads,
    };
    let written =
        job.run(|output, pool, progress| convert(&folder, output, args.r#type.0, pool, progress))?;
    let Some((report, bytes_after)) = written else { return Ok(signal::exit_code()) };
    let (kind, tensor_count) = (args.r#type.name(), report.tensors);
    let bytes_before = ruvllm_models::Checkpoint::file_bytes(&folder);
    if json {
        let (input, output) = (&args.input, &args.output);
        output::write_json(&Document {
            input,
            output,
            r#type: kind,
            tensor_count,
            bytes_before,
            bytes_after,
        })?;
    } else {
        let (name, size) = (args.output.display(), output::bytes(bytes_after));
        let tensors = output::counted(tensor_count, "tensor");
        output::write_text(&format!("{name}: {kind}, {tensors}, {size}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn matrices(name: &str) -> Result<Matrices, String> {
    match name.to_ascii_lowercase().as_str() {
        "auto" => Ok(Matrices(None)),
        "f32" | "f16" | "bf16" => Ok(Matrices(Recipe::from_name(name))),
        _ => Err("expected f32, f16, bf16 or auto".to_owned()),
    }
}
