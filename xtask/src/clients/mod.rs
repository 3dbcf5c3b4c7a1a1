//! `cargo xtask clients`: client libraries of others against the server (ADR-0069).
//!
//! The checks are scripts in `crates/server/tests/clients` that print one JSON line per outcome.
//! Client libraries come from the ordinary registries in pinned versions, into `target/clients`.

mod environments;
mod outcomes;
mod server;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::process::CommandLine;
use crate::{Error, Result, Workspace};
use environments::Environments;
use outcomes::{Outcome, Report};
use server::Server;
pub(crate) use server::grpc_program;

/// Folder of the scripts.
const SCRIPTS: &str = "crates/server/tests/clients";

/// Page with the table.
const PAGE: &str = "docs/clients.md";
const BEGIN: &str = "<!-- clients:begin -->\n";
const END: &str = "<!-- clients:end -->";

/// Text for perplexity; without special tokens, which both sides would have to read alike.
const TEXT: &str = "docs/scheduling.md";

/// Checks of `schemathesis`: no failure of the server, and replies as the document says.
const SCHEMA_CHECKS: &str =
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";

/// Seconds after which a request counts as hanging.
const REQUEST_SECONDS: &str = "60";

/// Arguments of `cargo xtask clients`.
#[derive(Args, Debug)]
pub(crate) struct ClientsArgs {
    #[command(subcommand)]
    tool: Option<Tool>,
    #[command(flatten)]
    server: ServerArgs,
    /// One client instead of all
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// One feature instead of all
    #[arg(long, value_name = "NAME")]
    feature: Option<String>,
    /// Writes the table to docs/clients.md
    #[arg(long, conflicts_with_all = ["only", "feature", "url"])]
    write: bool,
}

/// The server to check.
#[derive(Args, Debug)]
pub(crate) struct ServerArgs {
    /// Program `ruvllm` with the feature `grpc`, instead of one that is built now
    #[arg(long, global = true, value_name = "PROGRAM")]
    server: Option<PathBuf>,
    /// A running server instead, without `/v1`
    #[arg(long, global = true, conflicts_with = "server")]
    url: Option<String>,
    /// Host and port of gRPC for --url; without it the client `grpcio` checks nothing
    #[arg(long, global = true, default_value = "", value_name = "ADDRESS")]
    grpc: String,
    /// Key for --url
    #[arg(long, global = true, default_value = "")]
    key: String,
    /// Key of a tenant with a low rate limit, for --url
    #[arg(long, global = true, default_value = "")]
    limited_key: String,
    /// Model for --url
    #[arg(long, global = true, default_value = "")]
    model: String,
    /// Gauge of running requests in /metrics
    #[arg(long, global = true, value_name = "METRIC", default_value = server::RUNNING)]
    gauge: String,
    /// Counter of generated tokens in /metrics
    #[arg(long, global = true, value_name = "METRIC", default_value = server::GENERATED)]
    counter: String,
}

/// Tools that are no clients.
#[derive(Debug, Subcommand)]
pub(crate) enum Tool {
    /// Sends drawn requests that the `OpenAPI` document allows or forbids
    Schemathesis {
        /// Minutes
        #[arg(long, default_value_t = 10)]
        minutes: u32,
    },
    /// Compares log-likelihoods of lm-evaluation-harness with those of `ruvllm eval`
    LmEval,
}

