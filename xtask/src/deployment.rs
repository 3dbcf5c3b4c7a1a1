//! `cargo xtask deployment`: manifests of the folder `deploy` against schemas and program
//! (ADR-0109).
//!
//! The checks are in `deploy/checks`, in Python for the packages that carry the schemas. They plant
//! faults into a copy of the manifests and fail where one of them is not found.

use std::fs;
use std::path::PathBuf;

use clap::Args;

use crate::process::CommandLine;
use crate::{Error, Result, Workspace, clients, python};

/// Folder of the checks.
const CHECKS: &str = "deploy/checks";

/// Packages with the schemas.
const PACKAGES: &str = "deploy/checks/requirements.txt";

/// Program that gives a process the file system of a container.
pub(crate) const SANDBOX: &str = "bwrap";

/// Arguments of `cargo xtask deployment`.
#[derive(Args, Debug, Default)]
pub(crate) struct DeploymentArgs {
    /// Program `ruvllm` with the feature `grpc`, instead of one that is built now
    #[arg(long, value_name = "PROGRAM")]
    server: Option<PathBuf>,
    /// Python with the packages of scale-out/dynamo: also runs front end and workers
    #[arg(long, value_name = "PROGRAM", requires = "model")]
    dynamo: Option<PathBuf>,
    /// With --dynamo: folder with tokenizer, configuration and weights of a model
    #[arg(long, value_name = "DIR", requires = "dynamo")]
    model: Option<PathBuf>,
    /// With --dynamo: also kills, stops and starves each part, and prints a table
    #[arg(long, requires = "dynamo")]
    failures: bool,
}

/// Runs the checks in a virtual environment.
pub(crate) fn deployment(workspace: &Workspace, args: &DeploymentArgs) -> Result<()> {
    let folder = workspace.path("target/deployment");
    fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
    let python = python::program(workspace, &folder.join("python"), PACKAGES, "python")?;
    let program = match &args.server {
        Some(program) => fs::canonicalize(program).map_err(Error::io("find", program))?,
        None => clients::grpc_program(workspace)?,
    };
    let mut checks = CommandLine::new(python, workspace.root())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .args([format!("{CHECKS}/main.py")])
        .args(["--program".as_ref(), program.as_os_str()]);
    for (flag, path) in [("--dynamo", &args.dynamo), ("--model", &args.model)] {
        if let Some(path) = path {
            checks = checks.args([flag.as_ref(), path.as_os_str()]);
        }
    }
    if args.failures {
        checks = checks.args(["--failures"]);
    }
    checks.run()
}

/// A tool that the checks need and the machine lacks.
pub(crate) fn missing(workspace: &Workspace) -> Option<&'static str> {
    let has =
        |program: &str, words: &[&str]| CommandLine::new(program, workspace.root()).args(words).succeeds();
    if !has(SANDBOX, &["--ro-bind", "/", "/", "--unshare-user", "true"]) {
        return Some("no bwrap that works (Debian: apt-get install bubblewrap)");
    }
    (!has("python3", &["-m", "venv", "--help"])).then_some("no python3 with venv")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace() -> Workspace {
        Workspace::at(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
    }

    #[test]
    fn packages_are_pinned() {
        let pins = workspace().read(PACKAGES).expect("the packages");
        assert!(pins.lines().any(|line| line.starts_with("kubernetes-validate==")));
        assert!(pins.lines().all(|line| line.split("==").count() == 2), "{pins}");
    }

    #[test]
    fn every_manifest_has_planted_faults() {
        let faults = workspace().read(&format!("{CHECKS}/damages.py")).expect("the planted faults");
        let manifests = workspace().files().expect("files");
        let manifests = manifests.iter().filter(|path| {
            path.starts_with("deploy/") && (path.ends_with(".yaml") || path.ends_with("Containerfile"))
        });
        for path in manifests.filter(|path| !path.ends_with("namespace.yaml")) {
            assert!(faults.contains(&format!("\"{path}\"")), "no fault is planted into {path}");
        }
    }
}
