//! Evaluation of memory over task orders and seeds, against the same tasks without memory.
//!
//! Gains of such memories depended on the order of tasks (arXiv 2608.18066), so one order proves
//! nothing: the report has every run, the mean and the spread.

use std::path::Path;

use serde::Serialize;

use super::extract::Extract;
use super::item::{NewItem, Verdict};
use super::judge::{Evidence, Judge};
use super::template::PromptTemplate;
use super::uplift::Trials;
use super::{Bank, BankConfig, DistillConfig};
use crate::error::{Error, Result};
use crate::model::Embed;
use crate::random::{Random, mix};

/// Tenant of an evaluation's banks.
const TENANT: &str = "evaluation";

/// Task of an evaluation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvalTask {
    /// Id, unique among the tasks.
    pub id: String,
    /// Text of the request.
    pub prompt: String,
}

/// Response to a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Response.
    pub response: String,
    /// Exit code of what the response ran; `None` if it ran nothing.
    pub exit_code: Option<i32>,
}

/// Solves tasks: the model that is evaluated.
pub trait Solver: Send + Sync {
    /// Solves a task, with the text of the memory for its prompt or without one.
    ///
    /// Equal arguments must give equal attempts: the arm without memory runs once per seed.
    ///
    /// # Errors
    /// [`Error::Model`].
    fn solve(&self, task: &EvalTask, memory: Option<&str>, seed: u64) -> Result<Attempt>;
}

/// Grades attempts at a task by the known result.
pub trait Grader: Send + Sync {
    /// The verdict; only [`Verdict::Success`] counts as solved, [`Verdict::Unknown`] is left out.
    ///
    /// # Errors
    /// [`Error::Judge`].
    fn grade(&self, task: &EvalTask, attempt: &Attempt) -> Result<Verdict>;
}

/// Settings of an evaluation.
#[derive(Debug, Clone)]
pub struct EvalConfig {
    /// Shuffled orders of the tasks, 5 or more.
    pub orders: usize,
    /// Seeds per order, 1 or more.
    pub seeds: usize,
    /// Seed of orders and seeds.
    pub seed: u64,
    /// Bank of each run; it has no control arm of its own.
    pub bank: BankConfig,
    /// Text of items in prompts.
    pub template: PromptTemplate,
    /// Distillation after each number of tasks; `None` = never.
    pub distill_every: Option<(usize, DistillConfig)>,
}

impl EvalConfig {
    /// Five orders and two seeds.
    pub fn new(bank: BankConfig) -> Self {
        Self {
            orders: 5,
            seeds: 2,
            seed: 0,
            bank: BankConfig { control_share: 0.0, ..bank },
            template: PromptTemplate::default(),
            distill_every: None,
        }
    }

    fn check(&self) -> Result<()> {
        let check = |name, is_valid, value: usize, range| {
            if is_valid { Ok(()) } else { Err(Error::Setting { name, value: value.to_string(), range }) }
        };
        check("orders", self.orders >= 5, self.orders, "5 or more")?;
        check("seeds", self.seeds >= 1, self.seeds, "1 or more")?;
        let every = self.distill_every.as_ref().map_or(1, |(every, _)| *every);
        check("distill_every", every >= 1, every, "1 or more")?;
        self.template.check()
    }
}

/// Parts of the system that is evaluated.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// Tasks.
    pub tasks: &'a [EvalTask],
    /// Model.
    pub solver: &'a dyn Solver,
    /// Embedding function of the bank.
    pub embedder: &'a dyn Embed,
    /// Judge that the bank learns from; it does not know the results.
    pub judge: &'a dyn Judge,
    /// Extraction of lessons.
    pub extractor: &'a dyn Extract,
    /// Grader of the report.
    pub grader: &'a dyn Grader,
}

/// One order with one seed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Run {
    /// Number of the order.
    pub order: usize,
    /// Number of the seed.
    pub seed: usize,
    /// Graded attempts with memory.
    pub with: Trials,
    /// Graded attempts without memory, of the same tasks and seed.
    pub without: Trials,
    /// Tasks whose prompt had memory.
    pub given: usize,
    /// Items at the end.
    pub items: usize,
    /// Success rate with memory minus that without; `None` without graded attempts.
    pub difference: Option<f64>,
}

/// Distribution of a figure over runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Standard deviation (of a sample); `None` for one run.
    pub deviation: Option<f64>,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

/// Report of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Every run.
    pub runs: Vec<Run>,
    /// Success rates with memory; `None` if nothing was graded.
    pub with: Option<Spread>,
    /// Success rates without memory.
    pub without: Option<Spread>,
    /// Differences.
    pub difference: Option<Spread>,
    /// Runs with a lower success rate with memory than without.
    pub worse: usize,
}

