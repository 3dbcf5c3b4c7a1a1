//! Checks over source files: paths, text patterns, constants, lengths, `forbid(unsafe_code)`.

use regex_lite::Regex;

use super::{Facts, FileScope, Verdict, verdict};
use crate::workspace::PathPatterns;
use crate::{Error, Result};

/// Every path exists.
pub(super) fn path_exists(facts: &Facts<'_>, paths: &[String]) -> Verdict {
    let missing = paths.iter().filter(|path| !facts.workspace.path(path).exists());
    let mut violations: Vec<String> = missing.map(|path| format!("{path}: does not exist")).collect();
    if paths.is_empty() {
        violations.push("`paths` must not be empty".to_owned());
    }
    verdict(violations, format!("{} paths", paths.len()))
}

/// Every file in scope has a matching line.
pub(super) fn matches(facts: &Facts<'_>, pattern: &str, scope: FileScope<'_>) -> Result<Verdict> {
    if pattern.replace(r"\|", "").contains('|') {
        return Ok(Err(vec![format!(
            "`{pattern}` has alternatives, of which one may go: one check for each"
        )]));
    }
    over_lines(facts, pattern, scope, |file, lines, regex| {
        let found = lines.lines().any(|line| regex.is_match(line));
        if found { Vec::new() } else { vec![format!("{file}: no line matches `{pattern}`")] }
    })
}

/// No line of any file in scope matches; `example` does.
pub(super) fn no_match(
    facts: &Facts<'_>,
    pattern: &str,
    example: &str,
    skip_comments: bool,
    scope: FileScope<'_>,
) -> Result<Verdict> {
    if Regex::new(pattern).is_ok_and(|regex| !regex.is_match(example)) {
        return Ok(Err(vec![format!("`{pattern}` does not find its example `{example}`")]));
    }
    over_lines(facts, pattern, scope, |file, text, regex| {
        let counts = |line: &str| !(skip_comments && line.trim_start().starts_with("//"));
        let hits = (1..).zip(text.lines()).filter(|(_, line)| counts(line) && regex.is_match(line));
        hits.map(|(number, line): (usize, _)| format!("{file}:{number}: {}", line.trim())).collect()
    })
}

/// No file in scope has more than `max` lines.
pub(super) fn max_lines(facts: &Facts<'_>, max: usize, scope: FileScope<'_>) -> Result<Verdict> {
    over_files(facts, scope, |file, text| {
        let lines = text.lines().count();
        if lines <= max {
            Vec::new()
        } else {
            vec![format!("{file}: {lines} lines, at most {max} are wanted")]
        }
    })
}

/// The root files of the packages' libraries and binaries say `#![forbid(unsafe_code)]`.
pub(super) fn forbids_unsafe(facts: &Facts<'_>, packages: &[String]) -> Result<Verdict> {
    let mut violations = Vec::new();
    let mut roots = 0;
    for name in packages {
        let Some(package) = facts.graph()?.member(name) else {
            violations.push(format!("the workspace has no package `{name}`"));
            continue;
        };
        for root in &package.roots {
            roots += 1;
            let text = std::fs::read_to_string(root).map_err(Error::io("read", root))?;
            if !text.lines().any(|line| line.trim() == "#![forbid(unsafe_code)]") {
                violations.push(format!("{}: no #![forbid(unsafe_code)]", root.display()));
            }
        }
    }
    if roots == 0 {
        violations.push("no root file was looked at".to_owned());
    }
    Ok(verdict(violations, format!("{roots} root files")))
}

/// `const name: T = value;` stands in `file`.
pub(super) fn constant(facts: &Facts<'_>, file: &str, name: &str, value: &str) -> Verdict {
    let pattern = format!(r"\bconst\s+{}\s*:[^=;]+=\s*([^;]+);", regex_lite::escape(name));
    let regex = Regex::new(&pattern).expect("the name is escaped");
    let text = facts.workspace.read(file).map_err(|error| vec![error.to_string()])?;
    let found: Vec<String> = regex.captures_iter(&text).map(|found| plain(&found[1])).collect();
    match found.as_slice() {
        [] => Err(vec![format!("{file}: has no constant {name}")]),
        [one] if *one == plain(value) => Ok(format!("{name} = {one}")),
        [one] => Err(vec![format!("{file}: {name} is {one}, {} is decided", plain(value))]),
        more => Err(vec![format!("{file}: {} constants are named {name}", more.len())]),
    }
}

/// A value without underscores and white space, so that `4_096` is `4096`.
fn plain(value: &str) -> String {
    value.chars().filter(|c| *c != '_' && !c.is_whitespace()).collect()
}

/// Runs `find` on every file in scope with the compiled pattern.
fn over_lines(
    facts: &Facts<'_>,
    pattern: &str,
    scope: FileScope<'_>,
    find: impl Fn(&str, &str, &Regex) -> Vec<String>,
) -> Result<Verdict> {
    match Regex::new(pattern) {
        Ok(regex) => over_files(facts, scope, |file, text| find(file, text, &regex)),
        Err(error) => Ok(Err(vec![format!("`{pattern}` is no regular expression: {error}")])),
    }
}

/// Runs `find` on every text file in scope; an empty scope, also of one single pattern, is a
/// violation.
fn over_files(
    facts: &Facts<'_>,
    scope: FileScope<'_>,
    find: impl Fn(&str, &str) -> Vec<String>,
) -> Result<Verdict> {
    let files = facts.files()?;
    let except = PathPatterns::new(scope.except);
    let mut violations = Vec::new();
    let mut in_scope: Vec<&String> = Vec::new();
    for pattern in scope.paths {
        let one = PathPatterns::new(std::slice::from_ref(pattern));
        let found = files.iter().filter(|file| one.matches(file) && !except.matches(file));
        let before = in_scope.len();
        in_scope.extend(found);
        if in_scope.len() == before {
            violations.push(format!("`{pattern}` matches no file"));
        }
    }
    if scope.paths.is_empty() {
        violations.push("`paths` must not be empty".to_owned());
    }
    in_scope.sort();
    in_scope.dedup();
    for file in &in_scope {
        violations.extend(find(file, &facts.workspace.read(file)?));
    }
    Ok(verdict(violations, format!("{} files", in_scope.len())))
}
