//! `ruvllm sona bank remove`: removes items.

use clap::{ArgGroup, Args};
use serde::Serialize;

use super::open::{BankName, TENANT};
use crate::commands::text_embedder::learning;
use crate::error::Result;
use crate::output;

const HELP: &str = "\
An item that was removed does not come back: its trajectories stay known. --all removes the counts and the known
trajectories, too.

JSON: {bank, removed}

Examples:
  ruvllm sona bank remove work 3
  ruvllm sona bank remove work --all";

/// Remove items
#[derive(Debug, Args)]
#[command(after_help = HELP)]
#[command(group = ArgGroup::new("which").required(true).args(["ids", "all"]))]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    name: BankName,

    /// Ids of the items
    #[arg(value_name = "ID")]
    ids: Vec<u64>,

    /// All items
    #[arg(long)]
    all: bool,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    bank: &'a str,
    removed: usize,
}

pub(crate) fn run(args: &RemoveArgs, json: bool) -> Result<()> {
    let open = args.name.open(|config| config)?;
    let removed = if args.all {
        open.bank.forget_tenant(TENANT).map_err(learning)?
    } else {
        args.ids.iter().try_for_each(|&id| open.bank.remove(TENANT, id)).map_err(learning)?;
        args.ids.len()
    };
    let bank = args.name.bank.as_str();
    if json {
        return output::write_json(&Document { bank, removed });
    }
    output::write_text(&format!("{bank}: {} removed\n", output::counted(removed, "item"))).map(drop)
}
