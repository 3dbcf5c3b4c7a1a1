//! `ruvllm session rm`: removes a session.

use clap::Args;
use serde::Serialize;

use crate::error::Result;
use crate::output;
use crate::session_store::{SessionId, SessionStore};

const HELP: &str = "\
Messages, keys and values are removed; nothing is asked. A session that a chat has open is not removed.

JSON: {id, freed_bytes}

Examples:
  ruvllm session rm story";

/// Remove a session
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct RmArgs {
    /// The session
    #[arg(value_name = "ID", value_parser = super::id)]
    id: SessionId,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    id: &'a str,
    freed_bytes: u64,
}

pub(crate) fn run(args: &RmArgs, json: bool) -> Result<()> {
    let freed_bytes = SessionStore::of_user()?.remove(&args.id)?;
    let id = args.id.as_str();
    if json {
        return output::write_json(&Document { id, freed_bytes });
    }
    output::write_text(&format!("{id} removed, {} freed\n", output::bytes(freed_bytes))).map(|_| ())
}
