//! Check that named tests exist and, in a full run, pass.

use super::{Facts, Verdict, verdict};
use crate::adr::Depth;
use crate::test_binaries::TestBinary;
use crate::{Error, Result};

/// Tests of `package`: at least `min_tests` (default 1) whose name contains `filter`, and all of
/// `names`.
pub(super) fn test(
    facts: &Facts<'_>,
    package: &str,
    filter: Option<&str>,
    min_tests: Option<usize>,
    names: &[String],
) -> Result<Verdict> {
    if filter.is_none() && names.is_empty() {
        return Ok(Err(vec!["needs `filter` or `names`".to_owned()]));
    }
    if facts.depth == Depth::Sources {
        return Ok(Ok("tests not looked for".to_owned()));
    }
    let mut found: Vec<(&TestBinary, Vec<String>)> = Vec::new();
    for binary in facts.tests()?.iter().filter(|binary| binary.package == package) {
        let mut list = binary.list()?;
        list.retain(|test| filter.is_some_and(|part| test.contains(part)) || names.contains(test));
        found.push((binary, list));
    }
    let all: Vec<&String> = found.iter().flat_map(|(_, list)| list).collect();
    let missing = names.iter().filter(|name| !all.contains(name));
    let mut violations: Vec<String> = missing.map(|name| format!("{package} has no test `{name}`")).collect();
    if let Some(part) = filter {
        let count = all.iter().filter(|test| test.contains(part)).count();
        let wanted = min_tests.unwrap_or(1).max(1);
        if count < wanted {
            violations.push(format!("{package}: {count} tests contain `{part}`, {wanted} are wanted"));
        }
    }
    if facts.depth == Depth::Full {
        for (binary, list) in found.iter().filter(|(_, list)| !list.is_empty()) {
            violations.extend(run(binary, list)?);
        }
    }
    let done = if facts.depth == Depth::Full { "passed" } else { "exist" };
    Ok(verdict(violations, format!("{} tests {done}", all.len())))
}

/// Runs tests of one executable; returns the harness's output if any fails.
fn run(binary: &TestBinary, tests: &[String]) -> Result<Option<String>> {
    match binary.command().args(["--exact", "--quiet"]).args(tests).output() {
        Ok(_) => Ok(None),
        Err(Error::CommandFailed { .. }) => {
            let rerun = format!("cargo test -p {} -- --exact {}", binary.package, tests.join(" "));
            Ok(Some(format!("tests of {} fail; rerun them with: {rerun}", binary.target)))
        }
        Err(error) => Err(error),
    }
}
