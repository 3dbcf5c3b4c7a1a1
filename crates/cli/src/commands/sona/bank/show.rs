//! `ruvllm sona bank show`: an item with its text and its sources.

use clap::Args;
use ruvllm::crates::sona::Error as SonaError;
use serde::Serialize;

use super::document::{ItemDocument, trials, uplift, verdict_name};
use super::open::{BankName, TENANT};
use crate::commands::text_embedder::learning;
use crate::error::Result;
use crate::output;

const HELP: &str = "\
JSON: {bank, item, sources: [TEXT]}; item as in `ruvllm sona bank list`, sources are the trajectories that it was
learned from.

Examples:
  ruvllm sona bank show work 3";

/// Show an item
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    name: BankName,

    /// Id of the item
    #[arg(value_name = "ID")]
    id: u64,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    bank: &'a str,
    item: ItemDocument,
    sources: Vec<String>,
}

pub(crate) fn run(args: &ShowArgs, json: bool) -> Result<()> {
    let open = args.name.open(|config| config)?;
    let item = open.bank.item(TENANT, args.id).map_err(learning)?;
    let absent = || SonaError::NoItem { tenant: args.name.bank.clone(), id: args.id };
    let item = item.ok_or_else(absent).map_err(learning)?;
    let sources = open.bank.provenance(TENANT, args.id).map_err(learning)?;
    if json {
        let bank = args.name.bank.as_str();
        return output::write_json(&Document { bank, item: ItemDocument::from(&item), sources });
    }
    let row = |name: &str, value: &str| vec![name.to_owned(), value.to_owned()];
    let rows = [
        row("item", &item.id.to_string()),
        row("title", item.text.title()),
        row("description", item.text.description()),
        row("body", item.text.body()),
        row("verdict", verdict_name(item.verdict)),
        row("quality", &format!("{:.2}", item.quality)),
        row("with the item", &format!("{} successes", trials(item.with))),
        row("without", &format!("{} successes", trials(item.without))),
        row("uplift", &uplift(item.uplift())),
        row("sources", &sources.join(", ")),
    ];
    output::write_text(&output::table(&rows, &[])).map(drop)
}
