//! `ruvllm sona bank add`: an item by hand.

use clap::Args;
use ruvllm::crates::sona::bank::{ItemText, NewItem, Verdict};
use ruvllm::crates::sona::model::Embed as _;
use serde::Serialize;

use super::document::verdict;
use super::open::{BankArgs, TENANT, now};
use crate::args::fraction;
use crate::commands::text_embedder::learning;
use crate::error::Result;
use crate::output;

const HELP: &str = "\
The first item begins the bank, with the embedding model of this command: the built-in one, or --model. Later requests
find an item by the similarity of their text to --task. Control tokens of chat templates are refused, tags escaped.
An item whose text is nearly that of another one is merged into it.

JSON: {bank, added: [ID], merged: [ID]}

Examples:
  ruvllm sona bank add work --title \"Totals\" --task \"Sum the invoices of a month\" \\
    --description \"When numbers are summed\" --body \"Check the currency of each line first.\"";

/// Add an item by hand
#[derive(Debug, Args)]
#[command(after_help = HELP, override_usage = "ruvllm sona bank add [OPTIONS] <LESSON> <NAME>")]
pub(crate) struct AddArgs {
    #[command(flatten)]
    bank: BankArgs,

    /// Short name of the lesson, at most 120 characters
    #[arg(long, value_name = "TEXT")]
    title: String,

    /// Situation in which the lesson applies, at most 300 characters
    #[arg(long, value_name = "TEXT")]
    description: String,

    /// Advice in one to three sentences, at most 1200 characters
    #[arg(long, value_name = "TEXT")]
    body: String,

    /// Task that the lesson is from [default: the description]
    #[arg(long, value_name = "TEXT")]
    task: Option<String>,

    /// Outcome of that task: success, failure or partial
    #[arg(long, value_name = "VERDICT", default_value = "success", value_parser = verdict)]
    verdict: Verdict,

    /// Quality of the lesson, 0 to 1
    #[arg(long, value_name = "Q", default_value = "0.5", value_parser = fraction)]
    quality: f32,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    bank: &'a str,
    added: Vec<u64>,
    merged: Vec<u64>,
}

pub(crate) fn run(args: &AddArgs, json: bool) -> Result<()> {
    let text = ItemText::new(&args.title, &args.description, &args.body).map_err(learning)?;
    let (open, embedder) = args.bank.open(true, |config| config)?;
    let embed = |text: &str| embedder.embed(text).map_err(learning);
    let task = args.task.as_deref().unwrap_or(text.description());
    let item = NewItem {
        query: embed(task)?,
        content: embed(&text.joined())?,
        text,
        verdict: args.verdict,
        quality: args.quality,
        expires: None,
    };
    // Items by hand have no trajectory; each call is one of its own.
    let source = format!("by hand {}.{}", now(), std::process::id());
    let learned = open.bank.learn(TENANT, &source, &[item], now()).map_err(learning)?;
    let bank = args.bank.name.bank.as_str();
    if json {
        return output::write_json(&Document { bank, added: learned.added, merged: learned.merged });
    }
    let text = match (learned.added.first(), learned.merged.first()) {
        (Some(id), _) => format!("{bank}: item {id} added\n"),
        (None, Some(id)) => format!("{bank}: merged into item {id}\n"),
        (None, None) => format!("{bank}: nothing added\n"),
    };
    output::write_text(&text).map(drop)
}
