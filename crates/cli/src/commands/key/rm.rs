//! `ruvllm key rm`: removes an API key.

use std::path::Path;

use clap::Args;
use serde::Serialize;

use super::{FileArgs, update};
use crate::error::Result;
use crate::output;

const HELP: &str = "\
Nothing is asked. A server that runs refuses the key from the next SIGHUP on; requests that have begun go on.

JSON: {name, file}

Examples:
  ruvllm key rm team-a";

/// Remove an API key
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct RmArgs {
    /// Name of the key
    name: String,

    #[command(flatten)]
    file: FileArgs,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    name: &'a str,
    file: &'a Path,
}

pub(crate) fn run(args: &RmArgs, json: bool) -> Result<()> {
    let path = args.file.path()?;
    update(&path, |file| Ok(file.remove(&args.name)?))?;
    if json {
        return output::write_json(&Document { name: &args.name, file: &path });
    }
    output::write_text(&format!("{} removed\n", args.name)).map(|_| ())
}
