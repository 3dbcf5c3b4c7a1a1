//! References to `ADR-NNNN` in source code must name an accepted record.

use regex_lite::Regex;

use super::checks::Facts;
use super::{Outcome, Record, Status};
use crate::Result;
use crate::workspace::PathPatterns;

const SCOPE: [&str; 5] =
    ["crates/**/*.rs", "benches/**/*.rs", "fuzz/fuzz_targets/**/*.rs", "tools/**/*.rs", "xtask/src/**/*.rs"];
/// The record parser's own tests use invented numbers.
const EXCEPT: [&str; 1] = ["xtask/src/adr/**"];

/// Numbers are unique, superseding records exist, and every reference in code is to an accepted
/// record.
pub(super) fn check(facts: &Facts<'_>, records: &[Record]) -> Result<Outcome> {
    let status = |number: u32| records.iter().find(|record| record.number == number).map(|r| r.status);
    let mut violations = Vec::new();
    for pair in records.windows(2).filter(|pair| pair[0].number == pair[1].number) {
        violations.push(format!("{} and {} share a number", pair[0].file, pair[1].file));
    }
    for record in records {
        if let Status::Superseded(by) = record.status
            && status(by) != Some(Status::Accepted)
        {
            violations.push(format!("{}: superseded by ADR-{by:04}, which is not accepted", record.file));
        }
    }
    let pattern = Regex::new(r"\bADR-(\d{4})\b").expect("a constant pattern");
    let (scope, except) = (PathPatterns::new(&SCOPE), PathPatterns::new(&EXCEPT));
    let mut references = 0;
    for file in facts.files()?.iter().filter(|file| scope.matches(file) && !except.matches(file)) {
        for (line, text) in (1..).zip(facts.workspace.read(file)?.lines()) {
            for found in pattern.captures_iter(text) {
                references += 1;
                let number = found[1].parse().unwrap_or(0);
                match status(number) {
                    Some(Status::Accepted) => {}
                    Some(other) => violations.push(format!("{file}:{line}: {} is {other}", &found[0])),
                    None => violations.push(format!("{file}:{line}: {} does not exist", &found[0])),
                }
            }
        }
    }
    let result = if violations.is_empty() { Ok(format!("{references} references")) } else { Err(violations) };
    Ok(Outcome { label: "references to records in code".to_owned(), result })
}
