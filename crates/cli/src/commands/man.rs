//! `ruvllm man`: manual pages of the program and of every command. Hidden: packagers use it,
//! through `cargo xtask man`.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::output;

const HELP: &str = "\
One page for each command, in section 1: ruvllm.1, ruvllm-generate.1, ruvllm-eval-logits.1 and so on.

JSON: {folder, pages: [name]}

Examples:
  ruvllm man target/man
  man -l target/man/ruvllm-generate.1";

/// Write the manual pages into a folder
#[derive(Debug, Args)]
#[command(after_help = HELP, hide = true)]
pub(crate) struct ManArgs {
    /// The folder, which is created
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    folder: &'a Path,
    pages: Vec<String>,
}

/// Writes the pages of `command`, the table of commands.
pub(crate) fn run(args: &ManArgs, command: Command, json: bool) -> Result<()> {
    let folder = args.folder.as_path();
    fs::create_dir_all(folder).map_err(|source| Error::WriteFile { path: folder.to_owned(), source })?;
    let mut command = command.disable_help_subcommand(true);
    // `build` gives commands the global flags and their full names.
    command.build();
    let mut pages = Vec::new();
    write(&command, folder, &mut pages)?;
    if json {
        return output::write_json(&Document { folder, pages });
    }
    output::write_text(&format!("{}: {} pages\n", folder.display(), pages.len())).map(|_| ())
}

/// Writes the pages of a command and its subcommands, hidden ones excepted.
fn write(command: &Command, folder: &Path, pages: &mut Vec<String>) -> Result<()> {
    let version = concat!("ruvllm ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).source(version).manual("ruvllm manual");
    let page = man.get_filename();
    man.generate_to(folder).map_err(|source| Error::WriteFile { path: folder.join(&page), source })?;
    pages.push(page);
    command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
        .try_for_each(|below| write(below, folder, pages))
}
