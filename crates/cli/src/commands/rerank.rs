//! `ruvllm rerank`: documents by their relevance to a query.

use std::path::PathBuf;

use clap::Args;
use ruvllm::{RankedDocument, Ranking, RerankRequest};
use serde::Serialize;

use super::load;
use crate::args::{ComputeArgs, ModelArgs, positive};
use crate::error::{Error, Result};
use crate::{input, output};

const HELP: &str = "\
MODEL reads query and document together. It is a cross-encoder, BERT or (XLM-)RoBERTa with a classification head of one
label (ms-marco-MiniLM, bge-reranker), or a decoder whose prompt asks if the document is relevant (Qwen3-Reranker), which
takes an --instruction. A document that does not fit beside the query is truncated, with a warning.

Prints one line per document, the most relevant first: score, index, text, separated by tabs. Scores go from 0 to 1, the
logistic function of the model's output, which --raw-scores prints in their place; that of a decoder is the logit of its
`yes` less that of its `no`. Indices count from 0.

JSON: {results: [{index, relevance_score, logit, tokens, truncated, document}], tokens}

Examples:
  ruvllm rerank --model bge-reranker-v2-m3 \"capital of France\" \"Paris is its capital.\" \"A river of ice.\"
  ruvllm rerank --model bge-reranker-v2-m3 --top 5 --documents lines.txt \"capital of France\"
  ruvllm rerank --model Qwen3-Reranker-0.6B --instruction \"Find code that does it\" --documents lines.txt \"sort a list\"";

/// Rank documents by their relevance to a query
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct RerankArgs {
    /// The query
    #[arg(value_name = "QUERY")]
    query: String,

    /// The documents; without them the lines of standard input are
    #[arg(value_name = "DOCUMENT")]
    texts: Vec<String>,

    /// Take the lines of a file as documents; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "texts")]
    documents: Option<PathBuf>,

    /// Instruction that says which documents are relevant, for models that take one
    #[arg(long, value_name = "TEXT")]
    instruction: Option<String>,

    /// Maximum number of results
    #[arg(long, value_name = "N", value_parser = positive)]
    top: Option<usize>,

    /// Print the model's outputs instead of scores from 0 to 1
    #[arg(long)]
    raw_scores: bool,

    /// Maximum number of tokens of query, document and prompt; the rest of the document is
    /// truncated
    #[arg(long, value_name = "N", value_parser = positive)]
    max_tokens: Option<usize>,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    compute: ComputeArgs,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    results: Vec<ResultDocument<'a>>,
    tokens: usize,
}

#[derive(Serialize)]
struct ResultDocument<'a> {
    index: usize,
    relevance_score: f32,
    logit: f32,
    tokens: usize,
    truncated: bool,
    document: &'a str,
}

pub(crate) fn run(args: &RerankArgs, json: bool) -> Result<()> {
    args.compute.device.cpu_only("rerank")?;
    let documents = documents(args)?;
    let reranker = load::embedder(&args.model, args.compute.options(None)?)?;
    let request = RerankRequest::new(args.query.as_str(), &documents)
        .with_instruction(args.instruction.clone())
        .with_top_n(args.top)
        .with_max_tokens(args.max_tokens);
    let Ranking { results, tokens, .. } = reranker.rerank(&request)?;
    for document in results.iter().filter(|document| document.truncated) {
        let (number, limit) = (document.index + 1, document.tokens);
        output::warn(&format!(
            "document {number} has more than {limit} tokens with the query; the rest was left out"
        ));
    }
    if json {
        let results = results.iter().map(|found| result(found, &documents)).collect();
        return output::write_json(&Document { results, tokens });
    }
    let mut lines = String::new();
    for found in &results {
        let score = if args.raw_scores { found.logit } else { found.score() };
        // A document of an argument may have lines.
        let text = documents[found.index].replace(['\n', '\r', '\t'], " ");
        lines.push_str(&format!("{score:.4}\t{}\t{text}\n", found.index));
    }
    output::write_text(&lines).map(|_| ())
}

fn result<'a>(found: &RankedDocument, documents: &'a [String]) -> ResultDocument<'a> {
    ResultDocument {
        index: found.index,
        relevance_score: found.score(),
        logit: found.logit,
        tokens: found.tokens,
        truncated: found.truncated,
        document: &documents[found.index],
    }
}

/// Documents of the command line, or lines of a file or standard input.
fn documents(args: &RerankArgs) -> Result<Vec<String>> {
    if !args.texts.is_empty() && args.texts != ["-"] {
        return Ok(args.texts.clone());
    }
    let path = args.documents.clone().unwrap_or_else(|| "-".into());
    let lines: Vec<String> = input::file_text(&path)?.lines().map(str::to_owned).collect();
    if lines.is_empty() {
        let origin =
            args.documents.as_ref().map_or("standard input".to_owned(), |path| path.display().to_string());
        return Err(Error::Input { origin, reason: "there is no document in it".to_owned() });
    }
    Ok(lines)
}
