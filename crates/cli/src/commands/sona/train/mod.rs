//! `ruvllm sona train`: LoRA fine-tuning by back-propagation.

mod curriculum;
mod dataset;
mod distill;
mod plot;
mod report;
mod reward;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use ruvllm::EngineOptions;
use ruvllm_adapters::export::FactorType;
use ruvllm_models::{Checkpoint, Compute, Model, Pooling};
use ruvllm_training::{
    Backprop, BackpropOptions, Contrastive, CrossEntropy, Lora, LoraConfig, Objective, Outcome, Preferences,
    Schedule, Sequence, TrainConfig, Trainer, mean_loss, retrieval,
};

use self::curriculum::{CurriculumArgs, Phases};
use self::dataset::{Counts, Dedup};
pub(super) use self::dataset::{Example, Level};
use self::distill::DistillArgs;
use self::report::{Change, Document, Measured};
use self::reward::RewardArgs;
use super::data::Encoder;
use crate::args::{ModelArgs, positive};
use crate::commands::{load, offer};
use crate::default_model::ModelChoice;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::signal;

const HELP: &str = "\
DATA is a plain text (.txt: windows of --window tokens) or JSON lines of {text}, {prompt, answer} or {messages, tools}:
a conversation, in which the messages of the assistant are taught, tool calls too. Prompts are not taught. With --loss
preference the lines are {prompt, chosen, rejected} (DPO), with --loss contrastive {query, positive, negative}, the
last one optional: mean-pooled embeddings, the other texts of a batch are negatives too (InfoNCE).

With --loss reward the lines are {prompt} and any other fields (GRPO): --group answers to each of --batch prompts are
sampled from the factors of the step, at temperature 1. COMMAND, started once and without a shell, reads an answer per
line, the fields of its data line with {answer}, and writes {reward} or a plain number per line, flushed; the larger,
the better. An answer of the data line comes as {reference}. Equal commands and seeds give equal factors.

With --loss distill the data is that of text, and MODEL learns the distributions of a larger --teacher with the same
vocabulary: per token (1 - A) of the cross-entropy and A T^2 of KL(teacher || model), both at temperature T
(knowledge distillation). A draft model is accepted more often that way. Held-out data has the perplexity and, against
the teacher, kl in nats per token, acceptance of speculative sampling at temperature 1, and same_argmax, its greedy form.

--test measures held-out data of the same form before and after, and keeps the best factors instead of the last;
--split holds out a share of DATA instead, chosen by a hash of each text, so that equal texts are on one side.
--dedup removes training examples that occur twice or are held out.
--mask-functions adds N copies of each {messages, tools}, up to its first calls, in which functions and parameters have
made-up names, and values of the text are replaced, so that calls are read from the list of tools and not from memory.
--curriculum trains on the easy examples first: phase k of --phases on the examples of phases 1 to k. The order is that of
a field phase or difficulty of the lines (numbers), else of the model's own loss.
--replay mixes windows of a general text into the data, so that less of the general is forgotten: --share of them.

OUT is a PEFT folder, which --adapter takes. The state of a run is saved beside it every 20 steps, as OUT.state; the
same command with --resume goes on from it with the same bits. Ctrl-C saves it too. The figure of --plot has all steps,
those before --resume too.

JSON: {output, loss_function, steps, outcome, tokens, tokens_per_second, loss, examples, curriculum, perplexity_before,
perplexity_after, held_out}. examples is {trained, held_out, duplicates, near_duplicates, masked}. curriculum is null or {by,
examples}, the latter by phase. outcome is finished, early_stop or stopped. Perplexities are those of text and distill, held_out is
{NAME: {before, after}} of the losses other than text; both are null without held-out data.

