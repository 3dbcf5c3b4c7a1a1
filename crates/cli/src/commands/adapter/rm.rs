//! `ruvllm adapter rm`: removes an adapter from the store.

use clap::Args;
use serde::Serialize;

use crate::adapter_store::store;
use crate::error::Result;
use crate::output;

const HELP: &str = "\
Nothing is asked. Damaged files are removed in the same way. An engine that has the adapter in memory goes on with it;
one that has registered it and has to read it again refuses the requests that name it.

JSON: {name, freed_bytes}

Examples:
  ruvllm adapter rm poet";

/// Remove an adapter from the store
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct RmArgs {
    /// The adapter's name
    name: String,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    name: &'a str,
    freed_bytes: u64,
}

pub(crate) fn run(args: &RmArgs, json: bool) -> Result<()> {
    let freed_bytes = store()?.remove(&args.name)?;
    if json {
        return output::write_json(&Document { name: &args.name, freed_bytes });
    }
    output::write_text(&format!("{} removed, {} freed\n", args.name, output::bytes(freed_bytes))).map(|_| ())
}
