//! Command line of `kv-quality`, and runs of `ruvllm eval`.

use std::path::{Path, PathBuf};

use xtask::Workspace;
use xtask::process::CommandLine;

/// Text committed to the project.
const TEXT: &str = "crates/cli/tests/data/validation-prefix.txt";

/// Parts of the quality table that can be measured alone.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvPart {
    /// Perplexity of the text over bytes per token
    Perplexity,
    /// Retrieval of a key from the text
    Passkey,
    /// Bytes of whole sequences, counted
    Bytes,
}

/// Options of the quality table.
#[derive(clap::Args, Debug)]
pub struct KvQualityArgs {
    /// Measures these parts and leaves the others as they are
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS")]
    pub only: Vec<KvPart>,
    /// The text, UTF-8
    #[arg(long, value_name = "FILE", default_value = TEXT)]
    pub file: PathBuf,
    /// A trained model; the default one of the program without it
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// Tokens in a window of perplexity
    #[arg(long, default_value_t = 4096)]
    pub context: usize,
    /// Use only the first tokens of the text for perplexity
    #[arg(long, value_name = "TOKENS")]
    pub limit: Option<usize>,
    /// Keys per depth for retrieval
    #[arg(long, default_value_t = 8)]
    pub trials: usize,
    /// A policy whose perplexity to measure instead of the usual ones; may be repeated, `f16`
    /// always comes first
    #[arg(long, value_name = "POLICY")]
    pub kv: Vec<String>,
    /// Adds the rows of --kv to the recorded perplexities, whose text and f16 must be those of this
    /// run, instead of replacing them
    #[arg(long, requires = "kv", conflicts_with = "no_record")]
    pub add: bool,
    /// A text to calibrate policies with nuq3 on, which are left out without it; another one than
    /// the text to measure
    #[arg(long, value_name = "FILE")]
    pub calibrate: Option<PathBuf>,
    /// A `ruvllm` program to measure instead of building one
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Leaves docs/kv-cache.md as it is
    #[arg(long)]
    pub no_record: bool,
}

/// Runs `ruvllm eval WHAT` on the text under a policy.
pub(super) fn eval(
    workspace: &Workspace,
    program: &Path,
    args: &KvQualityArgs,
    what: &str,
    policy: &str,
    context: usize,
) -> CommandLine {
    let command = CommandLine::new(program, workspace.root())
        .args(["eval", what, "--json", "--kv", policy, "--context", &context.to_string()])
        .args(["--file".as_ref(), args.file.as_os_str()]);
    match &args.model {
        Some(model) => command.args(["--model".as_ref(), model.as_os_str()]),
        None => command,
    }
}
