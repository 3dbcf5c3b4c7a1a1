//! `ruvllm adapter add`: a LoRA adapter into the store.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use ruvllm_adapters::{LoraFile, Part};
use ruvllm_models::ModelConfig;

use super::stored::AdapterDocument;
use crate::adapter_store::store;
use crate::args::{ModelArgs, scaled};
use crate::commands::offer;
use crate::error::{Error, Result};
use crate::output;

const HELP: &str = "\
An adapter is a PEFT folder (adapter_config.json beside adapter_model.safetensors), its .safetensors file, or a GGUF
adapter. Several add up, each times its scale. The store has one file per name: the factors in F16 and I8 as they are
computed with, for this base model and no other; scales and row order are in them. The file appears as a whole, and a
failure leaves nothing behind. The name is then what --adapter takes.

The store is the folder `adapters` beside that of the models: in RUVLLM_HOME, or in ruvllm of XDG_DATA_HOME.

JSON: {name, source, architecture, rank, path, bytes, added_unix}

Examples:
  ruvllm adapter add poet poet-lora --model small
  ruvllm adapter add both style-lora@0.7 facts-lora.gguf@0.5 --model small
  ruvllm generate --model small --adapter poet \"Once upon a time\"";

/// Add LoRA adapters to the store under a name
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct AddArgs {
    /// Name in the store: letters, digits, '.', '_' and '-', at most 64
    name: String,

    /// The adapters, with their scales [default: 1]
    #[arg(value_name = "PATH[@SCALE]", required = true, value_parser = source)]
    sources: Vec<Source>,

    #[command(flatten)]
    model: ModelArgs,

    /// Replace the adapter of this name
    #[arg(long)]
    replace: bool,
}

/// A path and its scale.
#[derive(Debug, Clone)]
struct Source {
    text: String,
    path: PathBuf,
    scale: f32,
}

pub(crate) fn run(args: &AddArgs, json: bool) -> Result<()> {
    let checkpoint = offer::model(args.model.model.as_deref())?.open()?;
    let config = ModelConfig::from_checkpoint(&*checkpoint).map_err(|source| Error::Model {
        model: args.model.model.as_ref().map_or_else(String::new, |path| path.display().to_string()),
        source,
    })?;
    let files = args.sources.iter().map(|source| LoraFile::open(&source.path));
    let files = files.collect::<Result<Vec<_>, _>>()?;
    let parts: Vec<Part<'_>> =
        files.iter().zip(&args.sources).map(|(file, source)| Part { file, scale: source.scale }).collect();
    let source = args.sources.iter().map(|source| source.text.as_str()).collect::<Vec<_>>().join(" + ");
    let base = Arc::new(config.adapter_base());
    let added = store()?.add(&args.name, &base, &parts, &source, args.replace)?;
    if json {
        return output::write_json(&AdapterDocument::from(&added));
    }
    let size = output::bytes(added.bytes);
    let text = format!("{}: rank {}, {size}\n{}\n", added.name, added.rank(), added.file.path().display());
    output::write_text(&text).map(|_| ())
}

/// Parses `PATH[@SCALE]`.
fn source(text: &str) -> Result<Source, String> {
    let (path, scale) = scaled(text)?;
    if path.is_empty() {
        return Err("expected PATH or PATH@SCALE".to_owned());
    }
    Ok(Source { text: text.to_owned(), path: PathBuf::from(path), scale })
}
