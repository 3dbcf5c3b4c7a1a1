//! `ruvllm eval routing`, `embedding` and `full`: requests of users and the agent for each.

use std::path::PathBuf;

use clap::Args;
use ruvllm::crates::sona::evaluation::{
    DataSet, EmbeddingReport, Latency, RoutingReport, Share, evaluate_embedding, evaluate_routing,
};
use ruvllm::crates::sona::model::Embed;
use ruvllm::crates::sona::routing::SemanticSettings;
use ruvllm::crates::sona::{HashedWords, Result as SonaResult};
use serde::Serialize;

use crate::args::CpuArgs;
use crate::commands::text_embedder::{TextEmbedder, learning};
use crate::default_model::ModelChoice;
use crate::error::{Error, Result};
use crate::{input, output};

/// Values of an embedding of hashed words.
const WORDS: usize = 512;

/// Data and model of the evaluation.
#[derive(Debug, Args)]
pub(crate) struct CasesArgs {
    /// Cases in the form of crates/sona/data/agents.json [default: the 104 built in]
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,

    #[command(flatten)]
    cpu: CpuArgs,
}

/// Parts of the evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parts {
    Routing,
    Embedding,
    Full,
}

/// The JSON document.
#[derive(Serialize)]
struct Document {
    model: String,
    agents: usize,
    cases: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    routers: Option<Vec<RouterDocument>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    embeddings: Option<Vec<EmbeddingDocument>>,
}

#[derive(Serialize)]
struct RouterDocument {
    router: &'static str,
    #[serde(flatten)]
    report: RoutingReport,
}

#[derive(Serialize)]
struct EmbeddingDocument {
    embedding: &'static str,
    #[serde(flatten)]
    report: EmbeddingReport,
}

/// Embedding that tells nothing: keywords alone decide.
struct Constant;

impl Embed for Constant {
    fn embed(&self, _text: &str) -> SonaResult<Vec<f32>> {
        Ok(vec![1.0])
    }
}

/// Measures the parts and prints them.
///
/// # Errors
/// A file that is no set of cases, a model that cannot be loaded or embeds nothing.
pub(super) fn run(args: &CasesArgs, parts: Parts, json: bool) -> Result<()> {
    let set = match &args.data {
        Some(path) => DataSet::from_json(&input::file_text(path)?).map_err(|error| Error::Input {
            origin: path.display().to_string(),
            reason: format!("{error}; the form is in `ruvllm eval routing --help`"),
        })?,
        None => DataSet::built_in().map_err(learning)?,
    };
    let model = TextEmbedder::load(&args.cpu)?;
    let words = HashedWords { dimension: WORDS };
    let document = Document {
        model: ModelChoice::new(args.cpu.model.model.as_deref()).name(),
        agents: set.agents.len(),
        cases: set.cases.len(),
        routers: if parts == Parts::Embedding { None } else { Some(routers(&set, &model, &words)?) },
        embeddings: if parts == Parts::Routing { None } else { Some(embeddings(&set, &model, &words)?) },
    };
    if json { output::write_json(&document) } else { output::write_text(&text(&document)).map(drop) }
}

fn routers(set: &DataSet, model: &TextEmbedder, words: &HashedWords) -> Result<Vec<RouterDocument>> {
    let both = SemanticSettings::default();
    let without = SemanticSettings { keyword_weight: 0.0, ..both.clone() };
    let reports = [
        ("keywords", evaluate_routing(set, &Constant, &both)),
        ("embedding", evaluate_routing(set, model, &without)),
        ("embedding and keywords", evaluate_routing(set, model, &both)),
        ("hashed words", evaluate_routing(set, words, &without)),
        ("hashed words and keywords", evaluate_routing(set, words, &both)),
    ];
    let document = |(router, report): (_, SonaResult<_>)| {
        Ok(RouterDocument { router, report: report.map_err(learning)? })
    };
    reports.into_iter().map(document).collect()
}

