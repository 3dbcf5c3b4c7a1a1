//! One decision record: front matter, title, required sections, and the checks of its Conformance
//! section.

use std::fmt;

use serde::Deserialize as _;

use super::checks::{Check, Kind};
use super::digest::digest;
use crate::{Error, Result};

/// The sections that every record has, in this order.
const SECTIONS: [&str; 5] = ["Context", "Options", "Decision", "Consequences", "Conformance"];

/// A parsed decision record.
#[derive(Debug)]
pub struct Record {
    /// Its number, unique.
    pub number: u32,
    /// Its file name.
    pub file: String,
    /// The words after `# ADR-NNNN:`.
    pub title: String,
    /// Status of the decision.
    pub status: Status,
    /// The digest of its Decision section.
    pub(super) decision: String,
    /// The checks of its Conformance section.
    pub(super) checks: Vec<Check>,
}

/// Status of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Under discussion; its checks do not run.
    Proposed,
    /// In force.
    Accepted,
    /// Considered and turned down.
    Rejected,
    /// Replaced by the record with this number.
    Superseded(u32),
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `pad` so that a width in the format string is honoured.
        match self {
            Self::Proposed => f.pad("proposed"),
            Self::Accepted => f.pad("accepted"),
            Self::Rejected => f.pad("rejected"),
            Self::Superseded(by) => f.pad(&format!("superseded by ADR-{by:04}")),
        }
    }
}

impl Record {
    /// `ADR-NNNN`.
    #[must_use]
    pub fn id(&self) -> String {
        format!("ADR-{:04}", self.number)
    }

    /// Reads a record from the text of `file`.
    ///
    /// # Errors
    /// [`Error::AdrFormat`] that says what is wrong and what is wanted.
    pub fn parse(file: &str, text: &str) -> Result<Self> {
        let problem = |problem: String| Error::AdrFormat { file: file.to_owned(), problem };
        let number: u32 = file
            .split('-')
            .next()
            .filter(|digits| digits.len() == 4)
            .and_then(|digits| digits.parse().ok())
            .ok_or_else(|| problem("the file name must begin with a four-digit number and a dash".into()))?;
        let (front, body) = text
            .strip_prefix("---\n")
            .and_then(|rest| rest.split_once("\n---\n"))
            .ok_or_else(|| problem("front matter between two lines `---` is missing".into()))?;
        let status = field(front, "status").ok_or_else(|| problem("front matter has no status".into()))?;
        let status = parse_status(status).ok_or_else(|| {
            problem(format!(
                "status `{status}` is none of proposed, accepted, rejected, superseded by ADR-NNNN"
            ))
        })?;
        field(front, "date")
            .filter(|date| is_date(date))
            .ok_or_else(|| problem("front matter needs `date: YYYY-MM-DD`".into()))?;
        let heading = format!("# ADR-{number:04}: ");
        let title = body
            .lines()
            .find_map(|line| line.strip_prefix(heading.as_str()))
            .ok_or_else(|| problem(format!("a first heading `{heading}Title` is missing")))?;
        check_sections(body).map_err(problem)?;
        let checks = parse_checks(section(body, "Conformance")).map_err(problem)?;
        let decision = digest(section(body, "Decision")).map_err(problem)?;
        Ok(Self { number, file: file.to_owned(), title: title.trim().to_owned(), status, decision, checks })
    }
}

/// The value of `name: value`, a trailing comment left out.
fn field<'a>(front: &'a str, name: &str) -> Option<&'a str> {
    let value = front.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.split(" #").next().unwrap_or(value).trim())
}

fn parse_status(text: &str) -> Option<Status> {
    match text {
        "proposed" => Some(Status::Proposed),
        "accepted" => Some(Status::Accepted),
        "rejected" => Some(Status::Rejected),
        _ => text.strip_prefix("superseded by ADR-")?.parse().ok().map(Status::Superseded),
    }
}

fn is_date(text: &str) -> bool {
    text.len() == 10
        && text
            .bytes()
            .enumerate()
            .all(|(i, byte)| if i == 4 || i == 7 { byte == b'-' } else { byte.is_ascii_digit() })
}

/// Every required section is there, in order, and not empty.
fn check_sections(body: &str) -> Result<(), String> {
    let found: Vec<&str> = body.lines().filter_map(|line| line.strip_prefix("## ")).map(str::trim).collect();
    if found != SECTIONS {
        return Err(format!("sections are {found:?}, wanted {SECTIONS:?}"));
    }
    match SECTIONS.iter().find(|name| section(body, name).trim().is_empty()) {
        Some(name) => Err(format!("section {name} is empty")),
        None => Ok(()),
    }
}

