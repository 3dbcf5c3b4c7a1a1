//! `ruvllm key rotate`: replaces an API key by another one.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::{FileArgs, now, update};
use crate::args::duration;
use crate::error::Result;
use crate::output;

const HELP: &str = "\
Prints the new key once. Name, tenant, scopes and end stay. With --overlap the former key is accepted for that time
too, so that clients can change without an interruption. A server that runs takes the keys over on SIGHUP.

JSON: {name, key, file, overlap_s}

Examples:
  ruvllm key rotate team-a
  ruvllm key rotate team-a --overlap 24h";

/// Replace an API key by another one
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct RotateArgs {
    /// Name of the key
    name: String,

    /// Time for which the former key is accepted too
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    overlap: Duration,

    #[command(flatten)]
    file: FileArgs,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    name: &'a str,
    key: &'a str,
    file: &'a Path,
    overlap_s: u64,
}

pub(crate) fn run(args: &RotateArgs, json: bool) -> Result<()> {
    let path = args.file.path()?;
    let secret = update(&path, |file| Ok(file.rotate(&args.name, now(), args.overlap)?))?;
    if json {
        let overlap_s = args.overlap.as_secs();
        return output::write_json(&Document {
            name: &args.name,
            key: secret.reveal(),
            file: &path,
            overlap_s,
        });
    }
    output::write_text(&format!("{}\n", secret.reveal())).map(|_| ())
}