Examples:
  ruvllm sona train --data law.txt --test held-out.txt --out law-lora --plot law.svg
  ruvllm sona train --data answers.jsonl --split 0.1 --dedup near --replay stories.txt --out answers-lora
  ruvllm sona train --data calls.jsonl --mask-functions 8 --replay stories.txt --out calls-lora
  ruvllm sona train --loss preference --data pairs.jsonl --split 0.1 --rate 1e-4 --out polite-lora
  ruvllm sona train --loss contrastive --data pairs.jsonl --split 0.1 --batch 16 --out search-lora
  ruvllm sona train --loss reward --reward './rate.py --strict' --data prompts.jsonl --split 0.1 --out short-lora
  ruvllm sona train --loss distill --model draft.gguf --teacher model.gguf --data law.txt --split 0.1 --out draft-lora
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

    /// Loss
    #[arg(long, value_name = "LOSS", default_value = "text")]
    loss: Loss,

    /// KL weight: the larger, the closer to the model [default: 0.1; 0.04 with --loss reward]
    #[arg(long, value_name = "B", value_parser = above_zero)]
    beta: Option<f64>,

    #[command(flatten)]
    rewards: RewardArgs,

    #[command(flatten)]
    distill: DistillArgs,

    /// Temperature of --loss contrastive [default: 0.05] or of --loss distill [default: 1]
    #[arg(long, value_name = "T", value_parser = above_zero)]
    temperature: Option<f64>,

    /// Held-out data
    #[arg(long, value_name = "DATA")]
    test: Option<PathBuf>,

    /// Share of DATA that is held out
    #[arg(long, value_name = "SHARE", conflicts_with = "test", value_parser = share)]
    split: Option<f32>,

    /// Duplicates that are removed
    #[arg(long, value_name = "KIND", default_value = "off")]
    dedup: Dedup,

    /// Copies of each conversation with made-up names of functions and parameters
    #[arg(long, value_name = "N", default_value = "0")]
    mask_functions: usize,

    #[command(flatten)]
    curriculum: CurriculumArgs,

    /// Figure of losses and rewards by step (SVG); an older one is replaced
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,

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

    /// Sequences of a step; prompts with --loss reward
    #[arg(long, value_name = "N", default_value = "8", value_parser = positive)]
    batch: usize,

    /// Tokens of a window of plain text
    #[arg(long, value_name = "N", default_value = "256", value_parser = positive)]
    window: usize,

    /// Peak learning rate
    #[arg(long, value_name = "RATE", default_value = "1.5e-3")]
    rate: f32,

    /// Seed of the factors, of the order of the data and of sampled answers
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

/// Loss functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Loss {
    /// Cross-entropy of texts and answers
    Text,
    /// Direct preference optimization (DPO)
    Preference,
    /// Contrastive loss of embeddings
    Contrastive,
    /// Rewards of sampled answers (GRPO)
    Reward,
    /// Distributions of a larger model (knowledge distillation)
    Distill,
}

/// Default KL weight of --loss preference.
const BETA: f64 = 0.1;

/// Default temperature of --loss contrastive.
const CONTRASTIVE_TEMPERATURE: f64 = 0.05;

/// Embeddings of `ruvllm embed` and of the server are means, too.
const POOLING: Pooling = Pooling::Mean;

pub(crate) fn run(args: &TrainArgs, json: bool) -> Result<ExitCode> {
    if args.out.exists() && !args.force {
        return Err(Error::OutputExists { path: args.out.clone() });
    }
    check_loss(args)?;
    let choice = offer::model(args.model.model.as_deref())?;
    let checkpoint = choice.open()?;
    let encoder = Encoder::new(&*checkpoint, args.window)
        .map_err(|source| Error::Tokenizer { model: choice.name(), source })?;
    let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, Into::into));
    let compute = Compute::new(threads)?;
    let (trained, counts, measured) = if args.loss == Loss::Reward {
        let engine = load::engine(&args.model, EngineOptions::default().with_threads(threads))?;
        let mut backprop = Backprop::new(engine.model(), &compute, BackpropOptions::default())?;
        reward::run(args, &encoder, &engine, &mut backprop)
    } else {
        let model = load_model(&choice, &*checkpoint)?;
        let mut backprop = Backprop::new(&model, &compute, BackpropOptions::default())?;
        match args.loss {
            Loss::Preference => preference(args, &encoder, &mut backprop),
            Loss::Contrastive => contrastive(args, &encoder, &mut backprop),
            Loss::Distill => distill::run(args, &encoder, &compute, &mut backprop),
            Loss::Text | Loss::Reward => text(args, &encoder, &mut backprop),
        }
    }?;
    let outcome = trained.outcome;
    report::write(&Document::new(args, trained, counts, measured), json)?;
    Ok(if outcome == Outcome::Stopped { signal::exit_code() } else { ExitCode::SUCCESS })
}

