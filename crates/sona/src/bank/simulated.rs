//! Simulated tasks for the evaluation's machinery: no model, no claim about one.
//!
//! Each kind of task has a hidden convention, drawn by a seed. The simulated solver knows none: it
//! follows the memory it is given, right or wrong, and guesses otherwise. So a gain depends on
//! retrieval by the embedding function, on the lessons and on the judge; with an embedding function
//! that cannot tell the kinds apart, memory misleads and the report must show it.

use super::evaluate::{Attempt, EvalTask, Grader, Solver};
use super::extract;
use super::extract::{Extract, Extraction};
use super::item::Verdict;
use super::judge::{Evidence, Judge, Judgement};
use super::text::ItemText;
use crate::error::{Error, Result};
use crate::model::Embed;
use crate::random::{Random, mix};

/// Conventions.
const STYLES: [&str; 8] = ["plain", "padded", "quoted", "capital", "short", "signed", "sorted", "indented"];

/// Kinds of tasks with their phrasings.
const KINDS: [[&str; 3]; 10] = [
    [
        "Write the due date of the supplier invoice for",
        "Which date belongs on the invoice to supplier",
        "Date the overdue invoice of supplier",
    ],
    [
        "Name the git branch for the bug fix about",
        "Choose a branch name for fixing the bug in",
        "Create a git branch that fixes",
    ],
    [
        "Label the chart axis of rainfall in",
        "Title the rainfall chart axis for",
        "Caption the axis of the rain chart of",
    ],
    [
        "Sort the phone contacts of the family",
        "List the phone contacts of customer",
        "Order the address book contacts of",
    ],
    [
        "Write the SQL column alias for revenue from",
        "Alias the SQL revenue column of",
        "Rename the SQL column with the revenue of",
    ],
    [
        "Scale the soup recipe for guests of",
        "Convert the soup recipe portions for",
        "Adapt the vegetable soup recipe to",
    ],
    [
        "Answer the refund email of",
        "Reply to the customer email about a refund from",
        "Draft the refund email to customer",
    ],
    [
        "Log the temperature sensor reading in room",
        "Record the sensor temperature of room",
        "Note the room temperature sensor value of",
    ],
    [
        "Write the commit message for the release of",
        "Summarize the release commit of",
        "Compose the release commit message for",
    ],
    ["Mark the exam essay of the student", "Grade the history essay by student", "Score the essay exam of"],
];

/// Names that complete the phrasings.
const NAMES: [&str; 12] =
    ["Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir", "Hazel", "Juniper", "Larch", "Maple", "Oak", "Pine"];

/// Family of simulated tasks with their solver, judge, lessons and grader.
pub struct ConventionTasks {
    tasks: Vec<EvalTask>,
    /// Style of each kind.
    conventions: Vec<&'static str>,
    /// Share of wrong verdicts of the judge, 0 to 1.
    judge_noise: f64,
    seed: u64,
}

impl ConventionTasks {
    /// `per_kind` tasks of each of ten kinds, with conventions drawn by the seed.
    ///
    /// # Errors
    /// [`Error::Setting`] for a noise that is not 0 to 1.
    pub fn new(per_kind: usize, judge_noise: f64, seed: u64) -> Result<Self> {
        if !(0.0..=1.0).contains(&judge_noise) {
            let value = judge_noise.to_string();
            return Err(Error::Setting { name: "judge_noise", value, range: "0 to 1" });
        }
        let mut random = Random::new(seed);
        let conventions = KINDS.iter().map(|_| STYLES[random.below(STYLES.len())]).collect();
        let mut tasks = Vec::new();
        for (kind, phrasings) in KINDS.iter().enumerate() {
            for i in 0..per_kind {
                let phrasing = phrasings[random.below(phrasings.len())];
                let name = NAMES[random.below(NAMES.len())];
                // The number tells equal tasks apart; it is no part of the text.
                let (id, prompt) = (format!("{kind}-{i}"), format!("{phrasing} {name}"));
                tasks.push(EvalTask { id, prompt });
            }
        }
        Ok(Self { tasks, conventions, judge_noise, seed })
    }

    /// All tasks.
    pub fn tasks(&self) -> &[EvalTask] {
        &self.tasks
    }

    /// Convention of a prompt.
    fn convention(&self, prompt: &str) -> Option<&'static str> {
        let kind = KINDS.iter().position(|phrasings| phrasings.iter().any(|p| prompt.starts_with(p)))?;
        Some(self.conventions[kind])
    }
}

/// Style that a text names as `the X style`.
fn style_in(text: &str) -> Option<&'static str> {
    STYLES.into_iter().find(|style| text.contains(&format!("the {style} style")))
}

impl Solver for ConventionTasks {
    fn solve(&self, _: &EvalTask, memory: Option<&str>, seed: u64) -> Result<Attempt> {
        let known = memory.and_then(|memory| Some((style_in(memory)?, memory.contains("was refused"))));
        let mut random = Random::new(seed);
        let style = match known {
            Some((style, false)) => style,
            // Any but the refused one.
            Some((style, true)) => {
                let others: Vec<&str> = STYLES.into_iter().filter(|&other| other != style).collect();
                others[random.below(others.len())]
            }
            None => STYLES[random.below(STYLES.len())],
        };
        Ok(Attempt { response: format!("in the {style} style"), exit_code: None })
    }
}

impl Grader for ConventionTasks {
    fn grade(&self, task: &EvalTask, attempt: &Attempt) -> Result<Verdict> {
        let is_right = style_in(&attempt.response) == self.convention(&task.prompt);
        Ok(if is_right { Verdict::Success } else { Verdict::Failure })
    }
}

impl Judge for ConventionTasks {
    fn judge(&self, evidence: &Evidence<'_>) -> Result<Judgement> {
        let bytes = evidence.task.bytes().chain(evidence.response.bytes());
        let state = bytes.fold(mix(self.seed), |state, byte| mix(state ^ u64::from(byte)));
        let is_wrong = Random::new(state).uniform() < self.judge_noise;
        let is_right = style_in(evidence.response) == self.convention(evidence.task);
        let verdict = if is_right != is_wrong { Verdict::Success } else { Verdict::Failure };
        Ok(Judgement { verdict, quality: None, reason: "simulated".to_owned() })
    }
}

/// Lessons of [`ConventionTasks`], with embeddings by a function.
pub struct ConventionLessons<E>(pub E);

impl<E: Embed> Extract for ConventionLessons<E> {
    fn extract(&self, evidence: &Evidence<'_>, verdict: Verdict) -> Result<Extraction> {
        let mut extraction = Extraction::default();
        let Some(style) = style_in(evidence.response) else { return Ok(extraction) };
        let outcome = match verdict {
            Verdict::Success => "was accepted",
            Verdict::Failure => "was refused",
            Verdict::Partial | Verdict::Unknown => return Ok(extraction),
        };
        let body = format!("For such requests the {style} style {outcome}.");
        let text = ItemText::new("Style of the answer", "Requests of the same kind.", &body)?;
        extract::select(&self.0, evidence.task, vec![text], &mut extraction)?;
        Ok(extraction)
    }
}
