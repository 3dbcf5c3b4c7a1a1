//! `ruvllm adapter verify`: reads adapters of the store and checks their contents.

use clap::Args;
use serde::Serialize;

use crate::adapter_store::store;
use crate::error::{Result, one_line};
use crate::output;

const HELP: &str = "\
Reads the whole file: checksums, values that are not finite, and SHA-256 digests. Without names, all adapters of the
store. The exit code is 1 if an adapter is damaged.

JSON: {adapters: [{name, valid, reason}]}; reason is null for a valid one.

Examples:
  ruvllm adapter verify
  ruvllm adapter verify poet";

/// Verify the files of adapters in the store
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct VerifyArgs {
    /// The adapters [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

/// The JSON document.
#[derive(Serialize)]
struct Document {
    adapters: Vec<Verified>,
}

#[derive(Serialize)]
struct Verified {
    name: String,
    valid: bool,
    reason: Option<String>,
}

/// True if all adapters are valid.
pub(crate) fn run(args: &VerifyArgs, json: bool) -> Result<bool> {
    let store = store()?;
    let mut names = args.names.clone();
    if names.is_empty() {
        let (adapters, damaged) = store.list()?;
        names.extend(adapters.into_iter().map(|adapter| adapter.name));
        names.extend(damaged.into_iter().map(|damaged| damaged.name));
        names.sort();
    }
    let verify = |name: String| {
        let reason = match store.get(&name).and_then(|stored| stored.file.verify()) {
            // A name that is not there is a mistake of the command line.
            Err(error @ ruvllm_adapters::Error::UnknownAdapter { .. }) => return Err(error),
            verified => verified.err().map(|error| one_line(&error)),
        };
        Ok(Verified { name, valid: reason.is_none(), reason })
    };
    let adapters = names.into_iter().map(verify).collect::<Result<Vec<_>, _>>()?;
    let is_valid = adapters.iter().all(|adapter| adapter.valid);
    if json {
        output::write_json(&Document { adapters })?;
        return Ok(is_valid);
    }
    let row = |adapter: &Verified| {
        vec![adapter.name.clone(), adapter.reason.clone().unwrap_or_else(|| "valid".to_owned())]
    };
    let rows: Vec<Vec<String>> = adapters.iter().map(row).collect();
    output::write_text(&output::table_of_lines(&rows, &[]))?;
    Ok(is_valid)
}
