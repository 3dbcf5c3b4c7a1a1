//! `ruvllm serve`: an OpenAI-compatible HTTP server.

mod models;
mod settings;

use clap::Args;
use ruvllm_server::config::{Log, LogLevel, Router};
use ruvllm_server::{Config, ModelEntry, Server};
use serde::Serialize;

use self::models::ModelsArgs;
use self::settings::SettingsArgs;
use crate::console;
use crate::error::Result;
use crate::output;

const HELP: &str = "\
Serves the OpenAI API (/v1/chat/completions, /v1/completions, /v1/models) and a web page. Without --model and without
[[models]] in the file of --config it serves the built-in model. Every setting of the file is in docs/server-config.md;
the environment variable of `limits.requests` is RUVLLM_SERVER_LIMITS_REQUESTS. A flag goes before the environment, the
environment before the file.

Signals: SIGTERM and Ctrl-C end the server after the requests that run, a second one at once. SIGHUP reads the file,
the keys, the certificate and the adapters again.

When it is ready, it writes its address to standard error, with --json also a document to standard output.

JSON: {address, grpc, models: [{name, aliases, adapters}], routers: [{name, arms}]}; with --check the
configured addresses; grpc only if it is served

Examples:
  ruvllm serve
  ruvllm serve --model small --port 9000
  ruvllm serve --model small --adapter poet=poet.ruvlora --alias gpt-4o
  ruvllm serve --config /etc/ruvllm/server.toml --check
  ruvllm serve --host 0.0.0.0 --api-keys keys.toml --tls-certificate cert.pem --tls-key key.pem";

/// Serve models over HTTP: OpenAI's API and a web page
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ServeArgs {
    /// Check the configuration and its files, print what would be served, and end
    #[arg(long)]
    check: bool,

    #[command(flatten)]
    settings: SettingsArgs,

    #[command(flatten)]
    models: ModelsArgs,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    grpc: Option<String>,
    models: Vec<ModelDocument<'a>>,
    routers: Vec<RouterDocument<'a>>,
}

#[derive(Serialize)]
struct ModelDocument<'a> {
    name: &'a str,
    aliases: &'a [String],
    adapters: Vec<&'a str>,
}

#[derive(Serialize)]
struct RouterDocument<'a> {
    name: &'a str,
    arms: Vec<&'a str>,
}

impl<'a> From<&'a Router> for RouterDocument<'a> {
    fn from(router: &'a Router) -> Self {
        Self { name: &router.name, arms: router.arms.keys().map(String::as_str).collect() }
    }
}

impl<'a> From<&'a ModelEntry> for ModelDocument<'a> {
    fn from(model: &'a ModelEntry) -> Self {
        let adapters = model.adapters.iter().map(|(name, _)| name.as_str()).collect();
        Self { name: &model.name, aliases: &model.aliases, adapters }
    }
}

pub(crate) fn run(args: &ServeArgs, json: bool) -> Result<()> {
    let config = args.settings.config()?;
    let models = args.models.entries(&config)?;
    if args.check {
        return check(&config, &models, json);
    }
    // Fails only for a process that has a log already.
    let _ = ruvllm_server::logging::init(&log(&config));
    let (served, routers) = (models.clone(), config.routers.clone());
    let read = args.models.clone();
    let read = move |config: &Config| read.entries(config).map_err(ruvllm_server::Error::models);
    let server = Server::bind(config, models)?
        .with_model_reader(read)
        .with_heap_trim(crate::heap::trim)
        .with_signals()?;
    let address = server.address().to_string();
    let grpc = server.grpc_address().map(ToString::to_string);
    if json {
        let models = served.iter().map(ModelDocument::from).collect();
        let routers = routers.iter().map(RouterDocument::from).collect();
        output::write_json(&Document { address: address.clone(), grpc: grpc.clone(), models, routers })?;
    }
    output::hint(&match grpc {
        Some(grpc) => format!("listening on {address}, gRPC on {grpc}"),
        None => format!("listening on {address}"),
    });
    Ok(server.run()?)
}

/// Settings of the log; with `--quiet` errors alone.
fn log(config: &Config) -> Log {
    let level = if console::is_quiet() { LogLevel::Error } else { config.log.level };
    Log { level, ..config.log.clone() }
}

/// Checks a configuration and prints what it serves.
fn check(config: &Config, models: &[ModelEntry], json: bool) -> Result<()> {
    for warning in Server::check(config, models)? {
        output::warn(&warning);
    }
    let (address, grpc) = (settings::address(config), settings::grpc_address(config));
    let models: Vec<_> = models.iter().map(ModelDocument::from).collect();
    let routers: Vec<_> = config.routers.iter().map(RouterDocument::from).collect();
    if json {
        return output::write_json(&Document { address, grpc, models, routers });
    }
    let keys = match &config.keys.file {
        Some(path) => path.display().to_string(),
        None => "none: every caller may do everything".to_owned(),
    };
    let mut rows = vec![vec!["address".to_owned(), address]];
    rows.extend(grpc.map(|grpc| vec!["gRPC".to_owned(), grpc]));
    rows.push(vec!["keys".to_owned(), keys]);
    for ModelDocument { name, aliases, adapters } in &models {
        let mut text = (*name).to_owned();
        for (what, names) in
            [("alias", aliases.iter().map(String::as_str).collect()), ("adapter", adapters.clone())]
        {
            if !names.is_empty() {
                text = format!("{text}, {what} {}", names.join(" "));
            }
        }
        rows.push(vec!["model".to_owned(), text]);
    }
    for RouterDocument { name, arms } in &routers {
        rows.push(vec!["router".to_owned(), format!("{name}, arm {}", arms.join(" "))]);
    }
    if let Some(folder) = &config.learning.folder {
        let learn =
            config.tenants.iter().filter(|(_, tenant)| tenant.learning).map(|(name, _)| name.as_str());
        let learn: Vec<&str> = learn.collect();
        let tenants =
            if learn.is_empty() { "no tenant".to_owned() } else { format!("tenant {}", learn.join(" ")) };
        rows.push(vec!["learning".to_owned(), format!("{}, {tenants}", folder.display())]);
    }
    output::write_text(&output::table_of_lines(&rows, &[])).map(|_| ())
}
