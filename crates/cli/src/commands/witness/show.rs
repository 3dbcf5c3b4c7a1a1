//! `ruvllm witness show`: the latest entries of a log.

use std::collections::VecDeque;
use std::path::PathBuf;

use clap::Args;
use ruvllm_witness::{Entry, Line, Outcome};
use serde::Serialize;
use serde_json::Value;

use super::selection::SelectionArgs;
use crate::args::positive;
use crate::error::{Error, Result, printable};
use crate::output;

const HELP: &str = "\
Sequence number, time, tenant, request id, endpoint, model, tokens of prompt and output, time in ms, and outcome. The
lines are not verified; `ruvllm witness verify` does that.

JSON: {entries: [LINE]}; a LINE is the object in the log, with its hashes, as docs/witness.md specifies it.

Examples:
  ruvllm witness show /var/lib/ruvllm/witness --last 5
  ruvllm witness show /var/lib/ruvllm/witness --tenant acme --since 2026-11-23 --json";

/// Show the latest entries of a witness log
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ShowArgs {
    /// Folder of the log
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    /// Number of entries: the last of those selected [default: 20]
    #[arg(long, short = 'n', value_name = "N", value_parser = positive)]
    last: Option<usize>,

    #[command(flatten)]
    selection: SelectionArgs,
}

/// The JSON document.
#[derive(Serialize)]
struct Document {
    entries: Vec<Value>,
}

pub(crate) fn run(args: &ShowArgs, json: bool) -> Result<()> {
    let most = args.last.unwrap_or(20);
    // A ring: a log may be larger than memory.
    let mut latest = VecDeque::new();
    args.selection.entries(&args.folder, |line, entry| {
        if latest.len() == most {
            latest.pop_front();
        }
        let row = if json { Vec::new() } else { row(&line, entry) };
        latest.push_back((row, if json { line.text } else { String::new() }));
        Ok(())
    })?;
    if json {
        let parse = |(_, text): &(_, String)| serde_json::from_str(text);
        let entries: serde_json::Result<_> = latest.iter().map(parse).collect();
        let reason = |error: serde_json::Error| Error::Input {
            origin: args.folder.display().to_string(),
            reason: error.to_string(),
        };
        return output::write_json(&Document { entries: entries.map_err(reason)? });
    }
    if latest.is_empty() {
        return output::write_text("no entries\n").map(|_| ());
    }
    let rows: Vec<Vec<String>> = latest.into_iter().map(|(row, _)| row).collect();
    output::write_text(&output::table_of_lines(&rows, &[0, 6, 7])).map(|_| ())
}

fn row(line: &Line, entry: &Entry) -> Vec<String> {
    let total = entry.total_ms.map(|time| format!("{:.1} ms", time.as_secs_f64() * 1e3));
    vec![
        line.seq.to_string(),
        line.time.to_string(),
        printable(&entry.tenant),
        printable(&entry.request_id),
        printable(&entry.endpoint),
        printable(entry.model.as_deref().unwrap_or("-")),
        format!("{}+{}", entry.prompt_tokens, entry.output_tokens),
        total.unwrap_or_else(|| "-".to_owned()),
        printable(&outcome(&entry.outcome)),
    ]
}

/// Outcome in words: `stop`, `error: timeout`.
pub(super) fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Finished(reasons) => reasons.join(" "),
        Outcome::Failed(kind) => format!("error: {kind}"),
        Outcome::Cancelled => "cancelled".to_owned(),
    }
}
