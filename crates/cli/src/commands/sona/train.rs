//! `ruvllm sona train`: LoRA fine-tuning by back-propagation.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ruvllm_adapters::export::FactorType;
use ruvllm_models::{Compute, Model};
use ruvllm_training::{
    Backprop, BackpropOptions, Lora, LoraConfig, Outcome, Schedule, Sequence, TrainConfig, Trainer, mean_loss,
};
use serde::Serialize;

use super::data::Encoder;
use crate::args::{ModelArgs, positive};
use crate::commands::offer;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::{output, signal};

const HELP: &str = "\
DATA is a plain text (.txt: windows of --window tokens) or JSON lines of {text}, {prompt, answer} or {messages, tools}:
a conversation, in which the messages of the assistant are taught, tool calls too. Prompts are not taught. --test
measures held-out data of any form before and after, and keeps the best factors instead of the last.
--replay mixes windows of a general text into the data, so that less of the general is forgotten: --share of them.

OUT is a PEFT folder, which --adapter takes. The state of a run is saved beside it every 20 steps, as OUT.state; the
same command with --resume goes on from it with the same bits. Ctrl-C saves it too.

JSON: {output, steps, outcome, tokens, tokens_per_second, loss, perplexity_before, perplexity_after}; the last two are
null without --test, outcome is finished, early_stop or stopped.

Examples:
  ruvllm sona train --data law.txt --test held-out.txt --out law-lora
  ruvllm sona train --data answers.jsonl --replay stories.txt --steps 400 --out answers-lora
  ruvllm eval perplexity --adapter law-lora --file held-out.txt";

/// Optimizer steps between two saved states.
const SAVE_EVERY: u64 = 20;

/// Fine-tune a LoRA adapter on a text or on prompts with answers
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct TrainArgs {
    /// Training data: .txt, or JSON lines; `-` reads JSON lines from standard input
    #[arg(long, value_name = "DATA")]
    data: PathBuf,

    /// Folder of the adapter
    #[arg(long, short, value_name = "OUT")]
    out: PathBuf,

    /// Held-out data
    #[arg(long, value_name = "DATA")]
    test: Option<PathBuf>,

    /// General text that is mixed into the data
    #[arg(long, value_name = "DATA")]
    replay: Option<PathBuf>,

    /// Share of --replay in the data
    #[arg(long, value_name = "SHARE", default_value = "0.1", requires = "replay", value_parser = share)]
    share: f32,

    #[command(flatten)]
    model: ModelArgs,

    /// Rank of the factors
    #[arg(long, value_name = "N", default_value = "8", value_parser = positive)]
    rank: usize,

    /// Optimizer steps
    #[arg(long, value_name = "N", default_value = "200")]
    steps: u64,

    /// Sequences of a step
    #[arg(long, value_name = "N", default_value = "8", value_parser = positive)]
    batch: usize,

    /// Tokens of a window of plain text
    #[arg(long, value_name = "N", default_value = "256", value_parser = positive)]
    window: usize,

    /// Peak learning rate
    #[arg(long, value_name = "RATE", default_value = "1.5e-3")]
    rate: f32,

    /// Seed of the factors and of the order of the data
    #[arg(long, value_name = "N", default_value = "0")]
    seed: u64,

    /// Number of threads [default: one for each core]
    #[arg(long, short, value_name = "N", value_parser = positive)]
    threads: Option<usize>,

    /// Go on from the saved state of the same run
    #[arg(long)]
    resume: bool,

    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,
}

/// The JSON document.
#[derive(Serialize)]
struct Document {
    output: PathBuf,
    steps: u64,
    outcome: &'static str,
    tokens: usize,
    tokens_per_second: f64,
    loss: Option<f64>,
    perplexity_before: Option<f64>,
    perplexity_after: Option<f64>,
}

