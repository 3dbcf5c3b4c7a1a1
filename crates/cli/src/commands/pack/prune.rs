//! `ruvllm pack prune`: removes old versions.

use clap::Args;
use ruvllm_kernel_packs::Version;
use serde::Serialize;

use super::store;
use crate::error::Result;
use crate::output;

const HELP: &str = "\
The current and the previous version stay, and so does the floor. Nothing is asked.

JSON: {name, removed}

Examples:
  ruvllm pack prune norms";

/// Remove all versions of a pack but the current and the previous one
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct PruneArgs {
    /// Name of the pack
    name: String,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    name: &'a str,
    removed: Vec<Version>,
}

pub(crate) fn run(args: &PruneArgs, json: bool) -> Result<()> {
    let removed = store()?.prune(&args.name)?;
    let removed: Vec<Version> = removed.into_iter().map(|stored| stored.release.version).collect();
    if json {
        return output::write_json(&Document { name: &args.name, removed });
    }
    output::write_text(&format!("{}: {} removed\n", args.name, output::counted(removed.len(), "version")))
        .map(|_| ())
}
