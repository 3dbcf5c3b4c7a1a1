//! `ruvllm embed`: embeddings of texts.

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ruvllm::{CancelToken, Embedder, Embedding, EmbeddingRequest, Embeddings, Pooling};
use serde::Serialize;

use super::load;
use crate::args::{ComputeArgs, ModelArgs, positive};
use crate::error::{Error, Result, one_line};
use crate::output::Reader;
use crate::progress::Progress;
use crate::{input, output, signal};

const HELP: &str = "\
MODEL is an encoder or a decoder. Pooling, maximum length and normalization follow the model's files unless flags say
otherwise; without either: mean pooling, the model's context length, normalized to length 1. A prompt that the model was
trained with, such as \"search_query: \", is part of the text.

Prints one line per text, its values separated by spaces, as soon as they are computed. A blank line is a text like any
other, so that result N belongs to line N; a model that adds no tokens of its own has no vector for it: its line stays
blank (JSON: null), with a warning. Ctrl-C ends the work; what was computed is printed, and the exit code is 130.

JSON: {dim, pooling, normalized, complete, embeddings: [{embedding, tokens, truncated}]}; tokens counts those that were
pooled, truncated says that the text was longer, complete is false after Ctrl-C.
JSON lines: {index, embedding, tokens, truncated} per text; index counts from 0.

Examples:
  ruvllm embed --model all-MiniLM-L6-v2 \"a cat\" \"a dog\"
  ruvllm embed --model all-MiniLM-L6-v2 --jsonl --file lines.txt > vectors.jsonl";

/// Maximum number of texts per step. Results are printed and Ctrl-C is checked between steps.
const STEP_TEXTS: usize = 64;

/// Maximum bytes of text per step; a longer text is a step of its own.
const STEP_BYTES: usize = 4096;

/// Compute embeddings of texts
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct EmbedArgs {
    /// The texts; without them the lines of standard input are
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,

    /// Take the lines of a file as texts; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "texts")]
    file: Option<PathBuf>,

    /// Print one JSON object per text and line, as soon as it is computed
    #[arg(long, conflicts_with = "json")]
    jsonl: bool,

    /// Pooling of the hidden states: mean, last or cls
    #[arg(long, value_name = "KIND", value_parser = pooling)]
    pooling: Option<Pooling>,

    /// Leave vectors as long as they are
    #[arg(long, conflicts_with = "normalize")]
    no_normalize: bool,

    /// Make vectors one long
    #[arg(long)]
    normalize: bool,

    /// Maximum number of tokens per text; the rest is truncated
    #[arg(long, value_name = "N", value_parser = positive)]
    max_tokens: Option<usize>,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    compute: ComputeArgs,
}

/// The JSON document.
#[derive(Serialize)]
struct Document {
    dim: usize,
    pooling: &'static str,
    normalized: bool,
    complete: bool,
    embeddings: Vec<EmbeddingDocument>,
}

#[derive(Serialize)]
struct EmbeddingDocument {
    /// Null for a text without tokens.
    embedding: Option<Vec<f32>>,
    tokens: usize,
    truncated: bool,
}

/// One line of the JSON Lines output.
#[derive(Serialize)]
struct LineDocument {
    index: usize,
    #[serde(flatten)]
    embedding: EmbeddingDocument,
}

impl From<Option<Embedding>> for EmbeddingDocument {
    fn from(embedding: Option<Embedding>) -> Self {
        match embedding {
            Some(Embedding { vector, tokens, truncated, .. }) => {
                Self { embedding: Some(vector), tokens, truncated }
            }
            None => Self { embedding: None, tokens: 0, truncated: false },
        }
    }
}

pub(crate) fn run(args: &EmbedArgs, json: bool) -> Result<ExitCode> {
    args.compute.device.cpu_only("embed")?;
    let (texts, are_lines) = texts(args)?;
    let embedder = load::embedder(&args.model, args.compute.options(None)?)?;
    let request = EmbeddingRequest::new(Vec::<String>::new())
        .with_pooling(args.pooling)
        .with_normalize(match (args.normalize, args.no_normalize) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        })
        .with_max_tokens(args.max_tokens);
    let mut job = Job { embedder, request, texts, are_lines };
    let cancel = signal::cancel_on_interrupt();
    if json { job.document(&cancel) } else { job.lines(args.jsonl, &cancel) }
}

/// Texts to embed, step by step.
struct Job {
    embedder: Embedder,
    /// Request without texts; each step fills them in.
    request: EmbeddingRequest,
    texts: Vec<String>,
    /// True if the texts are lines of a file, some of which may be blank.
    are_lines: bool,
}

impl Job {
    /// Prints each vector as a line of text or JSON.
    fn lines(&mut self, jsonl: bool, cancel: &CancelToken) -> Result<ExitCode> {
        // On the terminal the results themselves show the progress.
        let mut progress = output::goes_elsewhere().then(|| Progress::steps("embedding"));
        let mut done = 0;
        while let Some(range) = self.next_step(done, cancel) {
            let vectors = self.embed(range)?;
            let mut lines = String::new();
            for vector in vectors {
                self.report(done, vector.as_ref());
                if jsonl {
                    lines.push_str(&output::json_line(&LineDocument {
                        index: done,
                        embedding: vector.into(),
                    })?);
                } else {
                    let values = vector.map(|embedding| embedding.vector).unwrap_or_default();
                    lines.push_str(&values.iter().map(f32::to_string).collect::<Vec<_>>().join(" "));
                    lines.push('\n');
                }
                done += 1;
            }
            if output::write_text(&lines)? == Reader::Gone {
                return Ok(ExitCode::SUCCESS);
            }
            if let Some(progress) = &mut progress {
                progress.update(done as u64, self.texts.len() as u64);
            }
        }
        Ok(if done < self.texts.len() { signal::exit_code() } else { ExitCode::SUCCESS })
    }

