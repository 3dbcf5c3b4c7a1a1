//! Outcomes of checks, and their table by feature and client.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::process::CommandLine;
use crate::{Error, Result};

/// Cell of a feature that a client does not offer, or that its script does not check.
const ABSENT: &str = "-";

/// One line of a script.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Outcome {
    /// Name of the client for readers.
    client: String,
    /// Version of the client's package.
    version: String,
    feature: String,
    outcome: Verdict,
    /// Error of a check that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Failed,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
        }
    }
}

impl Outcome {
    /// Reads a line of a script's output.
    pub(super) fn parse(line: &str, command: &CommandLine) -> Result<Self> {
        serde_json::from_str(line).map_err(|source| Error::Json { command: command.display(), source })
    }

    /// Feature, result and reason in one line.
    pub(super) fn summary(&self) -> String {
        let reason =
            self.reason.as_deref().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        format!("{:<26} {} {reason}", self.feature, self.outcome.word()).trim_end().to_owned()
    }
}

/// A row of the table.
#[derive(Debug, Deserialize)]
struct Feature {
    id: String,
    title: String,
}

/// A column of the table.
#[derive(Debug)]
struct Column {
    /// Name for `--only`.
    name: &'static str,
    outcomes: Vec<Outcome>,
}

/// All outcomes.
#[derive(Debug)]
pub(super) struct Report {
    features: Vec<Feature>,
    columns: Vec<Column>,
}

impl Report {
    /// Rows from `features.json`.
    pub(super) fn new(features: &str) -> Result<Self> {
        let features = serde_json::from_str(features)
            .map_err(|source| Error::Json { command: "features.json".to_owned(), source })?;
        Ok(Self { features, columns: Vec::new() })
    }

    /// Names of the rows.
    #[cfg(test)]
    pub(super) fn features(&self) -> impl Iterator<Item = &str> {
        self.features.iter().map(|feature| feature.id.as_str())
    }

    /// Adds an outcome of the client `name`.
    pub(super) fn add(&mut self, name: &'static str, outcome: Outcome) -> Result<()> {
        if !self.features.iter().any(|feature| feature.id == outcome.feature) {
            return Err(Error::NoFeature { name: outcome.feature });
        }
        match self.columns.iter_mut().find(|column| column.name == name) {
            Some(column) => column.outcomes.push(outcome),
            None => self.columns.push(Column { name, outcomes: vec![outcome] }),
        }
        Ok(())
    }

    fn outcomes(&self) -> impl Iterator<Item = (&'static str, &Outcome)> {
        self.columns.iter().flat_map(|column| column.outcomes.iter().map(|outcome| (column.name, outcome)))
    }

    fn cell(column: &Column, feature: &str) -> &'static str {
        let found = column.outcomes.iter().find(|outcome| outcome.feature == feature);
        found.map_or(ABSENT, |outcome| outcome.outcome.word())
    }

    /// Table for a terminal, with the reasons of failures.
    pub(super) fn text(&self) -> String {
        let first = self.features.iter().map(|feature| feature.title.len()).max().unwrap_or_default();
        let mut text = " ".repeat(first);
        for column in &self.columns {
            let _ = write!(text, "  {}", column.name);
        }
        for feature in &self.features {
            let _ = write!(text, "\n{:<first$}", feature.title);
            for column in &self.columns {
                let _ =
                    write!(text, "  {:<width$}", Self::cell(column, &feature.id), width = column.name.len());
            }
        }
        text.push('\n');
        for (name, outcome) in self.outcomes().filter(|(_, outcome)| outcome.outcome == Verdict::Failed) {
            let _ = write!(text, "\n{name}: {}", outcome.summary());
        }
        text
    }

    /// Table for a page.
    pub(super) fn markdown(&self) -> String {
        let mut text = String::from("| feature |");
        for column in &self.columns {
            let _ = write!(text, " {} |", column.outcomes[0].client);
        }
        text.push_str("\n|---|");
        text.push_str(&"---|".repeat(self.columns.len()));
        text.push_str("\n| version |");
        for column in &self.columns {
            let _ = write!(text, " {} |", column.outcomes[0].version);
        }
        for feature in &self.features {
            let _ = write!(text, "\n| {} |", feature.title);
            for column in &self.columns {
                let _ = write!(text, " {} |", Self::cell(column, &feature.id));
            }
        }
        text.push('\n');
        text
    }

    /// All outcomes as JSON.
    pub(super) fn json(&self) -> String {
        let outcomes: Vec<_> = self.outcomes().map(|(_, outcome)| outcome).collect();
        serde_json::to_string_pretty(&outcomes).unwrap_or_default() + "\n"
    }

    /// An error if a check failed, or none ran.
    pub(super) fn verdict(&self) -> Result<()> {
        let total = self.outcomes().count();
        let failed = self.outcomes().filter(|(_, outcome)| outcome.outcome == Verdict::Failed).count();
        if failed == 0 && total > 0 {
            println!("{total} checks of {} clients", self.columns.len());
            Ok(())
        } else {
            Err(Error::ClientChecks { failed, total })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEATURES: &str = r#"[{"id": "chat", "title": "chat"}, {"id": "n", "title": "`n`"}]"#;

    fn outcome(feature: &str, verdict: &str) -> Outcome {
        let line = format!(
            r#"{{"client":"A (b)","version":"1.2","feature":"{feature}","outcome":"{verdict}","reason":null}}"#
        );
        Outcome::parse(&line, &CommandLine::new("script", std::path::Path::new("."))).expect("an outcome")
    }

    #[test]
    fn table_has_a_row_per_feature_and_a_column_per_client() {
        let mut report = Report::new(FEATURES).expect("features");
        report.add("a", outcome("chat", "ok")).expect("a feature");
        report.add("b", outcome("chat", "failed")).expect("a feature");
        report.add("b", outcome("n", "ok")).expect("a feature");
        let table = "| feature | A (b) | A (b) |\n|---|---|---|\n| version | 1.2 | 1.2 |\n\
                     | chat | ok | failed |\n| `n` | - | ok |\n";
        assert_eq!(report.markdown(), table);
        assert!(
            report.text().starts_with("      a  b\nchat  ok  failed\n`n`   -  ok\n"),
            "{}",
            report.text()
        );
    }

    #[test]
    fn failures_and_empty_runs_are_errors() {
        let mut report = Report::new(FEATURES).expect("features");
        assert!(matches!(report.verdict(), Err(Error::ClientChecks { failed: 0, total: 0 })));
        report.add("a", outcome("chat", "ok")).expect("a feature");
        report.verdict().expect("no failure");
        report.add("a", outcome("n", "failed")).expect("a feature");
        assert!(matches!(report.verdict(), Err(Error::ClientChecks { failed: 1, total: 2 })));
    }

    #[test]
    fn outcomes_of_unknown_features_are_errors() {
        let mut report = Report::new(FEATURES).expect("features");
        let error = report.add("a", outcome("tools", "ok")).expect_err("no such row");
        assert!(matches!(error, Error::NoFeature { name } if name == "tools"));
    }
}
