//! Lints and tests of gRPC, a feature of the server that no default build has (ADR-0070).

use crate::process::CommandLine;
use crate::{Result, Workspace};

/// Variable that has the test of the generated files write them.
const UPDATE: &str = "RUVLLM_GRPC_UPDATE";

/// Runs lints and tests; `update` generates the files of the `.proto` file before.
pub(crate) fn grpc(workspace: &Workspace, update: bool) -> Result<()> {
    if update {
        let words =
            ["test", "--package", "ruvllm-server", "--features", "grpc-tests", "--test", "grpc", "generated"];
        CommandLine::cargo(workspace).args(words).env(UPDATE, "1").run()?;
    }
    lint(workspace).run()?;
    program(workspace).run()?;
    tests(workspace).run()
}

/// Lints of server and tests with the feature.
pub(crate) fn lint(workspace: &Workspace) -> CommandLine {
    CommandLine::cargo(workspace)
        .args(["clippy", "--package", "ruvllm-server", "--features", "grpc-tests"])
        .args(["--all-targets", "--locked", "--quiet", "--", "-D", "warnings"])
}

/// Type check of the program with the feature.
pub(crate) fn program(workspace: &Workspace) -> CommandLine {
    CommandLine::cargo(workspace).args([
        "check",
        "--package",
        "ruvllm-cli",
        "--features",
        "grpc",
        "--locked",
        "--quiet",
    ])
}

/// Unit tests of the server with the feature, and its tests over sockets.
pub(crate) fn tests(workspace: &Workspace) -> CommandLine {
    CommandLine::cargo(workspace)
        .args(["test", "--package", "ruvllm-server", "--features", "grpc-tests", "--lib"])
        .args(["--test", "grpc", "--locked"])
}
