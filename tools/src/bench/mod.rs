//! `cargo xtask bench`: Criterion suites, comparisons of whole models with other engines, the curve
//! over batch sizes, hit rates of the prefix tree.
//!
//! All numbers are measured. A comparison runs in rounds (limits of the machine, this engine, then
//! each peer in each of its settings), so that a busy minute affects all of them alike. Medians and
//! spreads over the rounds are reported; raw samples are kept as JSON.

mod curve;
mod embeddings;
mod engine;
mod kv;
mod kv_bytes;
mod kv_eval;
mod kv_passkey;
mod kv_quality;
mod kv_rows;
mod limits;
mod machine;
mod model;
mod plan;
mod prefix_traces;
mod programs;
mod quantize_table;
mod report;
mod samples;
pub(crate) mod section;
mod sona;
mod table;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use xtask::Workspace;
use xtask::process::CommandLine;

use crate::{Error, Result, plots};
use engine::{Engine, Ruvllm};
use kv::Kv;
use limits::LimitsProgram;
use machine::Machine;
use model::ModelFacts;
use plan::{Plan, readable};
use report::Report;

pub use embeddings::{EmbeddingSpeedArgs, embedding_speed};
pub use kv_eval::{KvPart, KvQualityArgs};
pub use kv_quality::kv_quality;
pub use quantize_table::{QuantizeTableArgs, quantize_table};

/// Rounds after which a setting can be dropped.
const TRIAL_ROUNDS: usize = 2;

/// Options of a measurement.
#[derive(clap::Args, Debug)]
pub struct BenchArgs {
    /// Criterion suite (a bench target of the benches package; all without a name), batch-curve,
    /// prefix-traces or sona
    #[arg(value_name = "SUITE", conflicts_with = "peer")]
    pub suite: Option<String>,
    /// Runs beside another engine: llama-bench=PATH, lbench=PATH (with CPU time) or json=PATH (any
    /// program that prints one JSON line per test); may be repeated
    #[arg(long, value_name = "NAME=PATH")]
    pub peer: Vec<String>,
    /// Model file for runs beside a peer; may be repeated
    #[arg(long, value_name = "FILE", requires = "peer")]
    pub model: Vec<PathBuf>,
    /// Prompt lengths in tokens (prefill); 0 = none
    #[arg(short = 'p', long, value_delimiter = ',', default_value = "512", requires = "peer")]
    pub prompt: Vec<usize>,
    /// Numbers of generated tokens (decode); 0 = none
    #[arg(short = 'n', long, value_delimiter = ',', default_value = "64", requires = "peer")]
    pub generate: Vec<usize>,
    /// Tokens in the cache before a test begins
    #[arg(short = 'd', long, value_delimiter = ',', default_value = "0", requires = "peer")]
    pub depth: Vec<usize>,
    /// Thread counts
    #[arg(short = 't', long, value_delimiter = ',', default_value = "1,2", requires = "peer")]
    pub threads: Vec<usize>,
    /// KV cache types for all engines
    #[arg(long, value_enum, value_delimiter = ',', default_value = "f16", requires = "peer")]
    pub kv: Vec<Kv>,
    /// Interleaved rounds
    #[arg(long, default_value_t = 5, requires = "peer")]
    pub rounds: usize,
    /// No longer runs a peer's setting that after two rounds is more than 10 % behind another of
    /// its settings in every test of a model
    #[arg(long, requires = "peer")]
    pub drop_slow: bool,
    /// Section of the page of this machine in docs/performance to write; the others stay as they
    /// are
    #[arg(long, value_name = "NAME", default_value = "peer", value_parser = section::parse_name)]
    pub section: String,
    /// A `ruvllm` program to measure instead of building one, such as that of an earlier commit
    #[arg(long, value_name = "FILE", requires = "peer")]
    pub program: Option<PathBuf>,
    /// Only prints how long a run may take and the commands of one round
    #[arg(long, requires = "peer")]
    pub dry_run: bool,
    /// Domain to learn (suite sona); may be repeated [default: those of ../shared/corpora/domains]
    #[arg(long, value_name = "NAME=TRAIN.txt:TEST.txt")]
    pub domain: Vec<String>,
    /// Corrected tool calls to learn, and calls of other tools (suite sona)
    #[arg(long, value_name = "TRAIN.jsonl:TEST.jsonl")]
    pub tools: Option<String>,
    /// Text that learning should leave as it is (suite sona) [default:
    /// ../shared/corpora/validation.txt]
    #[arg(long, value_name = "FILE")]
    pub general: Option<PathBuf>,
    /// Measurements of the suite sona: instant, background, continual, tools, ratings, deep, cost,
    /// tuning [default: all]
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    pub part: Vec<String>,
    /// Optimizer steps of the part deep (suite sona)
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub steps: u64,
    /// Leaves the page as it is
    #[arg(long)]
    pub no_record: bool,
}

