//! `ruvllm pull`: brings a model from a hub into the store.

use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use ruvllm_hub::{Hub, HubSettings, ModelReference, OnRetry, PullStage, Pulled, Retry, Store};
use serde::Serialize;

use super::ModelDocument;
use crate::error::{Result, one_line};
use crate::output;
use crate::progress::Progress;

const HELP: &str = "\
REFERENCE is [hf://]ORG/REPO[/FILE][@REVISION], or the address of a repository or file on huggingface.co.
FILE is a path in the repository, or a quantization such as Q4_K_M if one model of the repository has it in its name.
Without FILE the model in GGUF with the usual quantization is taken, else the folder of config.json, safetensors files
and tokenizer. All parts of a split model come together. REVISION is a branch, tag or commit [default: main].

What an interrupted pull has fetched is not fetched again: repeat the command. Files are verified against the SHA-256
that the hub states, else by their ETag; where it states neither, a file is \"unverified\", comes over one connection and
begins anew after an interruption. The name is then what --model takes; pulling under it again brings it up to date.

Environment: RUVLLM_HOME (the store is its folder `models`), HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HOME,
HF_HUB_OFFLINE, HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE. HF_ENDPOINT with a name and password in it
is refused; the token is sent to its scheme, host and port alone.

JSON: {name, source, commit, path, bytes, complete, pulled_unix, file_count, unverified_file_count,
downloaded_bytes, freed_bytes}

Examples:
  ruvllm pull org/repo-GGUF
  ruvllm pull hf://org/repo-GGUF/Q8_0@v1.0 --as big
  ruvllm pull https://huggingface.co/org/repo-GGUF
  ruvllm generate --model big \"Once upon a time\"";

/// Download a model from the Hugging Face hub into the store
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct PullArgs {
    /// ORG/REPO[/FILE][@REVISION], with or without hf://, or an address of huggingface.co
    #[arg(value_name = "REFERENCE", value_parser = reference)]
    reference: ModelReference,

    /// The model's name in the store [default: that of its file or repository]
    #[arg(long = "as", value_name = "NAME")]
    name: Option<String>,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    model: ModelDocument<'a>,
    file_count: usize,
    unverified_file_count: usize,
    downloaded_bytes: u64,
    freed_bytes: u64,
}

pub(crate) fn run(args: &PullArgs, json: bool) -> Result<()> {
    let pulled = fetch(&args.reference, args.name.as_deref())?;
    if json {
        return output::write_json(&Document {
            model: (&pulled.model).into(),
            file_count: pulled.model.files.len(),
            unverified_file_count: pulled.model.unverified().count(),
            downloaded_bytes: pulled.downloaded_bytes,
            freed_bytes: pulled.freed_bytes,
        });
    }
    output::write_text(&human(&pulled)).map(|_| ())
}

/// Pulls a model into the store, with a progress bar and a warning for each retry.
///
/// # Errors
/// As [`Store::pull`].
pub(crate) fn fetch(reference: &ModelReference, name: Option<&str>) -> Result<Pulled> {
    let mut settings = HubSettings::from_env()?;
    settings.on_retry = OnRetry::new(retry_note());
    let mut bar: Option<(PullStage, Progress)> = None;
    let pulled = Store::from_env()?.pull(&Hub::new(settings)?, reference, name, &mut |step| {
        if bar.as_ref().is_none_or(|(stage, _)| *stage != step.stage) {
            let what = if step.stage == PullStage::Verify { "verifying" } else { "pulling" };
            bar = Some((step.stage, Progress::bytes(what)));
        }
        if let Some((_, bar)) = &mut bar {
            bar.update(step.bytes_done, step.bytes_total);
        }
        ControlFlow::Continue(())
    });
    drop(bar);
    Ok(pulled?)
}

/// Warns about retried requests, once per half second: the connections of a file fail together.
fn retry_note() -> impl Fn(&Retry<'_>) + Send + Sync {
    const APART: Duration = Duration::from_millis(500);
    let last: Mutex<Option<Instant>> = Mutex::new(None);
    move |retry| {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|last| last.elapsed() < APART) {
            return;
        }
        *last = Some(Instant::now());
        let Retry { error, wait, attempt, attempts, .. } = retry;
        // With its causes, as in the final error message.
        let (error, wait) = (one_line(error), wait.as_secs_f64());
        output::warn(&format!("{error}; trying again in {wait:.1} s (attempt {attempt} of {attempts})"));
    }
}

fn human(pulled: &Pulled) -> String {
    let model = &pulled.model;
    let mut text = format!(
        "{}: {}, {} ({} downloaded), revision {}\n{}\n",
        model.name,
        output::counted(model.files.len(), "file"),
        output::bytes(model.bytes()),
        output::bytes(pulled.downloaded_bytes),
        model.commit,
        model.path.display(),
    );
    for file in model.unverified() {
        text.push_str(&format!("unverified: {} (the hub states neither a SHA-256 nor an ETag)\n", file.path));
    }
    if pulled.freed_bytes > 0 {
        text.push_str(&format!("{} of the former revision removed\n", output::bytes(pulled.freed_bytes)));
    }
    text
}

/// Parses a reference to a model on a hub.
fn reference(text: &str) -> Result<ModelReference, String> {
    ModelReference::from_user(text).map_err(|error| error.to_string())
}
