//! `ruvllm sona status`: state of a learned adapter.

use clap::Args;
use ruvllm::crates::sona::online::Standing;
use serde::Serialize;

use super::learned::{LearnedArgs, hex};
use crate::error::Result;
use crate::output;

const HELP: &str = "\
All numbers are counted or measured: lessons in the log that are in effect, updates of the parameters, norms of the
update of the hidden state and of that of the logits, consolidations, lessons since the last of them, and the change of
the loss at held-out ordinary text, which is measured now.

JSON: {name, standing, lessons, new_lessons, updates, baseline, norms: [NUMBER, NUMBER], consolidations: {accepted,
rejected}, harm, snapshot, digest}; standing is learning or quarantined, harm is in nats per token, snapshot the version
of the latest one or null, digest the SHA-256 of the state.

Examples:
  ruvllm sona status tone
  ruvllm sona status tone --json";

/// Show what an adapter has learned
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    learned: LearnedArgs,
}

/// The JSON document.
#[derive(Serialize)]
struct Document {
    name: String,
    standing: &'static str,
    lessons: u64,
    new_lessons: u64,
    updates: u64,
    baseline: f32,
    norms: [f32; 2],
    consolidations: Consolidations,
    harm: Option<f64>,
    snapshot: Option<u64>,
    digest: String,
}

#[derive(Serialize)]
struct Consolidations {
    accepted: u64,
    rejected: u64,
}

pub(crate) fn run(args: &StatusArgs, json: bool) -> Result<()> {
    let learned = args.learned.open()?;
    let harm = learned.adapter.harm(&learned.engine)?;
    let status = learned.adapter.status()?;
    let [accepted, rejected] = status.consolidations;
    let document = Document {
        name: args.learned.name.clone(),
        standing: match status.standing {
            Standing::Learning => "learning",
            Standing::Quarantined { .. } => "quarantined",
        },
        lessons: status.lessons,
        new_lessons: status.new_lessons,
        updates: status.updates,
        baseline: status.baseline,
        norms: status.norms,
        consolidations: Consolidations { accepted, rejected },
        harm,
        snapshot: status.snapshot.map(|info| info.version),
        digest: hex(&status.digest),
    };
    if json {
        return output::write_json(&document);
    }
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let [hidden, logits] = document.norms;
    let rows = [
        row("adapter", document.name),
        row("standing", document.standing.to_owned()),
        row("lessons", document.lessons.to_string()),
        row(
            "consolidations",
            format!("{accepted} accepted, {rejected} rejected, {} new lessons", document.new_lessons),
        ),
        row("updates", document.updates.to_string()),
        row("mean rating", format!("{:.3}", document.baseline)),
        row("norms", format!("hidden state {hidden:.4}, logits {logits:.4}")),
        row("ordinary text", harm.map_or("-".to_owned(), |harm| format!("{harm:+.4} nats per token"))),
        row("snapshot", document.snapshot.map_or("-".to_owned(), |version| version.to_string())),
        row("digest", document.digest),
    ];
    output::write_text(&output::table(&rows, &[])).map(|_| ())
}
