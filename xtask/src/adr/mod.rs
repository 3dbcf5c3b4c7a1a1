//! Architecture decision records: `docs/adr/NNNN-title.md`, each with a Conformance section of
//! checks that this module reads and runs.
//!
//! A decision needs a check that fails when the code deviates, so an accepted record without a
//! check is a failure, and so is a check with an empty scope.

mod checks;
mod decisions;
mod digest;
mod index;
mod record;
mod references;

use std::fs;

use crate::{Error, Result, Workspace};
use checks::Facts;
pub use record::{Record, Status};

/// The folder of the records.
pub const FOLDER: &str = "docs/adr";
const TEMPLATE: &str = "docs/adr/template.md";

/// Extent of a check run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// No compilation: named tests are not checked.
    Sources,
    /// No running of tests: named tests must exist.
    Fast,
    /// Named tests must also pass.
    Full,
}

/// The result of one check: `Ok` with a short note, or each violation.
#[derive(Debug)]
pub struct Outcome {
    /// Record and check, such as `ADR-0001 layers`.
    pub label: String,
    /// Note on the scope, or the violations.
    pub result: Result<String, Vec<String>>,
}

/// Runs all checks and prints one line each; a failure is followed by its violations.
///
/// # Errors
/// [`Error::AdrChecks`] if any failed, other errors if they could not be run.
pub fn check(workspace: &Workspace, depth: Depth) -> Result<()> {
    let outcomes = outcomes(workspace, depth)?;
    for outcome in &outcomes {
        match &outcome.result {
            Ok(note) => println!("{} ok ({note})", outcome.label),
            Err(violations) => {
                println!("{} FAILED", outcome.label);
                for violation in violations {
                    println!("    {violation}");
                }
            }
        }
    }
    let failed = outcomes.iter().filter(|outcome| outcome.result.is_err()).count();
    if failed == 0 { Ok(()) } else { Err(Error::AdrChecks { failed, total: outcomes.len() }) }
}

/// Runs all checks: the form of the records, their Conformance sections, the index and the
/// references.
///
/// # Errors
/// When the files or the dependency graph cannot be read; a rule that does not hold is an
/// [`Outcome`].
pub fn outcomes(workspace: &Workspace, depth: Depth) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    let mut records = Vec::new();
    for (file, text) in texts(workspace)? {
        match Record::parse(&file, &text) {
            Ok(record) => records.push(record),
            Err(error) => outcomes.push(Outcome { label: file, result: Err(vec![error.to_string()]) }),
        }
    }
    if records.is_empty() {
        let violation = format!("{FOLDER} holds no readable record");
        outcomes.push(Outcome { label: FOLDER.to_owned(), result: Err(vec![violation]) });
    }
    let facts = Facts::new(workspace, depth);
    for record in records.iter().filter(|record| record.status == Status::Accepted) {
        if record.checks.is_empty() {
            let violation = "an accepted record needs at least one [[check]] under Conformance".to_owned();
            outcomes.push(Outcome { label: record.id(), result: Err(vec![violation]) });
        }
        for check in &record.checks {
            let label = format!("{} {}", record.id(), check.id);
            outcomes.push(Outcome { label, result: check.kind.run(&facts)? });
        }
    }
    outcomes.push(index::check(workspace, &records)?);
    outcomes.push(decisions::check(workspace, &records)?);
    outcomes.push(references::check(&facts, &records)?);
    Ok(outcomes)
}

/// Prints number, status and title of every record; with `update` also rewrites the index
/// and lists new decisions.
///
/// # Errors
/// When a record cannot be read or is malformed, or the index cannot be written.
pub fn list(workspace: &Workspace, update: bool) -> Result<()> {
    let records = records(workspace)?;
    for record in &records {
        println!("{}  {:12} {}", record.id(), record.status.to_string(), record.title);
    }
    if update {
        decisions::write(workspace, &records)?;
        index::write(workspace, &records)?;
    }
    Ok(())
}

/// Starts a new record from the template under the next free number and adds it to the index.
/// Returns its path from the root.
///
/// # Errors
/// When the records or the template cannot be read or the new file cannot be written.
pub fn new(workspace: &Workspace, title: &str, date: &str) -> Result<String> {
    let number = records(workspace)?.iter().map(|record| record.number).max().unwrap_or(0) + 1;
    let file = format!("{FOLDER}/{number:04}-{}.md", slug(title));
    let text = workspace
        .read(TEMPLATE)?
        .replace("NNNN", &format!("{number:04}"))
        .replace("YYYY-MM-DD", date)
        .replace("TITLE", title);
    let path = workspace.path(&file);
    fs::write(&path, text).map_err(Error::io("write", path))?;
    index::write(workspace, &records(workspace)?)?;
    Ok(file)
}

/// All records in order of number.
fn records(workspace: &Workspace) -> Result<Vec<Record>> {
    texts(workspace)?.iter().map(|(file, text)| Record::parse(file, text)).collect()
}

/// File names and contents of `docs/adr/NNNN-*.md`, sorted.
fn texts(workspace: &Workspace) -> Result<Vec<(String, String)>> {
    let folder = workspace.path(FOLDER);
    let mut texts = Vec::new();
    for entry in fs::read_dir(&folder).map_err(Error::io("list", &folder))? {
        let entry = entry.map_err(Error::io("list", &folder))?;
        let file = entry.file_name().to_string_lossy().into_owned();
        if file.starts_with(|c: char| c.is_ascii_digit()) && file.ends_with(".md") {
            texts.push((file.clone(), workspace.read(&format!("{FOLDER}/{file}"))?));
        }
    }
    texts.sort();
    Ok(texts)
}

/// A title as part of a file name: lower-case words joined by dashes.
fn slug(title: &str) -> String {
    let lower = title.to_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slugs_are_file_names() {
        assert_eq!(slug("KV tiers: hot, warm & cold"), "kv-tiers-hot-warm-cold");
    }
}
