//! Packages of the clients: virtual environments and a node project in `target/clients`.

use std::fs;
use std::path::{Path, PathBuf};

use super::SCRIPTS;
use crate::process::CommandLine;
use crate::{Error, Result, Workspace};

/// File in an environment with the package list that was installed there.
const INSTALLED: &str = "installed.txt";

/// Environments below one folder.
pub(super) struct Environments<'a> {
    workspace: &'a Workspace,
    folder: PathBuf,
}

impl<'a> Environments<'a> {
    /// Creates the folder.
    pub(super) fn new(workspace: &'a Workspace) -> Result<Self> {
        let folder = workspace.path("target/clients");
        fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        Ok(Self { workspace, folder })
    }

    /// Folder of environments, configuration and results.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// A Python script in the environment `name`.
    pub(super) fn python(&self, name: &str, script: &str) -> Result<CommandLine> {
        let folder = self.workspace.path(SCRIPTS).join("python");
        let program = self.program(name, "python")?;
        // Compiled modules would be written beside the scripts.
        Ok(CommandLine::new(program, &folder).env("PYTHONDONTWRITEBYTECODE", "1").args([script]))
    }

    /// A program of the Python environment `name`, which is made if its packages have changed.
    pub(super) fn program(&self, name: &str, program: &str) -> Result<PathBuf> {
        let environment = self.folder.join(name);
        let list = format!("{SCRIPTS}/python/requirements/{name}.txt");
        let wanted = self.workspace.read(&list)?;
        if !is_installed(&environment, &wanted) {
            CommandLine::new("python3", self.workspace.root())
                .args(["-m", "venv", "--clear"])
                .args([&environment])
                .run()?;
            let pip = environment.join("bin/python");
            CommandLine::new(pip, self.workspace.root())
                .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
                .args(["--no-deps", "--requirement", list.as_str()])
                .run()?;
            mark(&environment, &wanted)?;
        }
        Ok(environment.join("bin").join(program))
    }

    /// A script of the node project, which is copied: node looks for packages beside the script.
    pub(super) fn node(&self, script: &str) -> Result<CommandLine> {
        let project = self.folder.join("node");
        let source = self.workspace.path(SCRIPTS).join("node");
        fs::create_dir_all(&project).map_err(Error::io("create", &project))?;
        for entry in fs::read_dir(&source).map_err(Error::io("list", &source))? {
            let entry = entry.map_err(Error::io("list", &source))?;
            if entry.file_type().is_ok_and(|kind| kind.is_file()) {
                let copy = project.join(entry.file_name());
                fs::copy(entry.path(), &copy).map_err(Error::io("write", copy))?;
            }
        }
        let wanted = self.workspace.read(&format!("{SCRIPTS}/node/package-lock.json"))?;
        if !is_installed(&project, &wanted) {
            CommandLine::new("npm", &project)
                .args(["ci", "--no-audit", "--no-fund", "--loglevel", "error"])
                .run()?;
            mark(&project, &wanted)?;
        }
        Ok(CommandLine::new("node", &project).args([script]))
    }
}

fn is_installed(environment: &Path, wanted: &str) -> bool {
    fs::read_to_string(environment.join(INSTALLED)).is_ok_and(|found| found == wanted)
}

fn mark(environment: &Path, installed: &str) -> Result<()> {
    let path = environment.join(INSTALLED);
    fs::write(&path, installed).map_err(Error::io("write", path))
}
