//! `ruvllm calibrate-kv`: calibration of the 3-bit KV-cache format (`nuq3`).

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ruvllm::Isa;
use serde::Serialize;

use crate::args::{self, CpuArgs, positive};
use crate::commands::load;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::result_file::{Destination, Readers};
use crate::{input, output, signal};

const HELP: &str = "\
The text should be like what the model will read, and not one that is measured afterwards. It is encoded without BOS
and cut into windows of 2048 tokens; ranges and levels of each layer are learned from their keys and values, the same
ones every time. The file belongs to this model file alone. It appears complete or not at all.

JSON: {output, tokens, layers, bytes}

Examples:
  ruvllm calibrate-kv --file book.txt model.kv
  ruvllm generate --kv tiered:warm=nuq3 --kv-calibration model.kv \"Once upon a time\"";

/// Calibrate the 3-bit KV-cache format (nuq3) on a text
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct CalibrateKvArgs {
    /// The file to write; `-` is standard output
    #[arg(value_name = "OUT")]
    output: PathBuf,

    /// The text, UTF-8; `-` reads standard input
    #[arg(long, short, value_name = "FILE")]
    file: PathBuf,

    /// Use only the first N tokens of the text
    #[arg(long, value_name = "N", default_value = "16384", value_parser = positive)]
    tokens: usize,

    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    cpu: CpuArgs,

    /// Instruction set by name; `ruvllm doctor` lists those of this machine [default: the best]
    #[arg(long, value_name = "ISA", value_parser = args::isa)]
    isa: Option<Isa>,
}

/// The JSON document.
#[derive(Serialize)]
struct Document {
    output: PathBuf,
    tokens: usize,
    layers: usize,
    bytes: usize,
}

pub(crate) fn run(args: &CalibrateKvArgs, json: bool) -> Result<ExitCode> {
    let destination = Destination::find(&args.output, args.force)?;
    if json && destination == Destination::Stdout {
        return Err(Error::StdoutTwice);
    }
    let text = input::file_text(&args.file)?;
    let engine = load::engine(&args.cpu.model, args.cpu.options().with_isa(args.isa))?;
    let tokens = load::encode_plain(&engine, &text)?;
    let tokens = &tokens[..tokens.len().min(args.tokens)];
    let cancel = signal::cancel_on_interrupt();
    let mut progress = Progress::tokens("calibrating");
    let calibrated = engine.calibrate_kv(tokens, &mut |done, total| {
        progress.update(done as u64, total as u64);
        if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    drop(progress);
    let bytes = match calibrated {
        Err(ruvllm::Error::Cancelled) => return Ok(signal::exit_code()),
        calibrated => calibrated?.to_bytes(),
    };
    destination.write(&bytes, Readers::Umask)?;
    let document = Document {
        output: args.output.clone(),
        tokens: tokens.len(),
        layers: engine.config().n_layers,
        bytes: bytes.len(),
    };
    if json {
        output::write_json(&document)?;
    } else if destination != Destination::Stdout {
        let Document { output, tokens, layers, bytes } = document;
        let bytes = output::bytes(bytes as u64);
        output::write_text(&format!(
            "{}: {} from {}, {bytes}\n",
            output.display(),
            output::counted(layers, "layer"),
            output::counted(tokens, "token"),
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
