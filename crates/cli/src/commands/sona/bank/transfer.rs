//! `ruvllm sona bank export` and `import`: items as JSON lines.

use std::path::PathBuf;

use clap::Args;
use ruvllm::crates::sona::bank::{ItemText, NewItem, Verdict};
use ruvllm::crates::sona::model::Embed as _;
use serde::{Deserialize, Serialize};

use super::open::{BankArgs, BankName, TENANT, now};
use crate::commands::text_embedder::learning;
use crate::error::{Error, Result};
use crate::result_file::{Destination, Readers};
use crate::{input, output};

const EXPORT_HELP: &str = "\
OUT has one JSON object per line: {title, description, body, verdict, quality, model, query}; query is the embedding of
the item's task by the model of this fingerprint. Counts stay: they belong to the requests of this bank.

JSON: {bank, output, items}

Examples:
  ruvllm sona bank export work lessons.jsonl
  ruvllm sona bank export work - | head -1";

const IMPORT_HELP: &str = "\
FILE is that of `ruvllm sona bank export`, or lines {title, description, body} with perhaps task, verdict and quality.
A query of another embedding model is computed again, from the task or else the description. Each line is checked as
`ruvllm sona bank add` checks it; the first one that is refused ends the import before anything is changed.

JSON: {bank, added: [ID], merged: [ID]}

Examples:
  ruvllm sona bank import work lessons.jsonl";

/// Write the items of a bank to a file
#[derive(Debug, Args)]
#[command(after_help = EXPORT_HELP)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    name: BankName,

    /// The file to write (- = standard output)
    #[arg(value_name = "OUT")]
    output: PathBuf,

    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,
}

/// Add the items of a file to a bank
#[derive(Debug, Args)]
#[command(after_help = IMPORT_HELP)]
pub(crate) struct ImportArgs {
    #[command(flatten)]
    bank: BankArgs,

    /// The file; `-` reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// A line of an exported file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    title: String,
    description: String,
    body: String,
    #[serde(default = "success")]
    verdict: Verdict,
    #[serde(default = "middle")]
    quality: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    query: Option<Vec<f32>>,
}

fn success() -> Verdict {
    Verdict::Success
}

fn middle() -> f32 {
    0.5
}

/// The JSON document of an export.
#[derive(Serialize)]
struct Exported<'a> {
    bank: &'a str,
    output: &'a PathBuf,
    items: usize,
}

/// The JSON document of an import.
#[derive(Serialize)]
struct Imported<'a> {
    bank: &'a str,
    added: Vec<u64>,
    merged: Vec<u64>,
}

pub(crate) fn export(args: &ExportArgs, json: bool) -> Result<()> {
    let destination = Destination::find_text(&args.output, args.force)?;
    let open = args.name.open(|config| config)?;
    let items = open.bank.items_with_queries(TENANT).map_err(learning)?;
    let mut text = String::new();
    let count = items.len();
    for (item, query) in items {
        let line = Line {
            title: item.text.title().to_owned(),
            description: item.text.description().to_owned(),
            body: item.text.body().to_owned(),
            verdict: item.verdict,
            quality: item.quality,
            task: None,
            model: Some(open.manifest.fingerprint.clone()),
            query: Some(query),
        };
        text += &serde_json::to_string(&line).map_err(|error| destination.failed(error.into()))?;
        text.push('\n');
    }
    destination.write(text.as_bytes(), Readers::Owner)?;
    if args.output.as_os_str() == "-" {
        return Ok(());
    }
    let bank = args.name.bank.as_str();
    if json {
        return output::write_json(&Exported { bank, output: &args.output, items: count });
    }
    let items = output::counted(count, "item");
    output::write_text(&format!("{bank}: {items} in {}\n", args.output.display())).map(drop)
}

pub(crate) fn import(args: &ImportArgs, json: bool) -> Result<()> {
    let text = input::file_text(&args.file)?;
    let origin = args.file.display().to_string();
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let refused = |reason: String| Error::Input { origin: format!("{origin}:{number}"), reason };
        let line: Line = serde_json::from_str(line).map_err(|error| refused(error.to_string()))?;
        let text = ItemText::new(&line.title, &line.description, &line.body);
        lines.push((text.map_err(|error| refused(error.to_string()))?, line));
    }
    let (open, embedder) = args.bank.open(true, |config| config)?;
    let embed = |text: &str| embedder.embed(text).map_err(learning);
    let mut items = Vec::new();
    for (text, line) in lines {
        let is_own = line.model.as_ref() == Some(&open.manifest.fingerprint);
        let query = match line.query.filter(|query| is_own && query.len() == open.manifest.dim) {
            Some(query) => query,
            None => embed(line.task.as_deref().unwrap_or(text.description()))?,
        };
        let content = embed(&text.joined())?;
        let (verdict, quality) = (line.verdict, line.quality);
        items.push(NewItem { text, query, content, verdict, quality, expires: None });
    }
    let source = format!("import {}.{}", now(), std::process::id());
    let learned = open.bank.learn(TENANT, &source, &items, now()).map_err(learning)?;
    let bank = args.bank.name.bank.as_str();
    if json {
        return output::write_json(&Imported { bank, added: learned.added, merged: learned.merged });
    }
    let added = output::counted(learned.added.len(), "item");
    output::write_text(&format!("{bank}: {added} added, {} merged\n", learned.merged.len())).map(drop)
}
