//! `ruvllm list`: the models in the store.

use std::path::Path;

use clap::Args;
use ruvllm_hub::{Store, StoredModel};
use serde::Serialize;

use super::{ModelDocument, pulled};
use crate::error::Result;
use crate::output;

const HELP: &str = "\
Models whose download has not come to its end are listed, too; pull them again to continue.

JSON: {store, models: [{name, source, commit, path, bytes, complete, pulled_unix}]}

Examples:
  ruvllm list
  ruvllm list --json | jq '.models[].name'";

/// List the models in the store
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ListArgs {}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    store: &'a Path,
    models: Vec<ModelDocument<'a>>,
}

pub(crate) fn run(_args: &ListArgs, json: bool) -> Result<()> {
    let store = Store::from_env()?;
    let models = store.list()?;
    if json {
        let models = models.iter().map(ModelDocument::from).collect();
        return output::write_json(&Document { store: store.root(), models });
    }
    if models.is_empty() {
        let text = format!("no models in {}; `ruvllm pull` brings one\n", store.root().display());
        return output::write_text(&text).map(|_| ());
    }
    let row = |model: &StoredModel| {
        vec![model.name.clone(), output::bytes(model.bytes()), pulled(model), model.source.clone()]
    };
    let rows: Vec<Vec<String>> = models.iter().map(row).collect();
    output::write_text(&output::table(&rows, &[1])).map(|_| ())
}
