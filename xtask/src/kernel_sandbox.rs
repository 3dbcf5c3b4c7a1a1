//! Lints and tests of the sandbox of kernel packs and of its use in the engine, features that no
//! default build has (ADR-0096, ADR-0100, ADR-0101).

use crate::process::CommandLine;
use crate::{Result, Workspace};

/// Features of both engines.
const BOTH: &str = "wasmtime,wasmi";

/// Runs lints and tests.
pub(crate) fn kernel_sandbox(workspace: &Workspace) -> Result<()> {
    let tests = [program(workspace), tests(workspace), interpreter(workspace), engine(workspace)];
    lints(workspace).into_iter().chain(tests).try_for_each(|command| command.run())
}

/// Lints of crate, tests and examples with each engine, and with both.
pub(crate) fn lints(workspace: &Workspace) -> [CommandLine; 3] {
    ["wasmtime", "wasmi", BOTH].map(|features| {
        CommandLine::cargo(workspace)
            .args(["clippy", "--package", "ruvllm-kernel-packs", "--features", features])
            .args(["--all-targets", "--locked", "--quiet", "--", "-D", "warnings"])
    })
}

/// Lints of engine and program with the feature.
pub(crate) fn program(workspace: &Workspace) -> CommandLine {
    CommandLine::cargo(workspace)
        .args(["clippy", "--package", "ruvllm", "--package", "ruvllm-cli", "--features", "kernel-packs"])
        .args(["--locked", "--quiet", "--", "-D", "warnings"])
}

/// Tests of the core pack in the engine.
pub(crate) fn engine(workspace: &Workspace) -> CommandLine {
    CommandLine::cargo(workspace)
        .args(["test", "--package", "ruvllm", "--features", "kernel-packs", "--test", "kernel_packs"])
        .args(["--locked"])
}

/// Unit tests on wasmtime, and comparisons of it with wasmi.
pub(crate) fn tests(workspace: &Workspace) -> CommandLine {
    unit_tests(workspace, BOTH)
}

/// The same unit tests on wasmi.
pub(crate) fn interpreter(workspace: &Workspace) -> CommandLine {
    unit_tests(workspace, "wasmi")
}

fn unit_tests(workspace: &Workspace, features: &str) -> CommandLine {
    CommandLine::cargo(workspace)
        .args(["test", "--package", "ruvllm-kernel-packs", "--features", features, "--lib"])
        .args(["--locked"])
}
