//! `ruvllm sona consolidate`: trains an adapter on its lessons together.

use clap::Args;
use ruvllm::LearningOptions;
use ruvllm::crates::sona::continual::{GateReport, Outcome, PairedTest, Skip, Verdict};
use ruvllm::crates::sona::online::ORDINARY_TASK;
use serde::Serialize;

use super::learned::LearnedArgs;
use crate::error::Result;
use crate::output;
use crate::progress::Progress;

const HELP: &str = "\
Feedback teaches one text after the other, and later ones push former ones aside. This trains on a sample of all lessons
together, beside ordinary text, and protects what was consolidated before. The result replaces the state of the adapter
only if held-out lessons and ordinary text do not get worse. A server does the same in the background.

JSON: {name, result, reason, steps, held_out, ordinary}; result is none (no new lessons), skipped, accepted or rejected,
reason says why it was not accepted or is null, steps are those of the training, held_out and ordinary the losses in
nats per token, {examples, before, after}, or null.

Examples:
  ruvllm sona consolidate tone
  ruvllm sona consolidate tone --json";

/// Train an adapter on its lessons together, and keep the result if held-out text agrees
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ConsolidateArgs {
    #[command(flatten)]
    learned: LearnedArgs,
}

/// The JSON document.
#[derive(Debug, Default, Serialize)]
struct Document {
    name: String,
    result: &'static str,
    reason: Option<String>,
    steps: usize,
    held_out: Option<Losses>,
    ordinary: Option<Losses>,
}

/// Mean losses of examples.
#[derive(Debug, Serialize)]
struct Losses {
    examples: usize,
    before: f64,
    after: f64,
}

pub(crate) fn run(args: &ConsolidateArgs, json: bool) -> Result<()> {
    let mut options = LearningOptions::default();
    // Who asks for it does not wait for more of them.
    options.online.consolidation.lessons = 1;
    let steps = options.online.consolidation.training.steps as u64;
    let learned = args.learned.open_with(options)?;
    let total = learned.adapter.status()?.lessons + steps;
    let (mut progress, mut done) = (Progress::steps("consolidating"), 0);
    let mut keep_going = || {
        done += 1;
        progress.update(done.min(total), total);
        true
    };
    let report = learned.adapter.consolidate(&learned.engine, &mut keep_going)?;
    drop(progress);
    let mut document = Document { name: args.learned.name.clone(), result: "none", ..Document::default() };
    if let Some(report) = report {
        document.steps = report.steps;
        document.judge(report.outcome);
    }
    if document.result == "accepted" {
        learned.publish()?;
    }
    if json {
        return output::write_json(&document);
    }
    output::write_text(&document.text()).map(|_| ())
}

impl Document {
    fn judge(&mut self, outcome: Outcome) {
        let (result, report) = match outcome {
            Outcome::Accepted(report) => ("accepted", report),
            Outcome::Rejected(report) => ("rejected", report),
            Outcome::Skipped(skip) => {
                (self.result, self.reason) = ("skipped", Some(reason(&skip)));
                return;
            }
        };
        self.result = result;
        self.reason = objection(&report);
        self.held_out = Some(losses(&report.overall));
        let ordinary = report.tasks.iter().find(|(task, _)| *task == ORDINARY_TASK);
        self.ordinary = ordinary.map(|(_, test)| losses(test));
    }

    fn text(&self) -> String {
        let Self { name, result, reason, steps, held_out, ordinary } = self;
        let mut text = match (*result, reason) {
            ("none", _) => format!("{name}: no new lessons\n"),
            (_, Some(reason)) => format!("{name}: {result}, {reason}\n"),
            _ => format!("{name}: {result} after {}\n", output::counted(*steps, "step")),
        };
        for (of, losses) in [("held-out text", held_out), ("ordinary text", ordinary)] {
            if let Some(Losses { examples, before, after }) = losses {
                let examples = output::counted(*examples, "example");
                text += &format!("{of}: {before:.4} -> {after:.4} nats per token in {examples}\n");
            }
        }
        text
    }
}

fn losses(test: &PairedTest) -> Losses {
    Losses { examples: test.examples, before: test.before, after: test.after }
}

fn reason(skip: &Skip) -> String {
    match skip {
        Skip::FewExamples { got, need } => {
            format!("too little text to train on: {got} of {need} pieces of 16 tokens")
        }
        Skip::FewHeldOut { got, need } => {
            format!("too little held-out text: {got} of {need} pieces of 16 tokens")
        }
        Skip::Stopped { steps } => format!("stopped after {steps} steps"),
        Skip::Diverged { steps } => format!("the loss diverged after {steps} steps"),
    }
}

/// Reason of the gate against a result.
fn objection(report: &GateReport) -> Option<String> {
    match report.verdict {
        Verdict::Accepted => None,
        Verdict::NotShownHarmless { upper } => {
            Some(format!("the held-out loss may rise by {upper:.4} nats per token"))
        }
        Verdict::TaskWorse { task, lower } => {
            let of = if task == ORDINARY_TASK { "ordinary text" } else { "former lessons" };
            Some(format!("the held-out loss of {of} rises by {lower:.4} nats per token at least"))
        }
    }
}
