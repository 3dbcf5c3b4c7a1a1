//! Packages of the clients: virtual environments and a node project in `target/clients`.

use std::fs;
use std::path::{Path, PathBuf};

use super::SCRIPTS;
use crate::process::CommandLine;
use crate::python::{self, is_installed, mark};
use crate::{Error, Result, Workspace};

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
        let list = format!("{SCRIPTS}/python/requirements/{name}.txt");
        python::program(self.workspace, &self.folder.join(name), &list, program)
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
