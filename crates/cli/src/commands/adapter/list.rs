//! `ruvllm adapter list`: the adapters of the store.

use std::path::Path;

use clap::Args;
use ruvllm_adapters::{DamagedAdapter, StoredAdapter};
use serde::Serialize;

use super::stored::{AdapterDocument, added};
use crate::adapter_store::store;
use crate::error::{Result, one_line, printable};
use crate::output;

const HELP: &str = "\
Name, architecture of the base model, rank, size, age, and the files that it was made of. Only the beginnings of files
are read: `ruvllm adapter verify` reads all. Damaged files are listed with the reason; `ruvllm adapter rm NAME` removes
them.

JSON: {store, adapters: [{name, source, architecture, rank, path, bytes, added_unix}], damaged: [{name, path, reason}]}

Examples:
  ruvllm adapter list
  ruvllm adapter list --json | jq -r '.adapters[].name'";

/// List the adapters in the store
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ListArgs {}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    store: &'a Path,
    adapters: Vec<AdapterDocument<'a>>,
    damaged: Vec<DamagedDocument<'a>>,
}

#[derive(Serialize)]
struct DamagedDocument<'a> {
    name: &'a str,
    path: &'a Path,
    reason: String,
}

impl<'a> From<&'a DamagedAdapter> for DamagedDocument<'a> {
    fn from(damaged: &'a DamagedAdapter) -> Self {
        Self { name: &damaged.name, path: &damaged.path, reason: one_line(&damaged.error) }
    }
}

pub(crate) fn run(_args: &ListArgs, json: bool) -> Result<()> {
    let store = store()?;
    let (adapters, damaged) = store.list()?;
    if json {
        let adapters = adapters.iter().map(AdapterDocument::from).collect();
        let damaged = damaged.iter().map(DamagedDocument::from).collect();
        return output::write_json(&Document { store: store.root(), adapters, damaged });
    }
    if adapters.is_empty() && damaged.is_empty() {
        let root = store.root().display();
        let text = format!("no adapters in {root}; `ruvllm adapter add` brings one\n");
        return output::write_text(&text).map(|_| ());
    }
    let row = |adapter: &StoredAdapter| {
        vec![
            adapter.name.clone(),
            printable(&adapter.file.base().architecture),
            format!("rank {}", adapter.rank()),
            output::bytes(adapter.bytes),
            added(adapter),
            printable(adapter.file.source()),
        ]
    };
    let damage = |damaged: &DamagedAdapter| {
        let reason = format!("damaged: {}", printable(&one_line(&damaged.error)));
        let blank = String::new;
        vec![damaged.name.clone(), blank(), blank(), blank(), blank(), reason]
    };
    let mut rows: Vec<Vec<String>> = adapters.iter().map(row).chain(damaged.iter().map(damage)).collect();
    rows.sort();
    output::write_text(&output::table_of_lines(&rows, &[2, 3])).map(|_| ())
}
