//! `cargo xtask train-adapter`: an adapter of the built-in model, trained on a text with PEFT.

use std::path::{Path, PathBuf};

use clap::Args;

use xtask::Workspace;
use xtask::process::CommandLine;

use crate::Result;

/// The Python program.
const TRAIN: &str = "tools/src/adapters/train.py";

/// The model that is trained.
const MODEL: &str = "models/base-q8_0.gguf";

/// Arguments of `train-adapter`.
#[derive(Debug, Args)]
pub(crate) struct TrainAdapterArgs {
    /// The text to learn, UTF-8
    train: PathBuf,
    /// Held-out text of the same kind, for perplexity before and after
    test: PathBuf,
    /// Folder of the adapter
    out: PathBuf,
    /// Text of which as little as possible is to be forgotten, for its perplexity before and after
    #[arg(long, value_name = "TEXT")]
    general: Option<PathBuf>,
    /// Readings of the text
    #[arg(long, value_name = "N", default_value_t = 2)]
    epochs: u32,
    /// Seed of the factors and of the order of windows
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The program, which tokenizes
    #[arg(long, value_name = "PROGRAM", default_value = "target/release/ruvllm")]
    program: PathBuf,
    /// The Python
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
}

/// Trains an adapter; its settings are those of the Python program.
///
/// # Errors
/// A Python without torch, transformers, gguf and peft; texts that cannot be read.
pub(crate) fn train_adapter(workspace: &Workspace, args: &TrainAdapterArgs) -> Result<()> {
    let TrainAdapterArgs { train, test, out, general, epochs, seed, program, python } = args;
    let files = [&workspace.path(TRAIN), &workspace.path(MODEL), program, train, test, out];
    let command = CommandLine::new(python, Path::new(".")).args(files);
    let command = command.args(["--epochs", &epochs.to_string(), "--seed", &seed.to_string()]);
    let general = general.iter().flat_map(|text| [Path::new("--general"), text]);
    Ok(command.args(general).run()?)
}
