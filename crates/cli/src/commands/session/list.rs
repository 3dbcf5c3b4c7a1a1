//! `ruvllm session list`: the sessions that there are.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use serde::Serialize;

use crate::commands::chat::saved_messages;
use crate::error::Result;
use crate::output;
use crate::session_store::{SessionStore, StoredSession};

/// Longest last message in the table, in characters.
const SHOWN: usize = 60;

const HELP: &str = "\
Id, number of messages, size of messages, keys and values, time of the last answer, and last message of the user.

JSON: {sessions: [{id, message_count, bytes, used_unix, last_message}]}; last_message is absent if there is none,
message_count too if the file cannot be read.

Examples:
  ruvllm session list
  ruvllm session list --json | jq -r '.sessions[].id'";

/// List sessions
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ListArgs {}

/// The JSON document.
#[derive(Serialize)]
struct Document {
    sessions: Vec<SessionDocument>,
}

#[derive(Serialize)]
struct SessionDocument {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    message_count: Option<usize>,
    bytes: u64,
    used_unix: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_message: Option<String>,
}

impl From<&StoredSession> for SessionDocument {
    fn from(session: &StoredSession) -> Self {
        let messages = saved_messages(&session.file).ok();
        let of_user = messages.iter().flatten().rfind(|message| message.role == "user");
        let last_message = of_user.and_then(|message| Some(message.content.as_ref()?.as_str()?.to_owned()));
        Self {
            id: session.id.as_str().to_owned(),
            message_count: messages.as_ref().map(Vec::len),
            bytes: session.bytes,
            used_unix: unix(session.used),
            last_message,
        }
    }
}

fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

pub(crate) fn run(_args: &ListArgs, json: bool) -> Result<()> {
    let sessions = SessionStore::of_user()?.list()?.iter().map(SessionDocument::from).collect();
    let document = Document { sessions };
    if json {
        return output::write_json(&document);
    }
    if document.sessions.is_empty() {
        return output::write_text("no sessions; `ruvllm chat --session ID` begins one\n").map(|_| ());
    }
    let now = unix(SystemTime::now());
    let row = |session: &SessionDocument| {
        let count = session.message_count;
        let messages = count.map_or("damaged".to_owned(), |n| output::counted(n, "message"));
        let age = output::ago(now.saturating_sub(session.used_unix));
        let last = session.last_message.as_deref().map(shortened).unwrap_or_default();
        vec![session.id.clone(), messages, output::bytes(session.bytes), age, last]
    };
    let rows: Vec<Vec<String>> = document.sessions.iter().map(row).collect();
    output::write_text(&output::table_of_lines(&rows, &[1, 2])).map(|_| ())
}

/// The beginning of a message, on one line.
fn shortened(text: &str) -> String {
    let mut words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = words.char_indices().nth(SHOWN) {
        words.truncate(end);
        words.push_str("...");
    }
    words
}
