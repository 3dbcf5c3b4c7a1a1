//! `ruvllm key list`: the API keys of a file.

use std::path::Path;

use clap::Args;
use ruvllm_server::auth::{KeyEntry, Moment, Scope};
use serde::Serialize;

use super::{FileArgs, now, read};
use crate::error::Result;
use crate::output;

const HELP: &str = "\
Name, tenant, scopes, age and state. The keys themselves are nowhere: the file has their SHA-256 alone.

JSON: {file, keys: [{name, tenant, scopes, created_unix, expires_unix, disabled}]}; expires_unix is absent for a key
without an end

Examples:
  ruvllm key list
  ruvllm key list --json | jq -r '.keys[].name'";

/// List API keys
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    file: FileArgs,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    file: &'a Path,
    keys: Vec<KeyDocument<'a>>,
}

#[derive(Serialize)]
struct KeyDocument<'a> {
    name: &'a str,
    tenant: &'a str,
    scopes: Vec<&'static str>,
    created_unix: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_unix: Option<u64>,
    disabled: bool,
}

impl<'a> From<&'a KeyEntry> for KeyDocument<'a> {
    fn from(key: &'a KeyEntry) -> Self {
        Self {
            name: &key.name,
            tenant: &key.tenant,
            scopes: scopes(key),
            created_unix: key.created.unix(),
            expires_unix: key.expires.map(Moment::unix),
            disabled: key.disabled,
        }
    }
}

fn scopes(key: &KeyEntry) -> Vec<&'static str> {
    key.scopes.iter().map(Scope::name).collect()
}

pub(crate) fn run(args: &ListArgs, json: bool) -> Result<()> {
    let path = args.file.path()?;
    let file = read(&path)?;
    if json {
        let keys = file.keys.iter().map(KeyDocument::from).collect();
        return output::write_json(&Document { file: &path, keys });
    }
    if file.keys.is_empty() {
        let text = format!("no keys in {}; `ruvllm key new NAME` makes one\n", path.display());
        return output::write_text(&text).map(|_| ());
    }
    let now = now();
    let row = |key: &KeyEntry| {
        let state = match key.expires {
            _ if key.disabled => "disabled".to_owned(),
            Some(end) if end <= now => format!("ended {end}"),
            Some(end) => format!("until {end}"),
            None => String::new(),
        };
        let age = output::ago(now.unix().saturating_sub(key.created.unix()));
        vec![key.name.clone(), key.tenant.clone(), scopes(key).join(", "), age, state]
    };
    let rows: Vec<Vec<String>> = file.keys.iter().map(row).collect();
    output::write_text(&output::table_of_lines(&rows, &[])).map(|_| ())
}