pub(crate) fn run(args: &TrainArgs, json: bool) -> Result<ExitCode> {
    if args.out.exists() && !args.force {
        return Err(Error::OutputExists { path: args.out.clone() });
    }
    let choice = offer::model(args.model.model.as_deref())?;
    let checkpoint = choice.open()?;
    let failed = |source| Error::Model { model: choice.name(), source };
    let mut loading = Progress::bytes(format!("loading {}", choice.name()));
    let model = Model::load(&*checkpoint, &mut |step| loading.update(step.bytes_done, step.bytes_total));
    drop(loading);
    let model = model.map_err(failed)?;
    let encoder = Encoder::new(&*checkpoint, args.window)
        .map_err(|source| Error::Tokenizer { model: choice.name(), source })?;
    let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, Into::into));
    let compute = Compute::new(threads)?;

    let read = |path: &PathBuf| encoder.sequences(path);
    let mut data = read(&args.data)?;
    if let Some(path) = &args.replay {
        mix(&mut data, read(path)?, args.share);
    }
    let test = args.test.as_ref().map(read).transpose()?.unwrap_or_default();
    let mut backprop = Backprop::new(&model, &compute, BackpropOptions::default())?;
    let perplexity = |backprop: &mut Backprop<'_>, lora: Option<&Lora>| -> Result<Option<f64>> {
        if test.is_empty() { Ok(None) } else { Ok(Some(mean_loss(backprop, lora, &test, args.batch)?.exp())) }
    };
    let before = perplexity(&mut backprop, None)?;
    let alpha = 2.0 * args.rank as f32;
    let lora = LoraConfig { rank: args.rank, alpha, seed: args.seed, ..LoraConfig::default() };
    let lora = Lora::new(model.adapter_base(), &lora)?;
    let config = TrainConfig {
        rate: args.rate,
        steps: args.steps,
        batch: args.batch,
        seed: args.seed,
        schedule: Schedule::Cosine { floor: 0.0 },
        ..TrainConfig::default()
    };
    let mut trainer = Trainer::new(&mut backprop, lora, &data, &test, config)?;
    let trained = train(args, &mut trainer)?;
    let lora = trainer.into_lora();
    lora.write(&args.out, FactorType::F16, args.force)?;
    let after = perplexity(&mut backprop, Some(&lora))?;
    report(
        &Document {
            output: args.out.clone(),
            steps: trained.steps,
            outcome: match trained.outcome {
                Outcome::EarlyStop => "early_stop",
                Outcome::Stopped => "stopped",
                _ => "finished",
            },
            tokens: trained.tokens,
            tokens_per_second: trained.tokens as f64 / trained.seconds.max(1e-9),
            loss: trained.loss,
            perplexity_before: before,
            perplexity_after: after,
        },
        json,
    )?;
    Ok(if trained.outcome == Outcome::Stopped { signal::exit_code() } else { ExitCode::SUCCESS })
}

/// Facts about a run.
struct Trained {
    outcome: Outcome,
    steps: u64,
    tokens: usize,
    seconds: f64,
    loss: Option<f64>,
}

/// Trains, and saves the state from time to time and when a signal stops it.
fn train(args: &TrainArgs, trainer: &mut Trainer<'_, '_>) -> Result<Trained> {
    let mut state = args.out.clone().into_os_string();
    state.push(".state");
    let state = PathBuf::from(state);
    if args.resume {
        trainer.resume(&state)?;
    }
    let cancel = signal::cancel_on_interrupt();
    let mut progress = Progress::steps("training");
    let started = std::time::Instant::now();
    let (mut tokens, mut loss, mut failed) = (0, None, None);
    let outcome = trainer.run(&mut |trainer, report| {
        tokens += report.tokens;
        loss = Some(report.loss);
        progress.update(report.step, args.steps);
        let stops = cancel.is_cancelled();
        if stops || report.step.is_multiple_of(SAVE_EVERY) {
            failed = trainer.save(&state).err();
        }
        if stops || failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    let seconds = started.elapsed().as_secs_f64();
    if outcome != Outcome::Stopped {
        // The state of a run that has ended is of no use.
        let _ = std::fs::remove_file(&state);
    }
    Ok(Trained { outcome, steps: trainer.steps(), tokens, seconds, loss })
}

/// Adds a share of general sequences, spread over their text.
fn mix(data: &mut Vec<Sequence>, general: Vec<Sequence>, share: f32) {
    let wanted = (data.len() as f32 * share / (1.0 - share)).round() as usize;
    let stride = (general.len() / wanted.max(1)).max(1);
    data.extend(general.into_iter().step_by(stride).take(wanted));
}

/// Parses a share: at least 0, below 1.
fn share(text: &str) -> Result<f32, String> {
    let value = text.parse().ok().filter(|share| (0.0..1.0).contains(share));
    value.ok_or_else(|| "expected a number from 0 to below 1".to_owned())
}

fn report(document: &Document, json: bool) -> Result<()> {
    if json {
        return output::write_json(document);
    }
    let Document { output: out, steps, tokens_per_second, .. } = document;
    let steps = output::counted(*steps as usize, "step");
    let mut text = format!("{}: {steps}, {tokens_per_second:.0} tokens/s", out.display());
    if let (Some(before), Some(after)) = (document.perplexity_before, document.perplexity_after) {
        let change = 100.0 * (after / before - 1.0);
        text += &format!(", perplexity {before:.3} to {after:.3} ({change:+.1} %)");
    }
    output::write_text(&(text + "\n")).map(|_| ())
}
