//! `ruvllm sona forget`: removes lessons and their influence.

use clap::{ArgGroup, Args};
use ruvllm::crates::sona::store::ForgetScope;
use ruvllm_witness::Timestamp;
use serde::Serialize;

use super::learned::{LearnedArgs, unpublish_all};
use crate::error::Result;
use crate::output;

const HELP: &str = "\
The lessons leave the log, and the adapter is learned again from the last good state before them: it is as if they had
not been. --all forgets all adapters that were taught, and takes them from the store of adapters.

JSON: {name, lessons, remaining}: events removed from the log, and lessons still in effect

Examples:
  ruvllm sona forget tone --since 2026-11-25
  ruvllm sona forget tone --all";

/// Forget lessons, and everything learned from them
#[derive(Debug, Args)]
#[command(after_help = HELP)]
#[command(group = ArgGroup::new("scope").required(true).args(["since", "all"]))]
pub(crate) struct ForgetArgs {
    #[command(flatten)]
    learned: LearnedArgs,

    /// Lessons from this time on: 2026-11-25, or 2026-11-25T08:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<Timestamp>,

    /// All lessons
    #[arg(long)]
    all: bool,
}

/// The JSON document.
#[derive(Serialize)]
struct Document {
    name: String,
    lessons: u64,
    remaining: u64,
}

pub(crate) fn run(args: &ForgetArgs, json: bool) -> Result<()> {
    let scope = match args.since {
        Some(since) => ForgetScope::Since(since.unix_ms()),
        None => ForgetScope::All,
    };
    let learned = args.learned.open()?;
    let forgotten = learned.adapter.forget(&learned.engine, scope)?;
    if args.all {
        unpublish_all()?;
    } else {
        learned.publish()?;
    }
    let remaining = learned.adapter.status()?.lessons;
    let name = args.learned.name.clone();
    if json {
        return output::write_json(&Document { name, lessons: forgotten.events, remaining });
    }
    let events = output::counted(forgotten.events as usize, "event");
    let remaining = output::counted(remaining as usize, "lesson");
    output::write_text(&format!("{name}: {events} removed, {remaining} in effect\n")).map(|_| ())
}
