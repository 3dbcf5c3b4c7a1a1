//! `ruvllm info`: one model of the store.

use clap::Args;
use ruvllm_hub::{Store, StoredFile, StoredModel};
use serde::Serialize;

use super::{ModelDocument, pulled};
use crate::error::{Result, printable};
use crate::output;

const HELP: &str = "\
Checksums are those that were computed when the files arrived; of files that are \"unverified\" the hub stated neither a
SHA-256 nor an ETag to hold them against. `ruvllm inspect` shows what is in a GGUF file.

JSON: {name, source, commit, path, bytes, complete, pulled_unix, endpoint, files: [{path, bytes, sha256, unverified}]}

Examples:
  ruvllm info small
  ruvllm inspect $(ruvllm info --json small | jq -r .path)";

/// Show where a model of the store came from and what files it has
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct InfoArgs {
    /// The model's name
    name: String,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    model: ModelDocument<'a>,
    endpoint: &'a str,
    files: &'a [StoredFile],
}

pub(crate) fn run(args: &InfoArgs, json: bool) -> Result<()> {
    let model = Store::from_env()?.inspect(&args.name)?;
    if json {
        let (endpoint, files) = (&model.endpoint, &model.files);
        return output::write_json(&Document { model: (&model).into(), endpoint, files });
    }
    output::write_text(&human(&model)).map(|_| ())
}

fn human(model: &StoredModel) -> String {
    let facts = [
        ("name", model.name.clone()),
        ("source", format!("{} at {}", model.source, printable(&model.endpoint))),
        ("revision", model.commit.clone()),
        ("path", model.path.display().to_string()),
        ("size", output::bytes(model.bytes())),
        ("pulled", pulled(model)),
    ];
    let file = |file: &StoredFile| {
        let sha256 = file.sha256.clone().unwrap_or_else(|| "not complete".to_owned());
        let check = if file.unverified { format!("{sha256} unverified") } else { sha256 };
        vec![format!("  {}", file.path), output::bytes(file.bytes), check]
    };
    let files: Vec<Vec<String>> = model.files.iter().map(file).collect();
    format!(
        "{}files\n{}",
        output::table(&facts.map(|(name, value)| vec![name.to_owned(), value]), &[]),
        output::table(&files, &[1])
    )
}
