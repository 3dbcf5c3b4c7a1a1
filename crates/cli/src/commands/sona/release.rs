//! `ruvllm sona release`: ends a quarantine.

use clap::Args;
use serde::Serialize;

use super::learned::LearnedArgs;
use crate::error::Result;
use crate::output;

const HELP: &str = "\
An adapter that has harmed ordinary text is back at its last good state and learns nothing. This lets it learn again.

JSON: {name, standing}

Examples:
  ruvllm sona release tone";

/// Let an adapter in quarantine learn again
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    learned: LearnedArgs,
}

/// The JSON document.
#[derive(Serialize)]
struct Document {
    name: String,
    standing: &'static str,
}

pub(crate) fn run(args: &ReleaseArgs, json: bool) -> Result<()> {
    let learned = args.learned.open()?;
    learned.adapter.release()?;
    let name = args.learned.name.clone();
    if json {
        return output::write_json(&Document { name, standing: "learning" });
    }
    output::write_text(&format!("{name}: learning\n")).map(|_| ())
}