fn embeddings(set: &DataSet, model: &TextEmbedder, words: &HashedWords) -> Result<Vec<EmbeddingDocument>> {
    let reports =
        [("model", evaluate_embedding(set, model)), ("hashed words", evaluate_embedding(set, words))];
    let document = |(embedding, report): (_, SonaResult<_>)| {
        Ok(EmbeddingDocument { embedding, report: report.map_err(learning)? })
    };
    reports.into_iter().map(document).collect()
}

fn text(document: &Document) -> String {
    let mut out = format!("{}: {} cases, {} agents\n", document.model, document.cases, document.agents);
    if let Some(routers) = &document.routers {
        let heading =
            "router|right|top 3|MRR|NDCG@3|above hard negative|margin|routed|right of routed|us p50|p95|p99";
        let rows = routers.iter().map(|RouterDocument { router, report }| {
            let mut row = vec![
                (*router).to_owned(),
                percent(report.accuracy),
                percent(report.top3_accuracy),
                decimal(report.mrr),
                decimal(report.ndcg_at_3),
                percent(report.hard_negative_accuracy),
                decimal(report.hard_negative_margin),
                percent(report.coverage),
                percent(report.accuracy_of_routed),
            ];
            row.extend(latency(report.latency));
            row
        });
        out += &section(heading, rows);
        let parts = ["easy", "medium", "hard", "request", "question", "situation", "crossed"];
        let rows = routers.iter().map(|RouterDocument { router, report }| {
            let difficulty = report.by_difficulty.values().copied();
            let shares = difficulty.chain(report.by_form.values().copied());
            std::iter::once((*router).to_owned()).chain(shares.map(share)).collect()
        });
        out += &section(&format!("router|{}", parts.join("|")), rows);
        let agents = routers.first().into_iter().flat_map(|first| first.report.by_agent.keys());
        let rows = agents.map(|agent| {
            let of = |router: &RouterDocument| {
                router.report.by_agent.get(agent).copied().map_or("-".into(), share)
            };
            std::iter::once(agent.clone()).chain(routers.iter().map(of)).collect()
        });
        let names: Vec<&str> = routers.iter().map(|router| router.router).collect();
        out += &section(&format!("agent|{}", names.join("|")), rows);
    }
    if let Some(embeddings) = &document.embeddings {
        let heading = "embedding|values|nearest right|top 3|MRR|NDCG@10|purity|silhouette|above hard negative|margin|us p50|p95|p99";
        let rows = embeddings.iter().map(|EmbeddingDocument { embedding, report }| {
            let mut row = vec![
                (*embedding).to_owned(),
                report.dim.to_string(),
                percent(report.nearest_accuracy),
                percent(report.top3_accuracy),
                decimal(report.mrr),
                decimal(report.ndcg_at_10),
                decimal(report.purity),
                decimal(report.silhouette),
                percent(report.hard_negative_accuracy),
                decimal(report.hard_negative_margin),
            ];
            row.extend(latency(report.latency));
            row
        });
        out += &section(heading, rows);
    }
    out
}

/// A table behind an empty line.
fn section(heading: &str, rows: impl Iterator<Item = Vec<String>>) -> String {
    let heading: Vec<String> = heading.split('|').map(str::to_owned).collect();
    let right: Vec<usize> = (1..heading.len()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(heading).chain(rows).collect();
    format!("\n{}", output::table_of_lines(&rows, &right))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn decimal(value: f64) -> String {
    format!("{value:.3}")
}

fn share(share: Share) -> String {
    format!("{}/{}", share.right, share.cases)
}

fn latency(latency: Option<Latency>) -> [String; 3] {
    let values = latency.map(|Latency { p50_us, p95_us, p99_us }| [p50_us, p95_us, p99_us]);
    values.map_or_else(
        || ["-".to_owned(), "-".to_owned(), "-".to_owned()],
        |all| all.map(|us| format!("{us:.0}")),
    )
}
