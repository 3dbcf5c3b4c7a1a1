//! Lints and tests of the sandbox of kernel packs, a feature that no default build has (ADR-0096).

use crate::process::CommandLine;
use crate::{Result, Workspace};

/// Runs lints and tests.
pub(crate) fn kernel_sandbox(workspace: &Workspace) -> Result<()> {
    lint(workspace).run()?;
    tests(workspace).run()
}

/// Lints of crate, tests and examples with the feature.
pub(crate) fn lint(workspace: &Workspace) -> CommandLine {
    CommandLine::cargo(workspace)
        .args(["clippy", "--package", "ruvllm-kernel-packs", "--features", "wasmtime"])
        .args(["--all-targets", "--locked", "--quiet", "--", "-D", "warnings"])
}

/// Unit tests with the feature.
pub(crate) fn tests(workspace: &Workspace) -> CommandLine {
    CommandLine::cargo(workspace)
        .args(["test", "--package", "ruvllm-kernel-packs", "--features", "wasmtime", "--lib"])
        .args(["--locked"])
}
