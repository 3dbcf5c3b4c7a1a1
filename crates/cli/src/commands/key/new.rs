//! `ruvllm key new`: makes an API key.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use ruvllm_server::auth::Scope;
use serde::Serialize;

use super::{FileArgs, now, update};
use crate::args::duration;
use crate::error::Result;
use crate::output;

const HELP: &str = "\
Prints the key once; the file has its SHA-256 alone. A server that runs takes it over on SIGHUP. Scopes: inference
(generation, embeddings, tokens), adapters (load and unload), sessions, learning, metrics, prefixes (exchange with
other servers), admin (everything).

JSON: {name, tenant, scopes, key, file, expires_unix}; expires_unix is absent for a key without an end

Examples:
  ruvllm key new team-a
  ruvllm key new grafana --scope metrics --expires-in 90d
  ruvllm key new ci --tenant team-a --file /etc/ruvllm/keys.toml";

/// Make an API key
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct NewArgs {
    /// Name of the key in logs and lists
    name: String,

    /// Tenant whose limits and quotas hold [default: the name]
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,

    /// Scope; repeatable [default: inference, sessions]
    #[arg(long, value_name = "SCOPE", value_parser = scope)]
    scope: Vec<Scope>,

    /// Time until the key ends, such as 90d [default: never]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    expires_in: Option<Duration>,

    #[command(flatten)]
    file: FileArgs,
}

fn scope(text: &str) -> Result<Scope, String> {
    text.parse()
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    name: &'a str,
    tenant: &'a str,
    scopes: Vec<&'static str>,
    key: &'a str,
    file: &'a Path,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_unix: Option<u64>,
}

pub(crate) fn run(args: &NewArgs, json: bool) -> Result<()> {
    let path = args.file.path()?;
    let tenant = args.tenant.as_deref().unwrap_or(&args.name);
    let scopes = match args.scope.as_slice() {
        [] => &[Scope::Inference, Scope::Sessions],
        scopes => scopes,
    };
    let expires = args.expires_in.map(|time| now().after(time));
    let secret = update(&path, |file| {
        Ok(file.add(&args.name, tenant, scopes.iter().copied().collect(), now(), expires)?)
    })?;
    if json {
        return output::write_json(&Document {
            name: &args.name,
            tenant,
            scopes: scopes.iter().map(|scope| scope.name()).collect(),
            key: secret.reveal(),
            file: &path,
            expires_unix: expires.map(ruvllm_server::auth::Moment::unix),
        });
    }
    output::write_text(&format!("{}\n", secret.reveal())).map(|_| ())
}