/// Compares the flags with the loss.
fn check_loss(args: &TrainArgs) -> Result<()> {
    let conflict = |flag, reason: &str| Err(Error::Conflict { flag, reason: reason.to_owned() });
    let reads_text = matches!(args.loss, Loss::Text | Loss::Distill);
    if args.replay.is_some() && !reads_text {
        return conflict("--replay", "only --loss text and distill read general text; leave it out");
    }
    if args.mask_functions > 0 && !reads_text {
        let reason = "only --loss text and distill read conversations with tools; leave it out";
        return conflict("--mask-functions", reason);
    }
    if args.rewards.reward.is_some() && args.loss != Loss::Reward {
        let reason = "only --loss reward rates answers; name that loss, or leave the command out";
        return conflict("--reward", reason);
    }
    if args.temperature.is_some() && !matches!(args.loss, Loss::Contrastive | Loss::Distill) {
        return conflict("--temperature", "only --loss contrastive and distill have one; leave it out");
    }
    args.distill.check(args.loss)
}

/// Loads the weights of a checkpoint.
fn load_model(choice: &ModelChoice, checkpoint: &dyn Checkpoint) -> Result<Model> {
    let mut loading = Progress::bytes(format!("loading {}", choice.name()));
    let model = Model::load(checkpoint, &mut |step| loading.update(step.bytes_done, step.bytes_total));
    model.map_err(|source| Error::Model { model: choice.name(), source })
}

/// Data of texts, answers and conversations, with masked copies and general text.
fn text_examples(args: &TrainArgs, encoder: &Encoder) -> Result<Examples<Sequence>> {
    let masked = |data: &[Example<Sequence>]| match args.mask_functions {
        0 => Ok(Vec::new()),
        copies => encoder.masked(data, copies, (args.seed, &args.data)),
    };
    let mut found = examples(args, |path| encoder.sequences(path), masked)?;
    if let Some(path) = &args.replay {
        let general = encoder.sequences(path)?.into_iter().map(|example| example.value).collect();
        mix(&mut found.data, general, args.share);
        found.counts.trained = found.data.len();
    }
    Ok(found)
}

/// Perplexity of held-out data; `None` without any.
fn perplexity(
    backprop: &mut Backprop<'_>,
    lora: Option<&Lora>,
    test: &[Sequence],
    batch: usize,
) -> Result<Option<f64>> {
    if test.is_empty() { Ok(None) } else { Ok(Some(mean_loss(backprop, lora, test, batch)?.exp())) }
}

/// Cross-entropy; perplexity of held-out data.
fn text(args: &TrainArgs, encoder: &Encoder, backprop: &mut Backprop<'_>) -> Result<Run> {
    let Examples { data, levels, test, counts } = text_examples(args, encoder)?;
    let objective = Box::new(CrossEntropy::new(backprop, &data, &test)?);
    let before = perplexity(backprop, None, &test, args.batch)?;
    let (lora, trained) = train(args, backprop, objective, &levels)?;
    let after = perplexity(backprop, Some(&lora), &test, args.batch)?;
    Ok((trained, counts, Measured { perplexity: Change::of(before, after), ..Measured::default() }))
}

/// DPO; loss and shares of held-out pairs.
fn preference(args: &TrainArgs, encoder: &Encoder, backprop: &mut Backprop<'_>) -> Result<Run> {
    let Examples { data, levels, test, counts } = examples(args, |path| encoder.preferences(path), none)?;
    let beta = args.beta.unwrap_or(BETA);
    let objective = |backprop: &Backprop<'_>| Preferences::new(backprop, &data, &test, beta);
    let mut first = objective(backprop)?;
    let before = first.measure(backprop, None, args.batch)?;
    let (lora, trained) = train(args, backprop, Box::new(first), &levels)?;
    let after = objective(backprop)?.measure(backprop, Some(&lora), args.batch)?;
    let mut measured = Measured::default();
    if let (Some(before), Some(after)) = (before, after) {
        measured.add("loss", before.loss, after.loss);
        measured.add("margin", before.margin, after.margin);
        measured.add("accuracy", before.accuracy, after.accuracy);
        measured.add("chosen_likelier", before.preferred, after.preferred);
    }
    Ok((trained, counts, measured))
}

/// `InfoNCE`; retrieval among the held-out texts.
fn contrastive(args: &TrainArgs, encoder: &Encoder, backprop: &mut Backprop<'_>) -> Result<Run> {
    let Examples { data, levels, test, counts } = examples(args, |path| encoder.pairs(path), none)?;
    let temperature = args.temperature.unwrap_or(CONTRASTIVE_TEMPERATURE);
    let objective = Contrastive::new(backprop, &data, &test, temperature, POOLING)?;
    let quality = |backprop: &mut Backprop<'_>, lora: &Lora| {
        let found = (!test.is_empty()).then(|| retrieval(backprop, lora, &test, POOLING, args.batch));
        found.transpose()
    };
    // New factors change nothing: they are the model alone.
    let before = quality(backprop, &new_lora(args, backprop)?)?;
    let (lora, trained) = train(args, backprop, Box::new(objective), &levels)?;
    let after = quality(backprop, &lora)?;
    let mut measured = Measured::default();
    if let (Some(before), Some(after)) = (before, after) {
        measured.add("recall_at_1", before.recall_at_1, after.recall_at_1);
        measured.add("mrr", before.mrr, after.mrr);
    }
    Ok((trained, counts, measured))
}