/// Runs every order with every seed; each run begins with an empty bank in a folder of its own
/// beneath `folder`.
///
/// # Errors
/// [`Error::Setting`]; [`Error::Io`] if a run's folder exists already; errors of the parts.
pub fn evaluate(subject: &Subject<'_>, config: &EvalConfig, folder: &Path) -> Result<Report> {
    config.check()?;
    let mut runs = Vec::new();
    for seed in 0..config.seeds {
        let without = trials(subject, |task| {
            let attempt = subject.solver.solve(task, None, seed_of(config, seed, task))?;
            subject.grader.grade(task, &attempt)
        })?;
        for order in 0..config.orders {
            runs.push(run(subject, config, folder, order, seed, without)?);
        }
    }
    let spread = |figure: fn(&Run) -> Option<f64>| Spread::of(runs.iter().filter_map(figure).collect());
    Ok(Report {
        with: spread(|run| run.with.rate()),
        without: spread(|run| run.without.rate()),
        difference: spread(|run| run.difference),
        worse: runs.iter().filter(|run| run.difference.is_some_and(|d| d < 0.0)).count(),
        runs,
    })
}

fn trials(subject: &Subject<'_>, mut solve: impl FnMut(&EvalTask) -> Result<Verdict>) -> Result<Trials> {
    let mut trials = Trials::default();
    for task in subject.tasks {
        count(&mut trials, solve(task)?);
    }
    Ok(trials)
}

fn count(trials: &mut Trials, verdict: Verdict) {
    if verdict != Verdict::Unknown {
        trials.trials += 1;
        trials.wins += u64::from(verdict == Verdict::Success);
    }
}

/// Seed of an attempt: the same with memory and without, in every order.
fn seed_of(config: &EvalConfig, seed: usize, task: &EvalTask) -> u64 {
    task.id.bytes().fold(mix(config.seed ^ mix(seed as u64)), |state, byte| mix(state ^ u64::from(byte)))
}

fn run(
    subject: &Subject<'_>,
    config: &EvalConfig,
    folder: &Path,
    order: usize,
    seed: usize,
    without: Trials,
) -> Result<Run> {
    let mut tasks: Vec<&EvalTask> = subject.tasks.iter().collect();
    Random::new(mix(config.seed ^ 0x6f72_6465_7200 ^ order as u64)).shuffle(&mut tasks);
    let path = folder.join(format!("order-{order}-seed-{seed}"));
    std::fs::create_dir(&path).map_err(|error| Error::File { path: path.clone(), error })?;
    let bank = Bank::open(&path, BankConfig { control_share: 0.0, ..config.bank.clone() })?;
    let (mut with, mut given) = (Trials::default(), 0);
    for (i, task) in tasks.iter().enumerate() {
        // A second per task: ages and expiry follow the order, not the speed of the machine.
        let now = i as u64;
        let query = subject.embedder.embed(&task.prompt)?;
        let retrieval = bank.retrieve(TENANT, &task.id, &query, now)?;
        let memory = config.template.render(retrieval.items.iter().map(|retrieved| &retrieved.item));
        given += usize::from(memory.is_some());
        let attempt = subject.solver.solve(task, memory.as_deref(), seed_of(config, seed, task))?;
        count(&mut with, subject.grader.grade(task, &attempt)?);
        let evidence =
            Evidence { task: &task.prompt, response: &attempt.response, exit_code: attempt.exit_code };
        let judgement = subject.judge.judge(&evidence)?;
        bank.record_outcome(&retrieval.receipt, judgement.verdict, now)?;
        let extraction = subject.extractor.extract(&evidence, judgement.verdict)?;
        let items: Vec<NewItem> = extraction
            .lessons
            .into_iter()
            .map(|(text, content)| NewItem {
                text,
                query: query.clone(),
                content,
                verdict: judgement.verdict,
                quality: judgement.quality.unwrap_or(0.5),
                expires: None,
            })
            .collect();
        bank.learn(TENANT, &task.id, &items, now)?;
        if let Some((every, distill)) = &config.distill_every
            && (i + 1) % every == 0
        {
            bank.distill(TENANT, distill, now)?;
        }
    }
    let difference = with.rate().zip(without.rate()).map(|(with, without)| with - without);
    Ok(Run { order, seed, with, without, given, items: bank.items(TENANT)?.len(), difference })
}

impl Spread {
    /// Distribution of some figures; `None` if there are none.
    pub fn of(figures: Vec<f64>) -> Option<Self> {
        let n = figures.len() as f64;
        let mean = figures.iter().sum::<f64>() / n;
        let squares: f64 = figures.iter().map(|x| (x - mean).powi(2)).sum();
        Some(Self {
            mean,
            deviation: (figures.len() > 1).then(|| (squares / (n - 1.0)).sqrt()),
            min: figures.iter().copied().min_by(f64::total_cmp)?,
            max: figures.iter().copied().max_by(f64::total_cmp)?,
        })
    }
}
