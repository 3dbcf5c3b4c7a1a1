//! The example that uses the kernels from outside the workspace: that it builds and runs, and what
//! comes with it.

use crate::metadata::Graph;
use crate::process::CommandLine;
use crate::{Error, Result, Workspace};

/// The example's folder, a workspace of its own.
const FOLDER: &str = "examples/kernels-only";

/// Every package that a user of `ruvllm-kernels` alone compiles, with default features, on a
/// computer (others may have fewer): the three that its decision record allows, their macros and
/// what those need.
const PACKAGES: [&str; 13] = [
    "bytemuck",
    "bytemuck_derive",
    "cfg-if",
    "half",
    "proc-macro2",
    "quote",
    "ruvllm-kernels",
    "syn",
    "thiserror",
    "thiserror-impl",
    "unicode-ident",
    "zerocopy",
    "zerocopy-derive",
];

/// Builds and runs the example with its lock file.
pub(crate) fn command(workspace: &Workspace) -> CommandLine {
    let manifest = format!("{FOLDER}/Cargo.toml");
    CommandLine::cargo(workspace).args([
        "run",
        "--quiet",
        "--locked",
        "--target-dir",
        "target/examples",
        "--manifest-path",
        &manifest,
    ])
}

/// Runs [`command`], after looking at the format and the dependencies; says how many packages there
/// are.
pub(crate) fn check(workspace: &Workspace) -> Result<String> {
    let example = Workspace::at(workspace.path(FOLDER));
    CommandLine::cargo(&example).args(["fmt", "--check"]).run()?;
    let graph = Graph::load(&example)?;
    let packages = graph.reachable("kernels-only").unwrap_or_default();
    let extra: Vec<&str> = packages.iter().copied().filter(|name| !PACKAGES.contains(name)).collect();
    if !extra.is_empty() {
        return Err(Error::ExtraPackages { folder: FOLDER, names: extra.join(", ") });
    }
    command(workspace).run()?;
    Ok(format!("{} packages", packages.len()))
}
