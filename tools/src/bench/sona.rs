//! Learning on held-out text: runs the benches' program `sona` and records its tables.

use std::path::{Path, PathBuf};
use std::process::Command;

use xtask::Workspace;

use super::{BenchArgs, programs, section};
use crate::{Error, Result};

const PAGE: &str = "docs/sona.md";
/// Document beside the page.
const JSON: &str = "docs/sona.json";
const MODEL: &str = "models/base-q8_0.gguf";
/// Texts that are used if none are named; no part of the project.
const CORPORA: &str = "../shared/corpora";

/// Measures the domains and, unless told not to, writes the section of `docs/sona.md` and the
/// document beside it.
///
/// # Errors
/// If there are no texts, the program fails, or the page cannot be written.
pub(super) fn sona(workspace: &Workspace, args: &BenchArgs) -> Result<()> {
    let corpora = workspace.path(CORPORA);
    let general = args.general.clone().unwrap_or_else(|| corpora.join("validation.txt"));
    let domains = match args.domain.is_empty() {
        true => domains_of(&corpora.join("domains"))?,
        false => args.domain.clone(),
    };
    let program = programs::build(workspace, "ruvllm-benches", "sona")?;
    let model = workspace.path(MODEL);
    let json = workspace.path("target/bench/sona.json");
    std::fs::create_dir_all(workspace.path("target/bench")).map_err(Error::io("create", &json))?;
    let mut command = Command::new(&program);
    command.arg(model).arg("--general").arg(general).arg("--json").arg(&json);
    command.args(["--steps", &args.steps.to_string()]);
    command.args(domains.iter().flat_map(|domain| ["--domain", domain]));
    command.args(args.tools.iter().flat_map(|tools| ["--tools", tools]));
    if !args.part.is_empty() {
        command.args(["--parts", &args.part.join(",")]);
    }
    let output = command.stderr(std::process::Stdio::inherit()).output();
    let output = output.map_err(Error::io("run", &program))?;
    let tables = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{tables}");
    if !output.status.success() {
        let failed = std::io::Error::other(output.status.to_string());
        return Err(Error::io("run", &program)(failed));
    }
    if args.no_record {
        return Ok(());
    }
    let page = workspace.path(JSON);
    std::fs::copy(&json, &page).map_err(Error::io("write", &page))?;
    section::record(workspace, PAGE, "sona", tables.trim_end())
}

/// Domains of a folder: each a folder with `train.txt` and `test.txt`.
fn domains_of(folder: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(folder).map_err(Error::io("read", folder))?;
    let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    let domain = |folder: &PathBuf| {
        let [train, test] = ["train.txt", "test.txt"].map(|name| folder.join(name));
        let name = folder.file_name()?.to_string_lossy().into_owned();
        (train.is_file() && test.is_file()).then(|| format!("{name}={}:{}", train.display(), test.display()))
    };
    Ok(folders.iter().filter_map(domain).collect())
}
