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
    let TrainAdapterArgs { train, test, out, program, python } = args;
    let files = [&workspace.path(TRAIN), &workspace.path(MODEL), program, train, test, out];
    Ok(CommandLine::new(python, Path::new(".")).args(files).run()?)
}