    /// Prints the JSON document of all vectors.
    fn document(&mut self, cancel: &CancelToken) -> Result<ExitCode> {
        let mut progress = Progress::steps("embedding");
        // An empty request returns the settings, with what the flags leave open resolved.
        let settings = self.embedder.embed(&self.request)?;
        let mut embeddings: Vec<EmbeddingDocument> = Vec::with_capacity(self.texts.len());
        while let Some(range) = self.next_step(embeddings.len(), cancel) {
            let vectors = self.embed(range)?;
            for vector in vectors {
                self.report_blank(embeddings.len(), vector.as_ref());
                embeddings.push(vector.into());
            }
            progress.update(embeddings.len() as u64, self.texts.len() as u64);
        }
        drop(progress);
        let complete = embeddings.len() == self.texts.len();
        let Embeddings { dim, pooling, normalized, .. } = settings;
        output::write_json(&Document { dim, pooling: pooling.name(), normalized, complete, embeddings })?;
        Ok(if complete { ExitCode::SUCCESS } else { signal::exit_code() })
    }

    /// Range of the step that begins at `start`; `None` at the end or after a cancellation.
    fn next_step(&self, start: usize, cancel: &CancelToken) -> Option<Range<usize>> {
        if start == self.texts.len() || cancel.is_cancelled() {
            return None;
        }
        let mut bytes = 0;
        let fits = |text: &&String| {
            let is_first = bytes == 0;
            bytes += text.len().max(1);
            is_first || bytes <= STEP_BYTES
        };
        let n = self.texts[start..].iter().take(STEP_TEXTS).take_while(fits).count();
        Some(start..start + n)
    }

    /// Computes the embeddings of a range; `None` for a blank line without tokens.
    fn embed(&mut self, range: Range<usize>) -> Result<Vec<Option<Embedding>>> {
        let first = range.start;
        let mut blank = vec![false; range.len()];
        loop {
            let places: Vec<usize> = range.clone().filter(|index| !blank[index - first]).collect();
            self.request.texts = places.iter().map(|&index| self.texts[index].clone()).collect();
            match self.embedder.embed(&self.request) {
                Ok(Embeddings { embeddings, .. }) => {
                    let mut found = embeddings.into_iter();
                    let of = |blank: bool| if blank { None } else { found.next() };
                    return Ok(blank.into_iter().map(of).collect());
                }
                Err(ruvllm::Error::EmptyText { index }) if self.are_lines => {
                    let empty = &self.request.texts[index];
                    for (at, blank) in range.clone().zip(&mut blank) {
                        *blank |= self.texts[at] == *empty;
                    }
                }
                Err(error) => return Err(Error::Engine(in_place(error, &places))),
            }
        }
    }

    /// Warns about a text that was truncated or has no embedding.
    fn report(&self, index: usize, vector: Option<&Embedding>) {
        self.report_blank(index, vector);
        if let Some(embedding) = vector.filter(|embedding| embedding.truncated) {
            output::warn(&format!(
                "text {} has more than {} tokens; the rest was left out",
                index + 1,
                embedding.tokens
            ));
        }
    }

    fn report_blank(&self, index: usize, vector: Option<&Embedding>) {
        if vector.is_none() {
            output::warn(&format!("line {} is blank and has no vector; its result is empty", index + 1));
        }
    }
}

/// Converts an error's text index within a step to the index among all texts.
fn in_place(error: ruvllm::Error, places: &[usize]) -> ruvllm::Error {
    let place = |index: usize| places.get(index).copied().unwrap_or(index);
    match error {
        ruvllm::Error::EmptyText { index } => ruvllm::Error::EmptyText { index: place(index) },
        ruvllm::Error::EncodeText { index, source } => {
            ruvllm::Error::EncodeText { index: place(index), source }
        }
        ruvllm::Error::ForwardTexts { first, texts, source } => {
            ruvllm::Error::ForwardTexts { first: place(first), texts, source }
        }
        other => other,
    }
}

/// Texts of the command line, or lines of a file or standard input; true for lines.
fn texts(args: &EmbedArgs) -> Result<(Vec<String>, bool)> {
    if !args.texts.is_empty() && args.texts != ["-"] {
        return Ok((args.texts.clone(), false));
    }
    let path = args.file.clone().unwrap_or_else(|| "-".into());
    let texts: Vec<String> = input::file_text(&path)?.lines().map(str::to_owned).collect();
    if texts.is_empty() {
        let origin =
            args.file.as_ref().map_or("standard input".to_owned(), |path| path.display().to_string());
        return Err(Error::Input { origin, reason: "there is no text in it".to_owned() });
    }
    Ok((texts, true))
}

fn pooling(name: &str) -> Result<Pooling, String> {
    name.parse().map_err(|error: ruvllm_models::Error| one_line(&error))
}