/// Runs the selected measurement.
///
/// # Errors
/// If a program is missing, fails, or its output is not the expected JSON.
pub fn bench(workspace: &Workspace, args: &BenchArgs) -> Result<()> {
    match args.suite.as_deref() {
        _ if !args.peer.is_empty() => beside_peers(workspace, args),
        Some("batch-curve") => curve::batch_curve(workspace, args.no_record),
        Some("prefix-traces") => prefix_traces::prefix_traces(workspace, args.no_record),
        Some("sona") => sona::sona(workspace, args),
        suite => suites(workspace, suite),
    }
}

fn suites(workspace: &Workspace, suite: Option<&str>) -> Result<()> {
    let command = CommandLine::cargo(workspace).args(["bench", "--package", "ruvllm-benches"]);
    match suite {
        Some(name) => command.args(["--bench", name]).run()?,
        None => command.run()?,
    }
    Ok(())
}

fn beside_peers(workspace: &Workspace, args: &BenchArgs) -> Result<()> {
    if args.model.is_empty() {
        return Err(Error::NoModel);
    }
    let peers = args.peer.iter().map(|peer| engine::peer(workspace, peer)).collect::<Result<Vec<_>>>()?;
    let plans = plans(args)?;
    println!(
        "about {} for {} rounds: a guess from the sizes",
        readable(guess(args, &plans, &peers)),
        args.rounds
    );
    if args.dry_run {
        let ours = Ruvllm::unbuilt(workspace);
        for (plan, _) in &plans {
            show(&ours, plan);
            peers.iter().for_each(|peer| show(peer.as_ref(), plan));
        }
        return Ok(());
    }
    let ours = match &args.program {
        Some(program) => Ruvllm::at(workspace, program),
        None => Ruvllm::build(workspace)?,
    };
    let limits = LimitsProgram::build(workspace)?;
    let mut run = Run {
        report: Report::new(Machine::describe(workspace), section::this_command()),
        ours,
        peers,
        limits,
    };
    let result = run.rounds(args, &plans);
    // Samples taken before a failure are kept.
    let json = run.report.write_json(workspace, &args.section)?;
    result?;
    let text = table::markdown(&run.report);
    println!("{text}\nraw samples: {}", json.display());
    if args.no_record {
        Ok(())
    } else {
        section::record_speed(workspace, &run.report.machine, &args.section, &text)?;
        plots::plots(workspace)
    }
}

/// Engines, limits and report of a comparison.
struct Run {
    report: Report,
    ours: Ruvllm,
    peers: Vec<Box<dyn Engine>>,
    limits: LimitsProgram,
}

impl Run {
    /// Runs all rounds of all plans, with progress messages.
    fn rounds(&mut self, args: &BenchArgs, plans: &[(Plan, ModelFacts)]) -> Result<()> {
        let start = Instant::now();
        for round in 1..=args.rounds {
            let may_drop = args.drop_slow && round > TRIAL_ROUNDS;
            for (plan, facts) in plans {
                eprintln!("round {round}/{}: {plan}", args.rounds);
                self.once(plan, facts, may_drop)?;
            }
            let left = start.elapsed() / round as u32 * (args.rounds - round) as u32;
            eprintln!("round {round}/{} done; about {} left", args.rounds, readable(left));
        }
        Ok(())
    }

    /// Runs one round of one plan.
    fn once(&mut self, plan: &Plan, facts: &ModelFacts, may_drop: bool) -> Result<()> {
        let limits = self.limits.measure(&plan.threads)?;
        for setting in self.ours.settings(plan) {
            self.report.add_ours(plan, facts, &limits, &self.ours.run(plan, &setting)?);
        }
        for peer in &self.peers {
            for setting in peer.settings(plan) {
                if !(may_drop && self.report.is_hopeless(plan, peer.name(), &setting.name)) {
                    let outcome = peer.run(plan, &setting)?;
                    self.report.add_peer(plan, peer.name(), &setting.name, &outcome);
                }
            }
        }
        Ok(())
    }
}

fn show(engine: &dyn Engine, plan: &Plan) {
    for command in engine.settings(plan).iter().flat_map(|setting| engine.commands(plan, setting)) {
        println!("{}", command.display());
    }
}

/// Estimated duration of the whole run.
fn guess(args: &BenchArgs, plans: &[(Plan, ModelFacts)], peers: &[Box<dyn Engine>]) -> Duration {
    let runs = |plan: &Plan| 1 + peers.iter().map(|peer| peer.settings(plan).len()).sum::<usize>();
    let round: Duration = plans.iter().map(|(plan, facts)| plan.guess(facts) * runs(plan) as u32).sum();
    round * args.rounds as u32
}

/// One plan per model, KV type and depth, with facts about the model.
fn plans(args: &BenchArgs) -> Result<Vec<(Plan, ModelFacts)>> {
    let positive = |values: &[usize]| values.iter().copied().filter(|n| *n > 0).collect::<Vec<_>>();
    let mut plans = Vec::new();
    for model in &args.model {
        let facts = ModelFacts::read(model)?;
        for &kv in &args.kv {
            for &depth in &args.depth {
                let plan = Plan {
                    model: model.clone(),
                    prompt: positive(&args.prompt),
                    generate: positive(&args.generate),
                    depth,
                    threads: args.threads.clone(),
                    kv,
                };
                plans.push((plan, facts.clone()));
            }
        }
    }
    Ok(plans)
}
