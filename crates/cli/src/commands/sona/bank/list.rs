//! `ruvllm sona bank list`: the items of a bank.

use clap::Args;
use serde::Serialize;

use super::document::{ItemDocument, trials, verdict_name};
use super::open::{BankName, TENANT};
use crate::commands::text_embedder::learning;
use crate::error::Result;
use crate::output;

const HELP: &str = "\
Successes are those of requests that were given the item.

JSON: {bank, items: [{id, title, description, body, verdict, quality, sources, enabled, created_unix, expires_unix,
with: {uses, wins, losses}, without: {uses, wins, losses}, uplift: {difference, low, high}}]}; uplift is null until both
arms have an outcome.

Examples:
  ruvllm sona bank list work
  ruvllm sona bank list work --json | jq '.items[].title'";

/// List the items of a bank
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    name: BankName,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    bank: &'a str,
    items: Vec<ItemDocument>,
}

pub(crate) fn run(args: &ListArgs, json: bool) -> Result<()> {
    let open = args.name.open(|config| config)?;
    let items = open.bank.items(TENANT).map_err(learning)?;
    let bank = args.name.bank.as_str();
    if json {
        let items = items.iter().map(ItemDocument::from).collect();
        return output::write_json(&Document { bank, items });
    }
    let heading = ["id", "verdict", "quality", "successes", "title"].map(str::to_owned).to_vec();
    let row = |item: &ruvllm::crates::sona::bank::Item| {
        vec![
            item.id.to_string(),
            verdict_name(item.verdict).to_owned(),
            format!("{:.2}", item.quality),
            trials(item.with),
            item.text.title().to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = std::iter::once(heading).chain(items.iter().map(row)).collect();
    output::write_text(&output::table(&rows, &[0, 2])).map(drop)
}
