//! `cargo xtask dynamo`: front end, router and workers of NVIDIA Dynamo before servers (ADR-0108).
//!
//! The checks are in `scale-out/dynamo/tests`. Packages come from the ordinary registry in pinned
//! versions, into `target/dynamo`.

use std::fs;
use std::path::PathBuf;

use clap::Args;

use crate::process::CommandLine;
use crate::{Error, Result, Workspace, clients, python};

/// Folder of the worker.
const FOLDER: &str = "scale-out/dynamo";

/// Packages of worker, front end and checks.
const PACKAGES: &str = "scale-out/dynamo/requirements.txt";

/// Arguments of `cargo xtask dynamo`.
#[derive(Args, Debug)]
pub(crate) struct DynamoArgs {
    /// Program `ruvllm` with the feature `grpc`, instead of one that is built now
    #[arg(long, value_name = "PROGRAM")]
    server: Option<PathBuf>,
    /// Python with the packages, instead of a virtual environment that is made now
    #[arg(long, value_name = "PROGRAM")]
    python: Option<PathBuf>,
    /// Only live checks with this text in their line
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

/// Runs unit tests of the Python files, then checks of a cluster on loopback.
pub(crate) fn dynamo(workspace: &Workspace, args: &DynamoArgs) -> Result<()> {
    let folder = workspace.path("target/dynamo");
    fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
    let python = match &args.python {
        Some(python) => python.clone(),
        None => match python::program(workspace, &folder.join("python"), PACKAGES, "python") {
            Ok(python) => python,
            Err(error) => {
                eprintln!("{error}");
                println!("skipped: the packages of {PACKAGES} cannot be installed here");
                return Ok(());
            }
        },
    };
    let program = match &args.server {
        Some(program) => fs::canonicalize(program).map_err(Error::io("find", program))?,
        None => clients::grpc_program(workspace)?,
    };
    let script = |script: &str| {
        CommandLine::new(&python, workspace.root())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("RUVLLM", &program.to_string_lossy())
            .args([script])
    };
    script("-m").args(["unittest", "discover", "-s"]).args([format!("{FOLDER}/tests")]).run()?;
    let only = args.only.iter().flat_map(|text| ["--only", text.as_str()]);
    script(&format!("{FOLDER}/tests/live.py"))
        .args(["--program".as_ref(), program.as_os_str()])
        .args(["--folder".as_ref(), folder.join("live").as_os_str()])
        .args(only)
        .run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_pinned() {
        let workspace = Workspace::at(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let pins = workspace.read(PACKAGES).expect("the packages");
        assert!(pins.lines().any(|line| line.starts_with("ai-dynamo==")));
        assert!(pins.lines().all(|line| line.split("==").count() == 2), "{pins}");
    }
}