/// The text below `## name` up to the next heading of that level.
fn section<'a>(body: &'a str, name: &str) -> &'a str {
    let heading = format!("## {name}\n");
    let Some(start) = body.find(&heading) else { return "" };
    let rest = &body[start + heading.len()..];
    rest.find("\n## ").map_or(rest, |end| &rest[..=end])
}

/// The checks in the TOML code blocks of a Conformance section.
fn parse_checks(section: &str) -> Result<Vec<Check>, String> {
    let mut checks: Vec<Check> = Vec::new();
    for block in section.split("```toml\n").skip(1) {
        let source = block.split("\n```").next().unwrap_or(block);
        let mut table: toml::Table = source.parse().map_err(|error| format!("Conformance: {error}"))?;
        let Some(toml::Value::Array(entries)) = table.remove("check") else {
            return Err("Conformance: a TOML block without [[check]]".into());
        };
        if let Some(key) = table.keys().next() {
            return Err(format!("Conformance: unknown key `{key}` outside [[check]]"));
        }
        for entry in entries {
            let check = parse_check(entry)?;
            if checks.iter().any(|other| other.id == check.id) {
                return Err(format!("Conformance: the id `{}` is used twice", check.id));
            }
            checks.push(check);
        }
    }
    Ok(checks)
}

fn parse_check(entry: toml::Value) -> Result<Check, String> {
    let toml::Value::Table(mut fields) = entry else {
        return Err("Conformance: [[check]] is no table".into());
    };
    let Some(toml::Value::String(id)) = fields.remove("id") else {
        return Err("Conformance: a [[check]] without an id".into());
    };
    let kind = Kind::deserialize(toml::Value::Table(fields))
        .map_err(|error| format!("Conformance: check `{id}`: {}", error.to_string().trim()))?;
    Ok(Check { id, kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "---\nstatus: accepted   # for now\ndate: 2026-11-21\n---\n# ADR-0007: One table\n\
        ## Context\nc\n## Options\no\n## Decision\nd\n## Consequences\nq\n## Conformance\n\
        ```toml\n[[check]]\nid = \"a\"\nkind = \"path-exists\"\npaths = [\"Cargo.toml\"]\n```\n";

    #[track_caller]
    fn fails(text: &str, expected: &str) {
        let message = Record::parse("0007-one-table.md", text).expect_err("a malformed record").to_string();
        assert!(message.contains(expected), "{message}");
    }

    #[test]
    fn a_good_record_is_read() {
        let record = Record::parse("0007-one-table.md", GOOD).expect("a record");
        assert_eq!((record.number, record.title.as_str()), (7, "One table"));
        assert_eq!(record.status, Status::Accepted);
        assert_eq!(record.checks.len(), 1);
        let replaced = GOOD.replace("accepted ", "superseded by ADR-0008 ");
        let record = Record::parse("0007-one-table.md", &replaced).expect("a record");
        assert_eq!(record.status, Status::Superseded(8));
    }

    #[test]
    fn malformed_records_say_what_is_wrong() {
        fails("# ADR-0007: x\n", "front matter");
        fails(&GOOD.replace("status: accepted", "status: maybe"), "status `maybe`");
        fails(&GOOD.replace("2026-11-21", "today"), "date");
        fails(&GOOD.replace("ADR-0007", "ADR-0008"), "# ADR-0007:");
        fails(&GOOD.replace("## Options\no\n", ""), "sections are");
        fails(&GOOD.replace("## Options\no\n", "## Options\n\n"), "section Options is empty");
        fails(&GOOD.replace("id = \"a\"\n", ""), "without an id");
        fails(&GOOD.replace("path-exists", "path-exist"), "check `a`");
        fails(&GOOD.replace("paths =", "path ="), "check `a`");
        fails(&GOOD.replace("[[check]]", "[[checks]]"), "without [[check]]");
        let twice =
            GOOD.replace("```toml\n", "```toml\n[[check]]\nid = \"a\"\nkind = \"path-exists\"\npaths = []\n");
        fails(&twice, "used twice");
        assert!(Record::parse("7-x.md", GOOD).is_err(), "the number has four digits");
    }
}
