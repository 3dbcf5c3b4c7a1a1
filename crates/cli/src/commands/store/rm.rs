//! `ruvllm rm`: removes a model from the store.

use clap::Args;
use ruvllm_hub::Store;
use serde::Serialize;

use crate::error::Result;
use crate::output;

const HELP: &str = "\
Nothing is asked. Files that another name of the store needs stay. A download that has not come to its end is removed
in the same way, and so is a model whose entry in the store is damaged. Symbolic links are removed, not followed.

JSON: {name, freed_bytes}

Examples:
  ruvllm rm small";

/// Remove a model from the store
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct RmArgs {
    /// The model's name
    name: String,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    name: &'a str,
    freed_bytes: u64,
}

pub(crate) fn run(args: &RmArgs, json: bool) -> Result<()> {
    let freed_bytes = Store::from_env()?.remove(&args.name)?;
    if json {
        return output::write_json(&Document { name: &args.name, freed_bytes });
    }
    output::write_text(&format!("{} removed, {} freed\n", args.name, output::bytes(freed_bytes))).map(|_| ())
}
