//! Immutable decisions: digests of the records' Decision sections, listed in
//! `docs/adr/decisions.sha256`.
//!
//! Line breaks are ignored, and so are living parts between markers, such as a table that grows
//! with the project. Git history was rejected as the reference: a clone may be shallow, and a
//! rename starts a new history.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use super::{FOLDER, Outcome, Record, Status};
use crate::{Error, Result, Workspace};

/// Checks that every decided record is listed with its digest.
pub(super) fn check(workspace: &Workspace, records: &[Record]) -> Result<Outcome> {
    let listed = listed(workspace)?;
    let mut violations = Vec::new();
    let decided = || records.iter().filter(|record| record.status != Status::Proposed);
    for Record { file, decision, .. } in decided() {
        match listed.get(file) {
            Some(digest) if digest == decision => {}
            Some(_) => violations.push(format!(
                "{file}: the Decision differs from the one that was taken: write a record that supersedes it"
            )),
            None => violations.push(format!("{file}: not listed; run: cargo xtask adr list --update")),
        }
    }
    let gone = listed.keys().filter(|file| !decided().any(|record| record.file == **file));
    violations.extend(gone.map(|file| format!("{file}: listed, but there is no such decision")));
    let result =
        if violations.is_empty() { Ok(format!("{} decisions", listed.len())) } else { Err(violations) };
    Ok(Outcome { label: list_file(), result })
}

/// Adds new decisions to the list; listed digests stay.
pub(super) fn write(workspace: &Workspace, records: &[Record]) -> Result<()> {
    let mut listed = listed(workspace)?;
    for record in records.iter().filter(|record| record.status != Status::Proposed) {
        listed.entry(record.file.clone()).or_insert_with(|| record.decision.clone());
    }
    let text = listed.iter().fold(String::new(), |mut text, (file, digest)| {
        let _ = writeln!(text, "{digest}  {file}");
        text
    });
    let path = workspace.path(list_file());
    fs::write(&path, text).map_err(Error::io("write", path))
}

fn list_file() -> String {
    format!("{FOLDER}/decisions.sha256")
}

/// Digests by file; a missing list is empty.
fn listed(workspace: &Workspace) -> Result<BTreeMap<String, String>> {
    if !workspace.path(list_file()).exists() {
        return Ok(BTreeMap::new());
    }
    let text = workspace.read(&list_file())?;
    let pairs = text.lines().filter_map(|line| line.split_once("  "));
    Ok(pairs.map(|(digest, file)| (file.to_owned(), digest.to_owned())).collect())
}
