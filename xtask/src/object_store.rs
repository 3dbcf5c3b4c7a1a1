//! `cargo xtask object-store`: stored prefixes in an object store, against an S3-compatible server
//! (ADR-0106).
//!
//! The server is `moto`, in a virtual environment in `target/object-store`, on a free port of
//! loopback.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::process::CommandLine;
use crate::{Error, Result, Workspace};

/// Packages of the server, in pinned versions.
const PACKAGES: &str = "crates/prefix-objects/tests/s3/requirements.txt";

/// File in the environment with the package list that was installed there.
const INSTALLED: &str = "installed.txt";

/// Variable with the server's address, for the tests.
const ENDPOINT: &str = "RUVLLM_S3_ENDPOINT";

/// Time for the server to start.
const START: Duration = Duration::from_secs(60);

/// Lints and tests; without Python a line that says so.
pub(crate) fn object_store(workspace: &Workspace) -> Result<()> {
    lint(workspace).run()?;
    match missing(workspace) {
        None => tests(workspace, CommandLine::run),
        Some(missing) => {
            println!("skipped: {missing}");
            Ok(())
        }
    }
}

/// Reason why the server cannot run, if there is one.
pub(crate) fn missing(workspace: &Workspace) -> Option<&'static str> {
    let has_python =
        CommandLine::new("python3", workspace.root()).args(["-c", "import venv, ensurepip"]).succeeds();
    (!has_python).then_some("no python3 with venv for the S3-compatible server")
}

/// Lints of the storage and of the program with it.
pub(crate) fn lint(workspace: &Workspace) -> CommandLine {
    CommandLine::cargo(workspace)
        .args(["clippy", "--package", "ruvllm-prefix-objects", "--package", "ruvllm-cli"])
        .args(["--features", "ruvllm-prefix-objects/s3-tests,ruvllm-cli/object-store"])
        .args(["--all-targets", "--locked", "--quiet", "--", "-D", "warnings"])
}

/// Starts the server, and has `run` run the tests of the storage and of the program.
pub(crate) fn tests(workspace: &Workspace, mut run: impl FnMut(&CommandLine) -> Result<()>) -> Result<()> {
    let server = Server::start(workspace)?;
    for words in [
        "test --package ruvllm-prefix-objects --features s3-tests --locked",
        "test --package ruvllm-cli --features object-store --test object_store --locked",
    ] {
        let command = CommandLine::cargo(workspace).args(words.split(' ')).env(ENDPOINT, &server.endpoint);
        run(&command)?;
    }
    Ok(())
}

/// The server, until it is dropped.
struct Server {
    child: Child,
    endpoint: String,
}

impl Server {
    fn start(workspace: &Workspace) -> Result<Self> {
        let program = program(workspace)?;
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .map_err(Error::io("bind a port of", "127.0.0.1"))?
            .port();
        let command = program.display().to_string();
        let child = Command::new(&program)
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|source| Error::Start { command: command.clone(), source })?;
        let mut server = Self { child, endpoint: format!("http://127.0.0.1:{port}") };
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = server.child.try_wait().map_err(Error::io("wait for", &program))?;
            if ended.is_some() || start.elapsed() > START {
                let source = std::io::Error::other("it does not listen");
                return Err(Error::Start { command, source });
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The server's program in its environment, which is made if the packages have changed.
fn program(workspace: &Workspace) -> Result<PathBuf> {
    let environment = workspace.path("target/object-store");
    let (wanted, installed) = (workspace.read(PACKAGES)?, environment.join(INSTALLED));
    if !fs::read_to_string(&installed).is_ok_and(|found| found == wanted) {
        CommandLine::new("python3", workspace.root())
            .args(["-m", "venv", "--clear"])
            .args([&environment])
            .run()?;
        CommandLine::new(environment.join("bin/python"), workspace.root())
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .args(["--no-deps", "--requirement", PACKAGES])
            .run()?;
        fs::write(&installed, &wanted).map_err(Error::io("write", &installed))?;
    }
    Ok(environment.join("bin/moto_server"))
}
