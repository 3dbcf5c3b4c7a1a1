//! `ruvllm imatrix`: importance matrix of a model on a text.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ruvllm_models::ImportanceMatrix;
use serde::Serialize;

use crate::args::{CpuArgs, positive};
use crate::commands::load;
use crate::default_model::ModelChoice;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::result_file::{Destination, Readers};
use crate::{input, output, signal};

const HELP: &str = "\
The mean squared input of every column of every weight matrix, for `ruvllm quantize --imatrix`, in the file format of
llama.cpp. The text should be like what the model will read, and not one that is measured afterwards; a few hundred
windows are enough. It is encoded without BOS. The model should be the one to be quantized, or the same in a larger type.
The file appears complete or not at all.

JSON: {output, tokens, tensors, bytes}

Examples:
  ruvllm imatrix model-F16.gguf --file text.txt --out model.imatrix.gguf
  ruvllm quantize model-F16.gguf model-IQ2_M.gguf iq2_m --imatrix model.imatrix.gguf";

/// Compute an importance matrix, by which quantizers weight errors
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ImatrixArgs {
    /// The GGUF file or Hugging Face folder
    #[arg(value_name = "MODEL")]
    model: PathBuf,

    /// The text, UTF-8; `-` reads standard input
    #[arg(long, short, value_name = "FILE")]
    file: PathBuf,

    /// The file to write; `-` is standard output
    #[arg(long, short, value_name = "FILE")]
    out: PathBuf,

    /// Tokens in a window
    #[arg(long, value_name = "N", default_value = "512", value_parser = positive)]
    context: usize,

    /// Use only the first N tokens of the text
    #[arg(long, value_name = "N", value_parser = positive)]
    tokens: Option<usize>,

    /// Replace FILE if it exists
    #[arg(long)]
    force: bool,

    /// Number of threads [default: one for each core]
    #[arg(long, short, value_name = "N", value_parser = positive)]
    threads: Option<usize>,
}

/// The JSON document.
#[derive(Serialize)]
struct Document {
    output: PathBuf,
    tokens: usize,
    tensors: usize,
    bytes: usize,
}

pub(crate) fn run(args: &ImatrixArgs, json: bool) -> Result<ExitCode> {
    let destination = Destination::find(&args.out, args.force)?;
    if json && destination == Destination::Stdout {
        return Err(Error::StdoutTwice);
    }
    let text = input::file_text(&args.file)?;
    let cpu = CpuArgs::of_model(Some(args.model.clone()));
    let engine = load::engine(&cpu.model, cpu.options().with_threads(args.threads))?;
    let tokens = load::encode_plain(&engine, &text)?;
    let cancel = signal::cancel_on_interrupt();
    let mut progress = Progress::tokens("running");
    let observed = engine.observe_inputs(&tokens, args.context, args.tokens, &mut |done, total| {
        progress.update(done as u64, total as u64);
        if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    drop(progress);
    let (squares, windows) = match observed {
        Err(ruvllm::Error::Cancelled) => return Ok(signal::exit_code()),
        observed => observed?,
    };
    let checkpoint = ModelChoice::new(Some(&args.model)).open()?;
    let dataset = args.file.file_name().unwrap_or_default().to_string_lossy();
    let matrix = ImportanceMatrix::new(&squares, &*checkpoint, &dataset, (windows, args.context));
    let failed = |source| Error::Imatrix { path: args.out.clone(), source: Box::new(source) };
    let bytes = matrix.to_bytes().map_err(failed)?;
    destination.write(&bytes, Readers::Umask)?;
    let document = Document {
        output: args.out.clone(),
        tokens: windows * args.context,
        tensors: matrix.len(),
        bytes: bytes.len(),
    };
    if json {
        output::write_json(&document)?;
    } else if destination != Destination::Stdout {
        let Document { output, tokens, tensors, bytes } = document;
        output::write_text(&format!(
            "{}: {} from {}, {}\n",
            output.display(),
            output::counted(tensors, "tensor"),
            output::counted(tokens, "token"),
            output::bytes(bytes as u64),
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
