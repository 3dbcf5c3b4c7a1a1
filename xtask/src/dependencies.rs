//! `cargo xtask dependencies`: the table of package counts per crate in ARCHITECTURE.md, from the
//! packages that cargo resolves for each crate alone.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::process::CommandLine;
use crate::{Error, Result, Workspace};

/// The page with the table, between two markers.
const PAGE: &str = "ARCHITECTURE.md";
const BEGIN: &str = "<!-- dependencies:begin -->\n";
const END: &str = "<!-- dependencies:end -->";

/// Crates that can be taken alone, and the program; from the lowest layer up.
const CRATES: [&str; 18] = [
    "gguf-rs-lite",
    "ruvllm-kernels",
    "ruvllm-memory",
    "ruvllm-scheduler",
    "ruvllm-witness",
    "ruvllm-kv-cache",
    "ruvllm-prefix-objects",
    "ruvllm-adapters",
    "ruvllm-kernel-packs",
    "ruvllm-text",
    "ruvllm-models",
    "ruvllm-hub",
    "ruvllm-sona",
    "ruvllm-training",
    "ruvllm-default-model",
    "ruvllm",
    "ruvllm-server",
    "ruvllm-cli",
];

/// A fixed platform, so that the numbers are the same on every machine.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Writes the table.
///
/// # Errors
/// When cargo fails, or the page has no markers.
pub(crate) fn update(workspace: &Workspace) -> Result<()> {
    let page = updated(workspace)?;
    let path = workspace.path(PAGE);
    std::fs::write(&path, page).map_err(Error::io("write", path))
}

/// Compares the table with cargo's resolution; returns a note with the number of crates.
///
/// # Errors
/// [`Error::StaleTable`] if they differ.
pub(crate) fn check(workspace: &Workspace) -> Result<String> {
    if workspace.read(PAGE)? == updated(workspace)? {
        Ok(format!("{} crates", CRATES.len()))
    } else {
        Err(Error::StaleTable { page: PAGE, command: "cargo xtask dependencies" })
    }
}

fn updated(workspace: &Workspace) -> Result<String> {
    let rows = CRATES.iter().map(|name| Row::of(workspace, name)).collect::<Result<Vec<_>>>()?;
    replaced(&workspace.read(PAGE)?, &table(&rows))
        .ok_or_else(|| Error::NoMarker { path: workspace.path(PAGE), marker: "dependencies".to_owned() })
}

/// Packages of one crate.
struct Row {
    name: &'static str,
    direct: BTreeSet<String>,
    all: BTreeSet<String>,
}

impl Row {
    fn of(workspace: &Workspace, name: &'static str) -> Result<Self> {
        let packages = |depth: &str| {
            let command = CommandLine::cargo(workspace)
                .args(["tree", "--locked", "--package", name, "--edges", "normal,build"])
                .args(["--target", TARGET, "--prefix", "none", "--depth", depth]);
            command.output().map(|text| names(&text, name))
        };
        Ok(Self { name, direct: packages("1")?, all: packages("1000")? })
    }
}

/// Names and versions of the packages in the lines of `cargo tree --prefix none`, but `root`.
fn names(text: &str, root: &str) -> BTreeSet<String> {
    let words = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        words.next().zip(words.next()).filter(|(name, _)| *name != root)
    });
    words.map(|(name, version)| format!("{name} {version}")).collect()
}

fn table(rows: &[Row]) -> String {
    let of_project = |packages: &BTreeSet<String>| {
        let is_own = |name: &&String| CRATES.iter().any(|own| name.split(' ').next() == Some(own));
        packages.iter().filter(is_own).count()
    };
    let mut text = "| crate | direct: of the project | direct: others | whole tree: of the project | \
                    whole tree: others |\n|---|---|---|---|---|\n"
        .to_owned();
    for Row { name, direct, all } in rows {
        let [own_direct, own_all] = [of_project(direct), of_project(all)];
        let (other_direct, other_all) = (direct.len() - own_direct, all.len() - own_all);
        let _ = writeln!(text, "| `{name}` | {own_direct} | {other_direct} | {own_all} | {other_all} |");
    }
    text
}

fn replaced(text: &str, table: &str) -> Option<String> {
    let start = text.find(BEGIN)? + BEGIN.len();
    let end = start + text[start..].find(END)?;
    Some(format!("{}{table}{}", &text[..start], &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_count_packages_once_and_not_the_crate_itself() {
        let tree = "ruvllm v0.1.0 (/w/crates/runtime)\nruvllm-text v0.1.0 (/w/crates/text)\n\
                    serde v1.0.1\nserde v1.0.1 (*)\nsyn v2.0.1 (proc-macro)\nsyn v1.0.9\n";
        let all = names(tree, "ruvllm");
        assert_eq!(all.len(), 4, "two versions are two packages: {all:?}");
        let row = Row { name: "ruvllm", direct: names("ruvllm v0.1.0\nserde v1.0.1\n", "ruvllm"), all };
        let text = table(&[row]);
        assert!(text.ends_with("| `ruvllm` | 0 | 1 | 1 | 3 |\n"), "{text}");
    }

    #[test]
    fn table_stands_between_the_markers() {
        let page = format!("a\n{BEGIN}old\n{END}\nb\n");
        assert_eq!(replaced(&page, "new\n"), Some(format!("a\n{BEGIN}new\n{END}\nb\n")));
        assert_eq!(replaced("no markers", "new"), None);
    }
}
