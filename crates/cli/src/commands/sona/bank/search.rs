//! `ruvllm sona bank search`: the items that a request would get.

use clap::Args;
use ruvllm::crates::sona::bank::BankConfig;
use ruvllm::crates::sona::model::Embed as _;
use serde::Serialize;

use super::document::ItemDocument;
use super::open::{BankArgs, TENANT, now};
use crate::args::{fraction, positive};
use crate::commands::text_embedder::learning;
use crate::error::Result;
use crate::output;

const HELP: &str = "\
The score is the cosine similarity of the text and an item's task, corrected by outcomes and age. Nothing is counted.

JSON: {bank, found: [{score, similarity, item}]}; item as in `ruvllm sona bank list`

Examples:
  ruvllm sona bank search work \"Sum the invoices of March\"
  ruvllm sona bank search work \"Add up the bills\" --items 5 --similarity 0";

/// Find the items for a text
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct SearchArgs {
    #[command(flatten)]
    bank: BankArgs,

    /// Text of the request
    #[arg(value_name = "TEXT")]
    text: String,

    /// Maximum number of items, 1 to 16
    #[arg(long, value_name = "N", default_value = "5", value_parser = positive)]
    items: usize,

    /// Smallest similarity, 0 to 1 [default: that of prompts, 0.7]
    #[arg(long, value_name = "S", value_parser = fraction)]
    similarity: Option<f32>,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    bank: &'a str,
    found: Vec<FoundDocument>,
}

#[derive(Serialize)]
struct FoundDocument {
    score: f32,
    similarity: f32,
    item: ItemDocument,
}

pub(crate) fn run(args: &SearchArgs, json: bool) -> Result<()> {
    let (open, embedder) = args.bank.open(false, |config| BankConfig {
        max_items: args.items,
        min_similarity: args.similarity.unwrap_or(config.min_similarity),
        control_share: 0.0,
        ..config
    })?;
    let query = embedder.embed(&args.text).map_err(learning)?;
    let found = open.bank.retrieve(TENANT, "search", &query, now()).map_err(learning)?.items;
    if json {
        let bank = args.bank.name.bank.as_str();
        let found = found.iter().map(|found| FoundDocument {
            score: found.score,
            similarity: found.similarity,
            item: ItemDocument::from(&found.item),
        });
        return output::write_json(&Document { bank, found: found.collect() });
    }
    if found.is_empty() {
        return output::write_text("no item is similar enough; --similarity 0 shows the nearest\n").map(drop);
    }
    let heading = ["id", "score", "similarity", "title"].map(str::to_owned).to_vec();
    let rows = found.iter().map(|found| {
        let title = found.item.text.title().to_owned();
        let [score, similarity] = [found.score, found.similarity].map(|value| format!("{value:.3}"));
        vec![found.item.id.to_string(), score, similarity, title]
    });
    let rows: Vec<Vec<String>> = std::iter::once(heading).chain(rows).collect();
    output::write_text(&output::table(&rows, &[0, 1, 2])).map(drop)
}
