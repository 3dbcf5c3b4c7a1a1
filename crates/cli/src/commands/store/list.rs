//! `ruvllm list`: the models in the store.

use std::path::Path;

use clap::Args;
use ruvllm_hub::{DamagedModel, Store, StoredModel};
use serde::Serialize;

use super::{ModelDocument, pulled};
use crate::error::{Result, printable};
use crate::output;

const HELP: &str = "\
Models whose download has not come to its end are listed, too; pull them again to continue. So are those whose entry in
the store is damaged, with the reason; `ruvllm rm NAME` removes them.

JSON: {store, models: [{name, source, commit, path, bytes, complete, pulled_unix}], damaged: [{name, path, reason}]}

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
    damaged: Vec<DamagedDocument<'a>>,
}

/// A model whose manifest cannot be read.
#[derive(Serialize)]
struct DamagedDocument<'a> {
    name: &'a str,
    path: &'a Path,
    reason: &'a str,
}

impl<'a> From<&'a DamagedModel> for DamagedDocument<'a> {
    fn from(model: &'a DamagedModel) -> Self {
        Self { name: &model.name, path: &model.path, reason: &model.reason }
    }
}

pub(crate) fn run(_args: &ListArgs, json: bool) -> Result<()> {
    let store = Store::from_env()?;
    let (models, damaged) = (store.list()?, store.damaged()?);
    if json {
        let models = models.iter().map(ModelDocument::from).collect();
        let damaged = damaged.iter().map(DamagedDocument::from).collect();
        return output::write_json(&Document { store: store.root(), models, damaged });
    }
    if models.is_empty() && damaged.is_empty() {
        let text = format!("no models in {}; `ruvllm pull` brings one\n", store.root().display());
        return output::write_text(&text).map(|_| ());
    }
    let row = |model: &StoredModel| {
        vec![model.name.clone(), output::bytes(model.bytes()), pulled(model), model.source.clone()]
    };
    let damage = |model: &DamagedModel| {
        let reason = format!("{}; remove it with `ruvllm rm {}`", printable(&model.reason), model.name);
        vec![model.name.clone(), String::new(), "damaged".to_owned(), reason]
    };
    let mut rows: Vec<Vec<String>> = models.iter().map(row).chain(damaged.iter().map(damage)).collect();
    rows.sort();
    output::write_text(&output::table_of_lines(&rows, &[1])).map(|_| ())
}
