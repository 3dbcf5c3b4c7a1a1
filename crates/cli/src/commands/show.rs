//! `ruvllm show`: a model of the store, or the contents of a model file.

use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm_hub::{ModelReference, Store};

use super::{inspect, store};
use crate::error::Result;

const HELP: &str = "\
The name of a pulled model, or the reference that it was pulled by: where it came from and its files. Checksums are
those that were computed when the files arrived; of files that are \"unverified\" the hub stated neither a SHA-256 nor
an ETag to hold them against. A file or folder: metadata and tensors, as `ruvllm inspect` prints them, which takes
names of the store, too.

JSON: {name, source, commit, path, bytes, complete, pulled_unix, endpoint, files: [{path, bytes, sha256, unverified}]}
of a model of the store; that of `ruvllm inspect` of a file or folder.

Examples:
  ruvllm show small
  ruvllm show model.gguf
  ruvllm inspect $(ruvllm show --json small | jq -r .path)";

/// Show source and files of a pulled model, or metadata and tensors of a file
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ShowArgs {
    /// Pulled model, GGUF file or Hugging Face folder
    #[arg(value_name = "MODEL")]
    name: PathBuf,
}

pub(crate) fn run(args: &ShowArgs, json: bool) -> Result<()> {
    match in_store(&args.name)? {
        Some(name) => store::info::run(&name, json),
        None => inspect::show(&args.name, json),
    }
}

/// Name of the stored model that is meant; `None` for a path.
fn in_store(path: &Path) -> Result<Option<String>> {
    let Some(text) = path.to_str().filter(|_| !path.exists()) else { return Ok(None) };
    if !text.contains(['/', '\\']) {
        return Ok(Some(text.to_owned()));
    }
    let pulled = ModelReference::from_user(text).ok().and_then(|_| Store::from_env().ok()?.get(text).ok());
    Ok(pulled.map(|model| model.name))
}