/// Interpreter and environment of a script.
#[derive(Clone, Copy)]
enum Runner {
    /// A virtual environment with the packages of `python/requirements/NAME.txt`.
    Python(&'static str),
    /// The node project.
    Node,
}

/// A client and the script with its checks.
struct Client {
    name: &'static str,
    runner: Runner,
    script: &'static str,
}

const CLIENTS: [Client; 10] = [
    Client { name: "openai-python", runner: Runner::Python("sdk"), script: "openai_checks.py" },
    Client { name: "openai-npm", runner: Runner::Node, script: "openai-checks.mjs" },
    Client { name: "vercel-ai", runner: Runner::Node, script: "ai-checks.mjs" },
    Client { name: "langchain", runner: Runner::Python("sdk"), script: "langchain_openai_checks.py" },
    Client { name: "llama-index", runner: Runner::Python("llama-index"), script: "llama_index_checks.py" },
    Client { name: "curl", runner: Runner::Python("sdk"), script: "curl_checks.py" },
    Client { name: "anthropic-python", runner: Runner::Python("sdk"), script: "anthropic_checks.py" },
    Client { name: "anthropic-npm", runner: Runner::Node, script: "anthropic-checks.mjs" },
    Client {
        name: "langchain-anthropic",
        runner: Runner::Python("sdk"),
        script: "langchain_anthropic_checks.py",
    },
    Client { name: "grpcio", runner: Runner::Python("grpc"), script: "grpc_checks.py" },
];

/// Runs the clients, or a tool.
pub(crate) fn clients(workspace: &Workspace, args: &ClientsArgs) -> Result<()> {
    let environments = Environments::new(workspace)?;
    match args.tool {
        None => matrix(workspace, &environments, args),
        Some(Tool::Schemathesis { minutes }) => schemathesis(workspace, &environments, args, minutes),
        Some(Tool::LmEval) => lm_eval(workspace, &environments, args),
    }
}

/// Runs the checks of all clients and prints the table.
fn matrix(workspace: &Workspace, environments: &Environments<'_>, args: &ClientsArgs) -> Result<()> {
    let chosen = chosen(args.only.as_deref())?;
    let mut report = Report::new(&workspace.read(&format!("{SCRIPTS}/features.json"))?)?;
    let server = server::start(workspace, environments.folder(), &args.server)?;
    for client in chosen {
        let command = script(environments, client.runner, client.script)?;
        let command = environment(command, &server).args(&args.feature);
        let mut lines = Vec::new();
        command.run_lines(|line| lines.push(line.to_owned()))?;
        for line in &lines {
            let outcome = Outcome::parse(line, &command)?;
            println!("{:<20} {}", client.name, outcome.summary());
            report.add(client.name, outcome)?;
        }
    }
    println!("\n{}", report.text());
    let path = environments.folder().join("outcomes.json");
    std::fs::write(&path, report.json()).map_err(Error::io("write", &path))?;
    if args.write {
        write_page(workspace, &report.markdown())?;
    }
    report.verdict()
}

/// The clients to run.
fn chosen(only: Option<&str>) -> Result<Vec<&'static Client>> {
    let chosen: Vec<_> =
        CLIENTS.iter().filter(|client| only.is_none_or(|only| only == client.name)).collect();
    if chosen.is_empty() {
        let known = CLIENTS.map(|client| client.name).join(", ");
        return Err(Error::NoClient { name: only.unwrap_or_default().to_owned(), known });
    }
    Ok(chosen)
}

/// Command line of a script, whose environment is made first.
fn script(environments: &Environments<'_>, runner: Runner, script: &str) -> Result<CommandLine> {
    match runner {
        Runner::Python(name) => environments.python(name, script),
        Runner::Node => environments.node(script),
    }
}

/// Passes the server to a script.
fn environment(command: CommandLine, server: &Server) -> CommandLine {
    command
        .env("CLIENTS_URL", &server.url)
        .env("CLIENTS_GRPC", &server.grpc)
        .env("CLIENTS_KEY", &server.key)
        .env("CLIENTS_LIMITED_KEY", &server.limited_key)
        .env("CLIENTS_MODEL", &server.model)
        .env("CLIENTS_EMBEDDING_MODEL", &server.embedding_model)
        .env("CLIENTS_RUNNING", &server.gauge)
        .env("CLIENTS_GENERATED", &server.counter)
}

/// Replaces the table of the page.
fn write_page(workspace: &Workspace, table: &str) -> Result<()> {
    let page = replaced(&workspace.read(PAGE)?, table)
        .ok_or_else(|| Error::NoMarker { path: workspace.path(PAGE), marker: "clients".to_owned() })?;
    let path = workspace.path(PAGE);
    std::fs::write(&path, page).map_err(Error::io("write", path))
}

/// `page` with `table` between the markers.
fn replaced(page: &str, table: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{table}{END}{after}"))
}

