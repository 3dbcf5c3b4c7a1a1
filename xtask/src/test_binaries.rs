//! Test executables of the workspace, listed and run directly.
//!
//! Running an executable that `cargo test --workspace` has built avoids a second build: `cargo test
//! -p X` would resolve features for X alone and compile shared dependencies again.

use std::path::PathBuf;

use serde::Deserialize;

use crate::metadata::Graph;
use crate::process::CommandLine;
use crate::{Error, Result, Workspace};

/// One test executable (the unit tests of a library, or one integration test).
#[derive(Clone, Debug)]
pub(crate) struct TestBinary {
    /// The package it tests.
    pub(crate) package: String,
    /// The target's name: the library's or the integration test's.
    pub(crate) target: String,
    executable: PathBuf,
    dir: PathBuf,
}

#[derive(Deserialize)]
struct Message {
    reason: String,
    package_id: Option<String>,
    target: Option<MessageTarget>,
    executable: Option<PathBuf>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct MessageTarget {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds the workspace's tests and lists their executables, without benches.
pub(crate) fn build(workspace: &Workspace, graph: &Graph) -> Result<Vec<TestBinary>> {
    let command =
        CommandLine::cargo(workspace).args(["test", "--workspace", "--no-run", "--quiet"]).args(MESSAGES);
    executables(&command, graph)
}

/// Arguments for cargo's JSON messages about built executables.
pub(crate) const MESSAGES: [&str; 2] = ["--message-format", "json-render-diagnostics"];

/// Runs a test build with the arguments [`MESSAGES`] and lists the executables, without benches.
pub(crate) fn executables(command: &CommandLine, graph: &Graph) -> Result<Vec<TestBinary>> {
    let mut binaries = Vec::new();
    for line in command.output_with_progress()?.lines() {
        let message: Message = serde_json::from_str(line)
            .map_err(|source| Error::Json { command: command.display(), source })?;
        binaries.extend(message.into_binary(graph));
    }
    Ok(binaries)
}

impl Message {
    fn into_binary(self, graph: &Graph) -> Option<TestBinary> {
        let target = self.target?;
        let is_test = self.reason == "compiler-artifact"
            && self.profile.is_some_and(|profile| profile.test)
            && !target.kind.iter().any(|kind| kind == "bench");
        let id = self.package_id?;
        let package = graph.members().find(|package| package.id == id)?;
        let executable = self.executable.filter(|_| is_test)?;
        let dir = package.dir.clone();
        Some(TestBinary { package: package.name.clone(), target: target.name, executable, dir })
    }
}

impl TestBinary {
    /// The full names of its tests.
    pub(crate) fn list(&self) -> Result<Vec<String>> {
        let output = self.command().args(["--list", "--format", "terse"]).output()?;
        Ok(output.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }

    /// A command that runs its tests under an emulator, `program` with `args`.
    pub(crate) fn command_under(&self, program: &str, args: &[&str]) -> CommandLine {
        CommandLine::new(program, &self.dir).args(args).args([&self.executable])
    }

    /// A command that runs its tests in the package's folder, as cargo does.
    pub(crate) fn command(&self) -> CommandLine {
        CommandLine::new(&self.executable, &self.dir)
    }
}
