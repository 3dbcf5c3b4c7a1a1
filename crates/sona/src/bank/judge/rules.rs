//! Judge by rules on the response and the exit code.

use regex::Regex;
use serde_json::Value;

use super::{Evidence, Judge, Judgement};
use crate::bank::Verdict;
use crate::error::{Error, Result};
use crate::quality::{Sample, SchemaCompliance, Score, Scorer};

/// Condition on a trajectory.
#[derive(Debug)]
pub enum Rule {
    /// The response is JSON that meets all requirements of the schema.
    Schema(Value),
    /// The response has a match.
    Matches(Regex),
    /// The response has no match.
    MatchesNot(Regex),
    /// The exit code is this one. Without an exit code the rule says nothing.
    ExitCode(i32),
}

impl Rule {
    /// A rule of a JSON schema with the keywords that [`SchemaCompliance`] counts.
    ///
    /// # Errors
    /// [`Error::Judge`] for what is no schema, and for other keywords: they would be ignored.
    pub fn schema(schema: &Value) -> Result<Self> {
        let score = compliance("{}", schema)?;
        let ignores = score.evidence.iter().any(|(name, count)| *name == "ignored_keywords" && *count > 0.0);
        if score.value.is_none() || ignores {
            let reason = score.note.unwrap_or_default();
            return Err(Error::Judge(format!("schema: {reason}")));
        }
        Ok(Self::Schema(schema.clone()))
    }

    /// A rule of a pattern that must match; linear in the response, whatever the pattern.
    ///
    /// # Errors
    /// [`Error::Judge`] for an invalid pattern.
    pub fn matches(pattern: &str) -> Result<Self> {
        Regex::new(pattern).map(Self::Matches).map_err(|error| Error::Judge(error.to_string()))
    }

    /// A rule of a pattern that must not match.
    ///
    /// # Errors
    /// [`Error::Judge`] for an invalid pattern.
    pub fn matches_not(pattern: &str) -> Result<Self> {
        Regex::new(pattern).map(Self::MatchesNot).map_err(|error| Error::Judge(error.to_string()))
    }

    /// `None` if the rule holds, else the reason; the outer `None` if it says nothing.
    fn violation(&self, evidence: &Evidence<'_>) -> Option<Option<String>> {
        let response = evidence.response;
        Some(match self {
            Self::Schema(schema) => match compliance(response, schema) {
                Ok(Score { value: Some(1.0), .. }) => None,
                Ok(score) => Some(format!("schema: {}", score.note.unwrap_or_default())),
                Err(error) => Some(format!("schema: {error}")),
            },
            Self::Matches(regex) => {
                (!regex.is_match(response)).then(|| format!("no match of {:?}", regex.as_str()))
            }
            Self::MatchesNot(regex) => {
                regex.is_match(response).then(|| format!("a match of {:?}", regex.as_str()))
            }
            Self::ExitCode(expected) => {
                let code = evidence.exit_code?;
                (code != *expected).then(|| format!("exit code {code}, not {expected}"))
            }
        })
    }
}

/// Share of a schema's requirements that a text meets.
fn compliance(text: &str, schema: &Value) -> Result<Score> {
    SchemaCompliance.score(&Sample { schema: Some(schema), ..Sample::new(text) })
}

/// Success if all rules hold, failure if none does, else partial.
#[derive(Debug)]
pub struct RulesJudge {
    rules: Vec<Rule>,
}

impl RulesJudge {
    /// A judge of at least one rule.
    ///
    /// # Errors
    /// [`Error::Setting`] without rules.
    pub fn new(rules: Vec<Rule>) -> Result<Self> {
        if rules.is_empty() {
            return Err(Error::Setting { name: "rules", value: "empty".to_owned(), range: "1 or more" });
        }
        Ok(Self { rules })
    }
}

impl Judge for RulesJudge {
    fn judge(&self, evidence: &Evidence<'_>) -> Result<Judgement> {
        let results: Vec<Option<String>> =
            self.rules.iter().filter_map(|rule| rule.violation(evidence)).collect();
        if results.is_empty() {
            return Ok(Judgement::unknown("no exit code"));
        }
        let total = results.len();
        let violations: Vec<String> = results.into_iter().flatten().collect();
        let verdict = match violations.len() {
            0 => Verdict::Success,
            n if n == total => Verdict::Failure,
            _ => Verdict::Partial,
        };
        let quality = Some((total - violations.len()) as f32 / total as f32);
        let reason = if violations.is_empty() { "all rules hold".into() } else { violations.join("; ") };
        Ok(Judgement { verdict, quality, reason })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn evidence(response: &str, exit_code: Option<i32>) -> Evidence<'_> {
        Evidence { task: "t", response, exit_code }
    }

    #[test]
    fn rules_that_hold_in_part_are_a_partial_success() {
        let schema = json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}});
        let rules = vec![
            Rule::schema(&schema).unwrap(),
            Rule::matches(r#""n": \d+"#).unwrap(),
            Rule::matches_not("(?i)sorry").unwrap(),
            Rule::ExitCode(0),
        ];
        let judge = RulesJudge::new(rules).unwrap();
        let judged = |text, code| judge.judge(&evidence(text, code)).unwrap();
        assert_eq!(judged(r#"{"n": 3}"#, Some(0)).verdict, Verdict::Success);
        assert_eq!(judged(r#"{"n": 3}"#, None).quality, Some(1.0));
        let partial = judged(r#"{"n": "3"}"#, Some(0));
        assert_eq!((partial.verdict, partial.quality), (Verdict::Partial, Some(0.5)));
        let failed = judged("Sorry", Some(2));
        assert_eq!((failed.verdict, failed.quality), (Verdict::Failure, Some(0.0)));
        assert!(failed.reason.contains("no JSON") && failed.reason.contains("exit code 2"), "{failed:?}");
    }

    #[test]
    fn an_exit_code_that_is_absent_is_unknown() {
        let judge = RulesJudge::new(vec![Rule::ExitCode(0)]).unwrap();
        assert_eq!(judge.judge(&evidence("x", None)).unwrap().verdict, Verdict::Unknown);
        assert_eq!(judge.judge(&evidence("x", Some(1))).unwrap().verdict, Verdict::Failure);
    }

    #[test]
    fn invalid_rules_are_refused() {
        assert!(RulesJudge::new(Vec::new()).is_err());
        assert!(Rule::matches("(").is_err());
        assert!(Rule::schema(&json!(3)).is_err());
        assert!(Rule::schema(&json!({"pattern": "a"})).is_err(), "a keyword that is not counted");
    }
}
