//! `ruvllm embed`: vectors of texts.

use std::path::PathBuf;

use clap::Args;
use ruvllm::{Embedding, EmbeddingRequest, Pooling};
use serde::Serialize;

use super::load;
use crate::args::{ComputeArgs, ModelArgs, positive};
use crate::error::{Error, Result, one_line};
use crate::{input, output};

const HELP: &str = "\
MODEL is an encoder of the BERT family or a decoder. Pooling, maximum length and normalization follow the model's files
unless flags say otherwise; without either: mean pooling, the model's context length, normalized to length 1.

Prints one line per text, its values separated by spaces.
JSON: {dim, pooling, normalized, embeddings: [{embedding, tokens, truncated}]}; tokens counts those that were pooled,
truncated says that the text was longer.

Examples:
  ruvllm embed --model all-MiniLM-L6-v2 \"a cat\" \"a dog\"
  ruvllm embed --model all-MiniLM-L6-v2 --json --file lines.txt";

/// Turn texts into vectors
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct EmbedArgs {
    /// The texts; without them the lines of standard input are
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,

    /// Take the lines of a file as texts; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "texts")]
    file: Option<PathBuf>,

    /// Pooling of the hidden states: mean, last or cls
    #[arg(long, value_name = "KIND", value_parser = pooling)]
    pooling: Option<Pooling>,

    /// Leave vectors as long as they are
    #[arg(long, conflicts_with = "normalize")]
    no_normalize: bool,

    /// Make vectors one long
    #[arg(long)]
    normalize: bool,

    /// Most tokens of a text; the rest is left out
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
    dim: usize,
    pooling: &'static str,
    normalized: bool,
    embeddings: Vec<EmbeddingDocument<'a>>,
}

#[derive(Serialize)]
struct EmbeddingDocument<'a> {
    embedding: &'a [f32],
    tokens: usize,
    truncated: bool,
}

impl<'a> From<&'a Embedding> for EmbeddingDocument<'a> {
    fn from(Embedding { vector, tokens, truncated, .. }: &'a Embedding) -> Self {
        Self { embedding: vector, tokens: *tokens, truncated: *truncated }
    }
}

pub(crate) fn run(args: &EmbedArgs, json: bool) -> Result<()> {
    args.compute.device.cpu_only("embed")?;
    let texts = texts(args)?;
    let embedder = load::embedder(&args.model, args.compute.options(None))?;
    let request = EmbeddingRequest::new(texts)
        .with_pooling(args.pooling)
        .with_normalize(match (args.normalize, args.no_normalize) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        })
        .with_max_tokens(args.max_tokens);
    let result = embedder.embed(&request)?;
    if json {
        return output::write_json(&Document {
            dim: result.dim,
            pooling: result.pooling.name(),
            normalized: result.normalized,
            embeddings: result.embeddings.iter().map(EmbeddingDocument::from).collect(),
        });
    }
    for (index, embedding) in result.embeddings.iter().enumerate().filter(|(_, text)| text.truncated) {
        output::warn(&format!(
            "text {} has more than {} tokens; the rest was left out",
            index + 1,
            embedding.tokens
        ));
    }
    let line = |embedding: &Embedding| {
        embedding.vector.iter().map(f32::to_string).collect::<Vec<_>>().join(" ") + "\n"
    };
    output::write_text(&result.embeddings.iter().map(line).collect::<String>()).map(|_| ())
}

/// The texts of the command line, or the lines of a file.
fn texts(args: &EmbedArgs) -> Result<Vec<String>> {
    if !args.texts.is_empty() && args.texts != ["-"] {
        return Ok(args.texts.clone());
    }
    let path = args.file.clone().unwrap_or_else(|| "-".into());
    let texts: Vec<String> = input::file_text(&path)?.lines().map(str::to_owned).collect();
    if texts.is_empty() {
        let origin =
            args.file.as_ref().map_or("standard input".to_owned(), |path| path.display().to_string());
        return Err(Error::Input { origin, reason: "there is no text in it".to_owned() });
    }
    Ok(texts)
}

fn pooling(name: &str) -> Result<Pooling, String> {
    name.parse().map_err(|error: ruvllm_models::Error| one_line(&error))
}
