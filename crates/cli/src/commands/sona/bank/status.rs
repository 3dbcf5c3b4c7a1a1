//! `ruvllm sona bank status`: counts of a bank and the gain that was measured.

use clap::Args;
use serde::Serialize;

use super::document::{CountsDocument, UpliftDocument, trials, uplift};
use super::open::{BankName, TENANT};
use crate::commands::text_embedder::learning;
use crate::error::Result;
use crate::output;

const HELP: &str = "\
The uplift is the success rate of requests with memory minus that of the control arm, with its 95 % interval. Both count
only requests for which an item matched, and only outcomes that were recorded.

JSON: {bank, model, items, enabled, requests, matched, with: {uses, wins, losses}, without: {uses, wins, losses}, uplift:
{difference, low, high}}; requests counts those that asked the bank, matched those for which an item matched, uplift is
null until both arms have an outcome.

Examples:
  ruvllm sona bank status work
  ruvllm sona bank status work --json";

/// Show the counts of a bank and its measured gain
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    name: BankName,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    bank: &'a str,
    model: &'a str,
    items: usize,
    enabled: usize,
    requests: usize,
    matched: usize,
    with: CountsDocument,
    without: CountsDocument,
    uplift: Option<UpliftDocument>,
}

pub(crate) fn run(args: &StatusArgs, json: bool) -> Result<()> {
    let open = args.name.open(|config| config)?;
    let items = open.bank.items(TENANT).map_err(learning)?;
    let (with, without) = open.bank.outcomes(TENANT).map_err(learning)?;
    let gain = open.bank.uplift(TENANT).map_err(learning)?;
    let noted = open.noted()?;
    let matched = noted.iter().filter(|given| !given.receipt.items.is_empty()).count();
    let enabled = items.iter().filter(|item| item.is_enabled).count();
    if json {
        return output::write_json(&Document {
            bank: &args.name.bank,
            model: &open.manifest.model,
            items: items.len(),
            enabled,
            requests: noted.len(),
            matched,
            with: with.into(),
            without: without.into(),
            uplift: gain.map(Into::into),
        });
    }
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let rows = [
        row("bank", args.name.bank.clone()),
        row("embedding model", open.manifest.model.clone()),
        row("items", format!("{}, {enabled} enabled", items.len())),
        row("requests", format!("{}, an item matched for {matched}", noted.len())),
        row("with memory", format!("{} successes", trials(with))),
        row("control arm", format!("{} successes", trials(without))),
        row("uplift", uplift(gain)),
    ];
    output::write_text(&output::table(&rows, &[])).map(drop)
}
