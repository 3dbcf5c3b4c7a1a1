//! Builds of this workspace's release programs, and their paths.

use std::path::PathBuf;

use serde::Deserialize;

use xtask::Workspace;
use xtask::process::CommandLine;

use crate::{Error, Result};

/// Builds the executable `bin` of `package` and returns its path.
///
/// # Errors
/// If the build fails, or cargo reports no executable.
pub(super) fn build(workspace: &Workspace, package: &str, bin: &str) -> Result<PathBuf> {
    #[derive(Deserialize)]
    struct Message {
        executable: Option<PathBuf>,
    }
    let command = CommandLine::cargo(workspace)
        .args(["build", "--release", "--package", package, "--bin", bin])
        .args(["--message-format", "json-render-diagnostics"]);
    let output = command.output_with_progress()?;
    let mut executables =
        output.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok()?.executable);
    executables
        .next_back()
        .ok_or_else(|| Error::MissingField { command: command.display(), field: "executable".to_owned() })
}