/// Runs `schemathesis` over the server's `OpenAPI` document; the server must answer afterwards.
fn schemathesis(
    workspace: &Workspace,
    environments: &Environments<'_>,
    args: &ClientsArgs,
    minutes: u32,
) -> Result<()> {
    let program = environments.program("schemathesis", "schemathesis")?;
    let server = server::start(workspace, environments.folder(), &args.server)?;
    CommandLine::new(program, environments.folder())
        .args(["run".to_owned(), format!("{}/openapi.json", server.url)])
        .args(["--url", &server.url, "-H", &format!("Authorization: Bearer {}", server.key)])
        .args(["--max-time", &(u64::from(minutes) * 60).to_string(), "--request-timeout", REQUEST_SECONDS])
        .args(["--checks", SCHEMA_CHECKS, "--suppress-health-check", "all", "--workers", "2"])
        .args(["--continue-on-failure", "--warnings", "off", "--seed", "1"])
        .run()?;
    server.check_alive()
}

/// Compares numbers of lm-evaluation-harness with the program's.
fn lm_eval(workspace: &Workspace, environments: &Environments<'_>, args: &ClientsArgs) -> Result<()> {
    let command = environments.python("lm-eval", "lm_eval_numbers.py")?;
    let server = server::start(workspace, environments.folder(), &args.server)?;
    let program = server.program()?.to_string_lossy().into_owned();
    environment(command, &server)
        .env("CLIENTS_PROGRAM", &program)
        .env("CLIENTS_MODEL_FILE", &workspace.path(server::MODEL_FILE).to_string_lossy())
        .env("CLIENTS_KV", server::KV)
        .env("CLIENTS_TEXT", &workspace.path(TEXT).to_string_lossy())
        .run()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn workspace() -> Workspace {
        Workspace::at(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
    }

    #[test]
    fn every_client_has_its_script_and_pinned_packages() {
        for client in &CLIENTS {
            let (folder, packages) = match client.runner {
                Runner::Python(name) => ("python", format!("python/requirements/{name}.txt")),
                Runner::Node => ("node", "node/package-lock.json".to_owned()),
            };
            let source =
                workspace().read(&format!("{SCRIPTS}/{folder}/{}", client.script)).expect("a script");
            assert!(source.contains("checks"), "{}", client.name);
            let pins = workspace().read(&format!("{SCRIPTS}/{packages}")).expect("pinned packages");
            if matches!(client.runner, Runner::Python(_)) {
                assert!(pins.lines().all(|line| line.contains("==")), "{packages}");
            }
        }
    }

    #[test]
    fn every_check_is_a_row_and_every_row_has_a_check() {
        let features = workspace().read(&format!("{SCRIPTS}/features.json")).expect("the features");
        let rows: BTreeSet<String> =
            Report::new(&features).expect("a list").features().map(str::to_owned).collect();
        let found: BTreeSet<String> = workspace()
            .files()
            .expect("files")
            .iter()
            .filter(|path| path.starts_with(SCRIPTS) && (path.ends_with(".py") || path.ends_with(".mjs")))
            .flat_map(|path| {
                let text = workspace().read(path).expect("a script");
                let names = text.split("check(\"").skip(1).filter_map(|rest| rest.split('"').next());
                names.map(str::to_owned).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(found, rows);
    }

    #[test]
    fn unknown_clients_are_refused_with_the_known_ones() {
        assert_eq!(chosen(Some("curl")).expect("a client").len(), 1);
        let error = chosen(Some("wget")).map(|found| found.len()).expect_err("no such client");
        assert!(error.to_string().contains("openai-python"), "{error}");
    }

    #[test]
    fn the_table_stands_between_the_markers() {
        let page = format!("a\n{BEGIN}old\n{END}\nb");
        assert_eq!(replaced(&page, "new\n"), Some(format!("a\n{BEGIN}new\n{END}\nb")));
        assert_eq!(replaced("no markers", "new\n"), None);
        assert!(replaced(&workspace().read(PAGE).expect("the page"), "").is_some());
    }
}
