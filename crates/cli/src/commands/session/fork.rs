//! `ruvllm session fork`: a second session with the same messages.

use clap::Args;
use serde::Serialize;

use crate::error::Result;
use crate::output;
use crate::session_store::{SessionId, SessionStore};

const HELP: &str = "\
Messages, keys and values are those of ID; both go on independently. Files of keys and values are linked, not copied,
where the file system can.

JSON: {id, bytes}

Examples:
  ruvllm session fork story other-ending
  ruvllm chat --session other-ending";

/// Make a session with the messages of another one
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ForkArgs {
    /// The session
    #[arg(value_name = "ID", value_parser = super::id)]
    id: SessionId,

    /// The new session
    #[arg(value_name = "NEW", value_parser = super::id)]
    new: SessionId,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    id: &'a str,
    bytes: u64,
}

pub(crate) fn run(args: &ForkArgs, json: bool) -> Result<()> {
    let made = SessionStore::of_user()?.fork(&args.id, &args.new)?;
    if json {
        return output::write_json(&Document { id: made.id.as_str(), bytes: made.bytes });
    }
    output::write_text(&format!("{} made from {}\n", made.id.as_str(), args.id.as_str())).map(|_| ())
}
