//! `ruvllm sona replay`: learns the log again and compares.

use clap::Args;
use serde::Serialize;

use super::learned::{LearnedArgs, hex};
use crate::error::Result;
use crate::output;

const HELP: &str = "\
All lessons of the log are learned again from the base model, beside the adapter, and the two states are compared bit by
bit. Exit code 1: they differ.

JSON: {name, lessons, digest, equal}

Examples:
  ruvllm sona replay tone";

/// Learn the log again and compare with the adapter
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    learned: LearnedArgs,
}

/// The JSON document.
#[derive(Serialize)]
struct Document {
    name: String,
    lessons: u64,
    digest: String,
    equal: bool,
}

/// True if the states are equal.
pub(crate) fn run(args: &ReplayArgs, json: bool) -> Result<bool> {
    let learned = args.learned.open()?;
    let replay = learned.adapter.replay(&learned.engine)?;
    let document = Document {
        name: args.learned.name.clone(),
        lessons: replay.lessons,
        digest: hex(&replay.digest),
        equal: replay.is_equal,
    };
    if json {
        output::write_json(&document)?;
    } else {
        let Document { name, lessons, digest, equal } = document;
        let lessons = output::counted(lessons as usize, "lesson");
        let verdict = if equal { "the same bits" } else { "DIFFERENT from the adapter" };
        output::write_text(&format!("{name}: {lessons} learned again, {verdict}\n{digest}\n"))?;
    }
    Ok(replay.is_equal)
}