/// Data of a run.
struct Examples<T> {
    data: Vec<T>,
    /// Levels of the training data.
    levels: Vec<Level>,
    test: Vec<T>,
    counts: Counts,
}

/// No further examples.
fn none<T>(_: &[Example<T>]) -> Result<Vec<Example<T>>> {
    Ok(Vec::new())
}

/// Training data and held-out data of the flags, without duplicates; `further` makes more of the
/// training data.
fn examples<T>(
    args: &TrainArgs,
    read: impl Fn(&Path) -> Result<Vec<Example<T>>>,
    further: impl Fn(&[Example<T>]) -> Result<Vec<Example<T>>>,
) -> Result<Examples<T>> {
    let mut data = read(&args.data)?;
    let mut test = args.test.as_deref().map(&read).transpose()?.unwrap_or_default();
    if let Some(share) = args.split {
        (data, test) = dataset::split(data, share);
    }
    let mut counts = dataset::remove_duplicates(&mut test, &mut data, args.dedup);
    let nothing = |reason: &str| {
        Err(Error::Input { origin: args.data.display().to_string(), reason: reason.to_owned() })
    };
    if data.is_empty() {
        return nothing(
            "all of it is held out or a duplicate of held-out data; nothing is left to learn from",
        );
    }
    if test.is_empty() && args.split.is_some_and(|share| share > 0.0) {
        return nothing("--split held nothing out of so few examples; raise it, or name --test");
    }
    let masked = further(&data)?;
    counts.masked = masked.len();
    data.extend(masked);
    (counts.trained, counts.held_out) = (data.len(), test.len());
    let (data, levels) = data.into_iter().map(Example::into_parts).unzip();
    let test = test.into_iter().map(|example| example.value).collect();
    Ok(Examples { data, levels, test, counts })
}

fn new_lora(args: &TrainArgs, backprop: &Backprop<'_>) -> Result<Lora> {
    let alpha = 2.0 * args.rank as f32;
    let config = LoraConfig { rank: args.rank, alpha, seed: args.seed, ..LoraConfig::default() };
    Ok(Lora::new(backprop.model().adapter_base(), &config)?)
}

/// A run, its data and its held-out measurements.
type Run = (Trained, Counts, Measured);

/// Facts about a run.
struct Trained {
    outcome: Outcome,
    steps: u64,
    tokens: usize,
    seconds: f64,
    loss: Option<f64>,
    curriculum: Option<Phases>,
}

/// Trains, and writes the adapter and the figure.
fn train<'t>(
    args: &TrainArgs,
    backprop: &'t mut Backprop<'_>,
    mut objective: Box<dyn Objective + 't>,
    levels: &[Level],
) -> Result<(Lora, Trained)> {
    let config = TrainConfig {
        rate: args.rate,
        steps: args.steps,
        batch: args.batch,
        seed: args.seed,
        schedule: Schedule::Cosine { floor: 0.0 },
        ..TrainConfig::default()
    };
    let lora = new_lora(args, backprop)?;
    let planned = args.curriculum.plan(levels, || objective.difficulty(backprop, &lora, args.batch))?;
    let (curriculum, phases) = planned.unzip();
    let mut trainer = Trainer::with_objective(backprop, lora, objective, config)?;
    trainer.set_curriculum(curriculum)?;
    let trained = Trained { curriculum: phases, ..steps(args, &mut trainer)? };
    if let Some(path) = &args.plot {
        plot::write(path, trainer.label(), trainer.history())?;
    }
    let lora = trainer.into_lora();
    lora.write(&args.out, FactorType::F16, args.force)?;
    Ok((lora, trained))
}

/// Does the steps, and saves the state from time to time and when a signal stops it.
fn steps(args: &TrainArgs, trainer: &mut Trainer<'_, '_>) -> Result<Trained> {
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
    Ok(Trained { outcome, steps: trainer.steps(), tokens, seconds, loss, curriculum: None })
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

/// Parses a positive number.
fn above_zero(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value: &f64| *value > 0.0 && value.is_finite());
    value.ok_or_else(|| "expected a positive number".to_owned())
}
