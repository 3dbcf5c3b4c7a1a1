//! Result of a run, as text and JSON.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ruvllm_training::Outcome;
use serde::Serialize;

use super::curriculum::Phases;
use super::dataset::Counts;
use super::{Loss, TrainArgs, Trained};
use crate::error::Result;
use crate::output;

/// A value before and after training.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Change {
    before: f64,
    after: f64,
}

/// Measurements of held-out data; empty without any.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) perplexity: Option<Change>,
    pub(super) others: BTreeMap<&'static str, Change>,
}

/// The JSON document.
#[derive(Serialize)]
pub(super) struct Document {
    output: PathBuf,
    loss_function: &'static str,
    steps: u64,
    outcome: &'static str,
    tokens: usize,
    tokens_per_second: f64,
    loss: Option<f64>,
    examples: Counts,
    curriculum: Option<Phases>,
    perplexity_before: Option<f64>,
    perplexity_after: Option<f64>,
    held_out: Option<BTreeMap<&'static str, Change>>,
}

impl Change {
    pub(super) fn of(before: Option<f64>, after: Option<f64>) -> Option<Self> {
        Some(Self { before: before?, after: after? })
    }
}

impl Measured {
    pub(super) fn add(&mut self, name: &'static str, before: f64, after: f64) {
        self.others.insert(name, Change { before, after });
    }
}

impl Document {
    pub(super) fn new(args: &TrainArgs, trained: Trained, examples: Counts, measured: Measured) -> Self {
        Self {
            output: args.out.clone(),
            loss_function: match args.loss {
                Loss::Text => "text",
                Loss::Preference => "preference",
                Loss::Contrastive => "contrastive",
                Loss::Reward => "reward",
                Loss::Distill => "distill",
            },
            steps: trained.steps,
            outcome: match trained.outcome {
                Outcome::EarlyStop => "early_stop",
                Outcome::Stopped => "stopped",
                _ => "finished",
            },
            tokens: trained.tokens,
            tokens_per_second: trained.tokens as f64 / trained.seconds.max(1e-9),
            loss: trained.loss,
            examples,
            curriculum: trained.curriculum,
            perplexity_before: measured.perplexity.map(|change| change.before),
            perplexity_after: measured.perplexity.map(|change| change.after),
            held_out: Some(measured.others).filter(|others| !others.is_empty()),
        }
    }
}

/// Writes the result.
pub(super) fn write(document: &Document, json: bool) -> Result<()> {
    if json {
        return output::write_json(document);
    }
    let Document { output: out, steps, tokens_per_second, examples, .. } = document;
    let steps = output::counted(*steps as usize, "step");
    let mut text = format!("{}: {steps}, {tokens_per_second:.0} tokens/s", out.display());
    if let (Some(before), Some(after)) = (document.perplexity_before, document.perplexity_after) {
        let change = 100.0 * (after / before - 1.0);
        text += &format!(", perplexity {before:.3} to {after:.3} ({change:+.1} %)");
    }
    for (name, Change { before, after }) in document.held_out.iter().flatten() {
        text += &format!(", {} {before:.3} to {after:.3}", name.replace('_', " "));
    }
    let Counts { trained, held_out, duplicates, near_duplicates, masked } = examples;
    text += &format!("\n{} trained on", output::counted(*trained, "example"));
    if *masked > 0 {
        text += &format!(", {masked} of them masked copies");
    }
    text += &format!(", {held_out} held out");
    if duplicates + near_duplicates > 0 {
        text += &format!(", removed {duplicates} equal and {near_duplicates} similar");
    }
    if let Some(Phases { by, examples }) = &document.curriculum {
        let sizes: Vec<String> = examples.iter().map(usize::to_string).collect();
        text += &format!("\ncurriculum by {by}: phases of {} examples", sizes.join(", "));
    }
    output::write_text(&(text + "\n")).map(|_| ())
}
