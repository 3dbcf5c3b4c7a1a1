//! `cargo xtask web`: checks of the server's built-in page in Chromium (ADR-0067).
//!
//! `crates/server/tests/web/check.mjs` holds the checks; it needs Node.js and Chromium and no
//! package. Without an address it checks the page against a stand-in for the server.

use std::ffi::OsString;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::process::CommandLine;
use crate::{Error, Result, Workspace};

/// Program that runs the checks.
pub(crate) const NODE: &str = "node";

/// Names of the browser, in the order in which they are tried.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// Longest start of a server, its model included.
const START: Duration = Duration::from_mins(2);

/// Server to check and further inputs.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Address of the page, such as `http://127.0.0.1:8080/`; without it a stand-in is used
    #[arg(long)]
    url: Option<String>,
    /// API key for the server
    #[arg(long, requires = "url")]
    key: Option<String>,
    /// Folder for screenshots
    #[arg(long)]
    shots: Option<PathBuf>,
    /// Command that serves the address, started before the checks and ended after them
    #[arg(last = true, requires = "url")]
    server: Vec<OsString>,
}

/// Runs the checks; with a command for the server, while that runs.
pub(crate) fn web(workspace: &Workspace, options: &Options) -> Result<()> {
    let browser = tools(workspace)?;
    let _server = match (&options.url, options.server.split_first()) {
        (Some(url), Some((program, args))) => Some(Server::start(workspace, program, args, url)?),
        _ => None,
    };
    checks(workspace, options, browser).run()
}

fn checks(workspace: &Workspace, options: &Options, browser: &str) -> CommandLine {
    let mut checks = CommandLine::new(NODE, workspace.root()).args([
        "crates/server/tests/web/check.mjs",
        "--chromium",
        browser,
    ]);
    checks = match &options.url {
        Some(url) => checks.args(["--url", url]),
        None => checks.args(["--mock"]),
    };
    if let Some(key) = &options.key {
        checks = checks.args(["--key", key]);
    }
    match &options.shots {
        Some(folder) => checks.args(["--shots".as_ref(), folder.as_os_str()]),
        None => checks,
    }
}

/// The browser's name, if it and Node.js are installed.
pub(crate) fn tools(workspace: &Workspace) -> Result<&'static str> {
    let runs = |program: &&str| CommandLine::new(program, workspace.root()).args(["--version"]).succeeds();
    match (runs(&NODE), BROWSERS.into_iter().find(runs)) {
        (true, Some(browser)) => Ok(browser),
        (false, Some(_)) => Err(Error::WebTools { missing: "Node.js" }),
        (true, None) => Err(Error::WebTools { missing: "Chromium" }),
        (false, None) => Err(Error::WebTools { missing: "Node.js and Chromium" }),
    }
}

/// A server that ends when this value is dropped.
struct Server(Child);

impl Server {
    /// Starts a command and waits until the address accepts connections.
    fn start(workspace: &Workspace, program: &OsString, args: &[OsString], url: &str) -> Result<Self> {
        let line = CommandLine::new(program, workspace.root()).args(args).display();
        let mut command = Command::new(program);
        command.args(args).current_dir(workspace.root()).stdin(Stdio::null());
        let child = command.spawn().map_err(|source| Error::Start { command: line.clone(), source })?;
        let mut server = Self(child);
        let end = Instant::now() + START;
        while Instant::now() < end && matches!(server.0.try_wait(), Ok(None)) {
            if TcpStream::connect(authority(url)).is_ok() {
                return Ok(server);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(Error::NotServed { url: url.to_owned(), command: line })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to end.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `HOST:PORT` of an address.
fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: Option<&str>) -> Options {
        Options { url: url.map(str::to_owned), key: None, shots: None, server: Vec::new() }
    }

    #[test]
    fn without_an_address_the_stand_in_is_checked() {
        let workspace = Workspace::at(".");
        let line = |url| checks(&workspace, &options(url), "chromium").display();
        let script = "node crates/server/tests/web/check.mjs --chromium chromium";
        assert_eq!(line(None), format!("{script} --mock"));
        assert_eq!(line(Some("http://127.0.0.1:1/")), format!("{script} --url http://127.0.0.1:1/"));
    }

    #[test]
    fn a_server_that_ends_is_an_error() {
        let workspace = Workspace::at(".");
        // Nothing listens on port 1 of this machine.
        let started = Server::start(&workspace, &"true".into(), &[], "http://127.0.0.1:1/");
        assert!(matches!(started, Err(Error::NotServed { .. })));
    }

    #[test]
    fn host_and_port_of_an_address() {
        assert_eq!(authority("http://127.0.0.1:80/x/y"), "127.0.0.1:80");
        assert_eq!(authority("localhost:1"), "localhost:1");
    }
}
