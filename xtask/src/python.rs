//! Virtual environments of Python with a list of pinned packages.

use std::fs;
use std::path::{Path, PathBuf};

use crate::process::CommandLine;
use crate::{Error, Result, Workspace};

/// File in an environment with the package list that was installed there.
const INSTALLED: &str = "installed.txt";

/// A program of a virtual environment, which is made if `list`, a file of the workspace, differs
/// from the one that was installed there.
///
/// # Errors
/// No Python, or a package that cannot be installed.
pub(crate) fn program(
    workspace: &Workspace,
    environment: &Path,
    list: &str,
    program: &str,
) -> Result<PathBuf> {
    let wanted = workspace.read(list)?;
    if !is_installed(environment, &wanted) {
        CommandLine::new("python3", workspace.root())
            .args(["-m", "venv", "--clear"])
            .args([environment])
            .run()?;
        let pip = environment.join("bin/python");
        CommandLine::new(pip, workspace.root())
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .args(["--no-deps", "--requirement", list])
            .run()?;
        mark(environment, &wanted)?;
    }
    Ok(environment.join("bin").join(program))
}

/// True if `environment` has the packages of the list `wanted`.
pub(crate) fn is_installed(environment: &Path, wanted: &str) -> bool {
    fs::read_to_string(environment.join(INSTALLED)).is_ok_and(|found| found == wanted)
}

/// Records the list of packages in `environment`.
pub(crate) fn mark(environment: &Path, installed: &str) -> Result<()> {
    let path = environment.join(INSTALLED);
    fs::write(&path, installed).map_err(Error::io("write", path))
}
