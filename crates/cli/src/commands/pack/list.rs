//! `ruvllm pack list`: the packs of the store.

use std::path::Path;

use clap::Args;
use ruvllm_kernel_packs::InstalledPack;
use serde::Serialize;

use super::installed::PackDocument;
use super::store;
use crate::error::{Result, one_line};
use crate::output;

const HELP: &str = "\
Name, current version, previous version, number of older versions that are kept, and the time of the installation.
Files of packs are not read: they are verified each time a pack is opened.

JSON: {store, packs: [{name, version, previous, older, floor, installed}], damaged: [{name, reason}]}

Examples:
  ruvllm pack list
  ruvllm pack list --json | jq -r '.packs[] | \"\\(.name) \\(.version)\"'";

/// List the installed packs
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ListArgs {}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    store: &'a Path,
    packs: Vec<PackDocument<'a>>,
    damaged: Vec<DamagedDocument<'a>>,
}

#[derive(Serialize)]
struct DamagedDocument<'a> {
    name: &'a str,
    reason: String,
}

pub(crate) fn run(_args: &ListArgs, json: bool) -> Result<()> {
    let store = store()?;
    let (packs, damaged) = store.list()?;
    let damaged: Vec<DamagedDocument<'_>> = damaged
        .iter()
        .map(|damaged| DamagedDocument { name: &damaged.name, reason: one_line(&damaged.error) })
        .collect();
    if json {
        let packs = packs.iter().map(PackDocument::from).collect();
        return output::write_json(&Document { store: store.root(), packs, damaged });
    }
    if packs.is_empty() && damaged.is_empty() {
        let root = store.root().display();
        let text = format!("no packs in {root}; `ruvllm pack install` brings one\n");
        return output::write_text(&text).map(|_| ());
    }
    let row = |pack: &InstalledPack| {
        let previous =
            pack.previous.as_ref().map(|previous| format!("previous {}", previous.release.version));
        vec![
            pack.name.clone(),
            pack.current.release.version.to_string(),
            previous.unwrap_or_default(),
            format!("{} older", pack.older.len()),
            pack.current.installed.to_string(),
        ]
    };
    let damage = |damaged: &DamagedDocument<'_>| {
        let blank = String::new;
        vec![damaged.name.to_owned(), blank(), blank(), blank(), format!("damaged: {}", damaged.reason)]
    };
    let mut rows: Vec<Vec<String>> = packs.iter().map(row).chain(damaged.iter().map(damage)).collect();
    rows.sort();
    output::write_text(&output::table_of_lines(&rows, &[1])).map(|_| ())
}
