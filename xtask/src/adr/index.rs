//! The index of the records in `docs/adr/README.md`, between two markers.

use std::fmt::Write as _;
use std::fs;

use super::{FOLDER, Outcome, Record};
use crate::{Error, Result, Workspace};

const BEGIN: &str = "<!-- index:begin -->\n";
const END: &str = "<!-- index:end -->";

/// Compares the index with the records.
pub(super) fn check(workspace: &Workspace, records: &[Record]) -> Result<Outcome> {
    let text = workspace.read(&file())?;
    let result = match split(&text) {
        Some((_, current, _)) if current == render(records) => Ok(format!("{} records", records.len())),
        Some(_) => Err(vec!["differs from the records; run: cargo xtask adr list --update".to_owned()]),
        None => Err(vec!["has no index:begin and index:end markers".to_owned()]),
    };
    Ok(Outcome { label: file(), result })
}

/// Rewrites the index from the records.
pub(super) fn write(workspace: &Workspace, records: &[Record]) -> Result<()> {
    let text = workspace.read(&file())?;
    let path = workspace.path(file());
    let (before, _, after) =
        split(&text).ok_or_else(|| Error::NoMarker { path: path.clone(), marker: "index".to_owned() })?;
    fs::write(&path, format!("{before}{}{after}", render(records))).map_err(Error::io("write", path))
}

fn file() -> String {
    format!("{FOLDER}/README.md")
}

/// Text up to and including the first marker, between the markers, and from the second marker on.
fn split(text: &str) -> Option<(&str, &str, &str)> {
    let start = text.find(BEGIN)? + BEGIN.len();
    let end = start + text[start..].find(END)?;
    Some((&text[..start], &text[start..end], &text[end..]))
}

fn render(records: &[Record]) -> String {
    let mut table = String::from("| record | status | decision |\n|---|---|---|\n");
    for record in records {
        let _ =
            writeln!(table, "| [{}]({}) | {} | {} |", record.id(), record.file, record.status, record.title);
    }
    table
}
