//! `--curriculum`: phases of the data, by fields of its lines or by the model alone.

use clap::Args;
use ruvllm_training::Curriculum;
use serde::Serialize;
use serde_json::Value;

use super::dataset::Level;
use crate::args::positive;
use crate::error::{Error, Result};

/// Default number of phases.
const PHASES: usize = 3;

/// Flags of the order of the data.
#[derive(Debug, Args)]
pub(super) struct CurriculumArgs {
    /// Train in phases, on easy examples first
    #[arg(long, conflicts_with = "replay")]
    curriculum: bool,

    /// Phases of --curriculum, with equal shares of the steps [default: 3]
    #[arg(long, value_name = "N", requires = "curriculum", value_parser = positive)]
    phases: Option<usize>,
}

/// Facts about a curriculum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Phases {
    /// Order: by `phase`, `difficulty` or `loss`.
    pub(super) by: &'static str,
    /// Examples that each phase trains on.
    pub(super) examples: Vec<usize>,
}

impl CurriculumArgs {
    /// Curriculum of the flags; `None` without one. `losses` measures the model alone, if the lines
    /// have no order.
    ///
    /// # Errors
    /// Lines of which only some have an order or have another value than a number; `--phases`
    /// beside phases of the lines; more phases than examples; errors of `losses`.
    pub(super) fn plan(
        &self,
        levels: &[Level],
        losses: impl FnOnce() -> ruvllm_training::Result<Vec<f64>>,
    ) -> Result<Option<(Curriculum, Phases)>> {
        if !self.curriculum {
            return Ok(None);
        }
        let n = self.phases.unwrap_or(PHASES);
        let phases = field(
            levels,
            "phase",
            "a whole number",
            |level| level.phase.as_ref(),
            |value| usize::try_from(value.as_u64()?).ok(),
        )?;
        let (curriculum, by) = if let Some(phases) = phases {
            if self.phases.is_some() {
                let reason =
                    "the lines of the data have a field `phase`, which counts; leave it out".to_owned();
                return Err(Error::Conflict { flag: "--phases", reason });
            }
            (Curriculum::of_phases(&phases)?, "phase")
        } else if let Some(difficulty) =
            field(levels, "difficulty", "a number", |level| level.difficulty.as_ref(), Value::as_f64)?
        {
            (Curriculum::by_difficulty(&difficulty, n)?, "difficulty")
        } else {
            (Curriculum::by_difficulty(&losses()?, n)?, "loss")
        };
        let examples = curriculum.examples().to_vec();
        Ok(Some((curriculum, Phases { by, examples })))
    }
}

/// Values of a field that all lines have; `None` if none of them has it.
fn field<T>(
    levels: &[Level],
    name: &str,
    kind: &str,
    get: impl Fn(&Level) -> Option<&Value>,
    parse: impl Fn(&Value) -> Option<T>,
) -> Result<Option<Vec<T>>> {
    if levels.iter().all(|level| get(level).is_none()) {
        return Ok(None);
    }
    let value = |level: &Level| {
        get(level).and_then(&parse).ok_or_else(|| Error::Input {
            origin: level.place.clone(),
            reason: format!("--curriculum needs a field `{name}` with {kind} in all lines, or in none"),
        })
    };
    levels.iter().map(value).collect::<Result<Vec<T>>>().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(lines: &[Value]) -> Vec<Level> {
        lines.iter().enumerate().map(|(line, fields)| Level::new(format!("d:{}", line + 1), fields)).collect()
    }

    fn plan(lines: &[Value], phases: Option<usize>) -> Result<Phases> {
        let args = CurriculumArgs { curriculum: true, phases };
        let losses = || Ok((0..lines.len()).map(|line| line as f64).collect());
        Ok(args.plan(&levels(lines), losses)?.expect("a curriculum").1)
    }

    #[test]
    fn fields_of_the_lines_go_before_losses() {
        use serde_json::json;
        let found = plan(&[json!({"phase": 2, "difficulty": 1}), json!({"phase": 1})], None).expect("phases");
        assert_eq!((found.by, found.examples), ("phase", vec![1, 2]));
        let found = plan(&[json!({"difficulty": 2.5}), json!({"difficulty": -1})], Some(1)).expect("phases");
        assert_eq!((found.by, found.examples), ("difficulty", vec![2]));
        let plain = vec![json!({"text": "x"}); 6];
        assert_eq!(plan(&plain, None).expect("phases"), Phases { by: "loss", examples: vec![2, 4, 6] });
        let off = CurriculumArgs { curriculum: false, phases: None };
        assert!(off.plan(&levels(&plain), || Ok(Vec::new())).expect("no error").is_none());
        for (lines, phases, expected) in [
            ([json!({"phase": 1}), json!({})], None, "d:2: --curriculum needs a field `phase`"),
            ([json!({"phase": -1}), json!({"phase": 1})], None, "d:1"),
            ([json!({"difficulty": "x"}), json!({"difficulty": 1})], None, "`difficulty` with a number"),
            ([json!({"phase": 1}), json!({"phase": 1})], Some(2), "--phases"),
            ([json!({}), json!({})], Some(3), "phases is 3"),
        ] {
            let error = plan(&lines, phases).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
