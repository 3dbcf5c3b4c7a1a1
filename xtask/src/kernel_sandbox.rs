//! Lints and tests of the sandbox of kernel packs and of its use in the engine, features that no
//! default build has (ADR-0096, ADR-0100).

use crate::process::CommandLine;
use crate::{Result, Workspace};

/// Runs lints and tests.
pub(crate) fn kernel_sandbox(workspace: &Workspace) -> Result<()> {
    for command in [lint(workspace), program(workspace), tests(workspace), engine(workspace)] {
        command.run()?;
    }
    Ok(())
}

/// Lints of crate, tests and examples with the feature.
pub(crate) fn lint(workspace: &Workspace) -> CommandLine {
    CommandLine::cargo(workspace)
        .args(["clippy", "--package", "ruvllm-kernel-packs", "--features", "wasmtime"])
        .args(["--all-targets", "--locked", "--quiet", "--", "-D", "warnings"])
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

/// Unit tests with the feature.
pub(crate) fn tests(workspace: &Workspace) -> CommandLine {
    CommandLine::cargo(workspace)
        .args(["test", "--package", "ruvllm-kernel-packs", "--features", "wasmtime", "--lib"])
        .args(["--locked"])
}
